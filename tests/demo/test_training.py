"""What is trained is what runs: equal logits, packed rows that equal single conversations, resuming, repeatability."""

import dataclasses
import itertools
import json

import pytest
import torch
from safetensors.torch import load_file

from mini_infer.demo import net as nets
from mini_infer.demo import train
from mini_infer.demo.corpus import conversations, render
from mini_infer.demo.net import Net, Rows, Shape, draft_shape, target_shape
from mini_infer.demo.packing import batches
from mini_infer.demo.train import Recipe, train_pair, write_checkpoint
from mini_infer.demo.vocabulary import Encoder, learn_tokenizer, write_tokenizer
from mini_infer.models.loader import load_model_from_safetensors
from mini_infer.text.tokenizer import Tokenizer
from tests.support.dense import dense_logits

TINY = Recipe(target_steps=4, draft_steps=3, rows=1, length=256, warmup=2, save_every=2, held_out_batches=1, sample=300)


@pytest.fixture(scope="module")
def tokenizer():
    return learn_tokenizer(0, 400)


@pytest.fixture(scope="module")
def encoder(tokenizer):
    return Encoder(tokenizer)


def small_net(vocab: int) -> Net:
    torch.manual_seed(3)
    net = Net(Shape(vocab, hidden=32, inner=48, layers=2, heads=4, kv_heads=2))
    for parameter in net.parameters():  # biases and norms too must matter
        parameter.data += 0.1 * torch.randn_like(parameter)
    return net.to(torch.bfloat16).double()


def single(ids: list[int]) -> Rows:
    tokens = torch.tensor([ids])
    zeros = torch.zeros_like(tokens)
    return Rows(tokens, torch.arange(len(ids))[None], zeros, zeros, zeros)


def test_the_trained_network_is_the_engines_own(tmp_path, tokenizer, encoder):
    net = small_net(tokenizer.get_vocab_size())
    write_checkpoint(tmp_path, net, tokenizer)
    model, config = load_model_from_safetensors(tmp_path, dtype="float64")
    assert config.eos_token_ids == (tokenizer.token_to_id("<|im_end|>"),)
    ids = encoder.ids(render(next(conversations(2))))[:150]
    with torch.inference_mode():
        ours = net.logits(net(single(ids)))[0]
    torch.testing.assert_close(ours, dense_logits(model, config, ids), atol=1e-6, rtol=0)


def test_the_tokenizer_of_training_is_that_of_the_engine(tmp_path, tokenizer, encoder):
    write_tokenizer(tokenizer, tmp_path)
    engine = Tokenizer.from_folder(tmp_path)
    for turns in itertools.islice(conversations(8), 200):
        messages = []
        for turn in turns:
            messages.append({"role": "user", "content": turn.asked})
            asked = engine.encode_chat(messages)
            messages.append({"role": "assistant", "content": turn.answer})
        ids, weights = encoder([turns])[0]
        assert encoder.system + ids == engine.encode_chat(messages, add_generation_prompt=False)
        answer = [id for id, weight in zip(ids, weights, strict=True) if weight == 1.0]
        assert engine.decode(answer) == "".join(turn.answer for turn in turns)
        assert (encoder.system + ids)[: len(asked)] == asked
    assert len(encoder.system) >= 64


def test_rows_hold_whole_conversations_that_see_only_themselves(tokenizer, encoder):
    net = small_net(tokenizer.get_vocab_size())
    rows = next(batches(encoder, 4, rows=3, length=512))
    with torch.inference_mode():
        packed = net(rows)
        for row in range(3):
            start = rows.tokens[row][rows.segments[row] == 0].tolist()
            for segment in range(1, int(rows.segments[row].max()) + 1):
                chosen = rows.segments[row] == segment
                ids = rows.tokens[row][chosen].tolist()
                alone = net(single(start + ids))[0, len(start) :]
                torch.testing.assert_close(packed[row][chosen], alone, atol=1e-9, rtol=0)
                assert rows.targets[row][chosen].tolist()[:-1] == ids[1:]
                assert rows.weights[row][chosen][-1] == 0


def test_some_batches_reach_the_end_of_the_context(encoder):
    found = list(itertools.islice(batches(encoder, 1, rows=4, length=512), 12))
    assert {rows.tokens.shape for rows in found} == {(4, 512), (2, 1024)}
    assert int(found[-1].positions.max()) > 900


def test_rows_stay_full_and_every_batch_has_something_to_learn(encoder):
    for rows in itertools.islice(batches(encoder, 0, rows=4, length=512), 400):
        assert (rows.segments >= 0).float().mean() > 0.9
        assert (rows.weights == 1).float().mean() > 0.3


def test_a_broken_off_training_goes_on_to_the_same_end(tmp_path, monkeypatch):
    monkeypatch.setattr(train, "target_shape", lambda size: Shape(size, 32, 48, 1, 2, 1))
    monkeypatch.setattr(train, "draft_shape", lambda size: Shape(size, 16, 32, 1, 2, 1))
    threads = torch.get_num_threads()
    whole = train_pair(tmp_path / "a", TINY)

    real, calls = train._apply, []

    def breaking(optimizer, rate):
        calls.append(rate)
        if len(calls) > 9:  # three optimizers a step: in the fourth step
            raise KeyboardInterrupt
        real(optimizer, rate)

    monkeypatch.setattr(train, "_apply", breaking)
    with pytest.raises(KeyboardInterrupt):
        train_pair(tmp_path / "b", TINY)
    monkeypatch.setattr(train, "_apply", real)
    resumed = train_pair(tmp_path / "b", TINY)
    torch.set_num_threads(threads)
    for name in ("target_held_out", "draft_held_out"):
        assert resumed[name] == pytest.approx(whole[name], rel=0.02)
    for part in ("target", "draft"):
        one, other = (load_file(tmp_path / run / part / "model.safetensors") for run in "ab")
        for name, tensor in one.items():
            torch.testing.assert_close(tensor, other[name], atol=2e-2, rtol=0.1)
    assert json.loads((tmp_path / "a" / "report.json").read_text())["target_steps"] == 4


def test_another_corpus_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(train, "CORPUS", "0" * 64)
    with pytest.raises(ValueError, match="CORPUS"):
        train_pair(tmp_path, TINY)


def test_sizes_are_as_promised():
    target, draft = Net(target_shape(4096)), Net(draft_shape(4096))
    assert 5e6 <= sum(p.numel() for p in target.parameters()) <= 6e6
    assert sum(p.numel() for p in draft.parameters()) <= 1.3e6
    assert (target.shape.layers, draft.shape.layers, nets.CONTEXT) == (6, 1, 1024)


@pytest.mark.timing
def test_a_smoke_run_of_two_minutes_learns(tmp_path):
    recipe = dataclasses.replace(TINY, target_steps=25, draft_steps=10, rows=4, length=512, warmup=10)
    report = train_pair(tmp_path, recipe)
    assert report["target_held_out"] < 5.5  # 8.3 at the start
    assert report["target_seconds"] + report["draft_seconds"] < 120
