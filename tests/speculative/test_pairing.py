"""Which drafts fit which target, and what the command line says of those that do not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mini_infer.build import build_engine
from mini_infer.config import EngineConfig
from mini_infer.errors import UserError
from mini_infer.sampling.params import SamplingParams
from mini_infer.speculative.adaptive import Adaptive, Fixed
from mini_infer.speculative.draft_model import DraftModel
from mini_infer.speculative.pairing import first_difference
from mini_infer.speculative.prompt_lookup import PromptLookup
from mini_infer.text.tokenizer import Tokenizer
from tests.support import tokenizers
from tests.support.checkpoints import ENDOFTEXT, IM_END, VOCAB, write_checkpoint
from tests.support.command import Run, refused, runner
from tests.support.engines import run_all, run_one


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("target") / "big", seed=0, dtype=torch.float64)


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("draft") / "small", seed=1, num_hidden_layers=1, hidden_size=32)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return runner(capsys)


def changed(folder: Path, copy: Path, edit: Callable[[dict[str, Any]], None], file: str = "tokenizer.json") -> Path:
    """A copy of a checkpoint with one of its JSON files edited."""
    shutil.copytree(folder, copy)
    content = json.loads((copy / file).read_text())
    edit(content)
    (copy / file).write_text(json.dumps(content))
    return copy


def swap(content: dict[str, Any]) -> None:
    vocab = content["model"]["vocab"]
    by_id = {id: token for token, id in vocab.items()}
    vocab[by_id[100]], vocab[by_id[200]] = 200, 100


# --- tokenizers -----------------------------------------------------------------------------------------------------


def test_P10_two_entries_swapped_are_named(run, target, draft, tmp_path):
    other = changed(draft, tmp_path / "swapped", swap)
    by_id = {id: token for token, id in Tokenizer.from_folder(target).vocabulary().items()}
    for command in (("generate", "hi"), ("info",)):
        line = refused(run(*command, "--model", target, "--draft", other))
        assert f"--draft swapped does not fit --model big: id 100 is {by_id[100]!r}, but {by_id[200]!r}" in line


def test_P10_another_end_token_is_named(run, target, draft, tmp_path):
    def end(content: dict[str, Any]) -> None:
        content["eos_token"] = "<|endoftext|>"

    other = changed(draft, tmp_path / "a", end, "tokenizer_config.json")
    line = refused(run("generate", "hi", "--model", target, "--draft", other))
    assert f"the end token is '<|im_end|>' (id {IM_END}), but '<|endoftext|>' (id {ENDOFTEXT}) to the draft" in line
    stated = write_checkpoint(tmp_path / "b", eos_token_id=ENDOFTEXT)
    line = refused(run("generate", "hi", "--model", target, "--draft", stated))
    assert f"answers of the target end with id {IM_END}, those of the draft with {ENDOFTEXT}" in line


def test_P10_a_renamed_or_a_further_special_token_is_named(target, tmp_path):
    def rename(content: dict[str, Any]) -> None:
        content["added_tokens"][-1]["content"] = "<|stop|>"

    def further(content: dict[str, Any]) -> None:
        content["added_tokens"].append(tokenizers.added_token(VOCAB, "<|more|>"))

    ours = Tokenizer.from_folder(target)
    renamed = Tokenizer.from_folder(changed(target, tmp_path / "a", rename))
    assert first_difference(ours, renamed) == f"id {IM_END} is '<|im_end|>', but '<|stop|>' to the draft"
    more = Tokenizer.from_folder(changed(target, tmp_path / "b", further))
    assert first_difference(ours, more) == f"id {VOCAB} is no token, but '<|more|>' to the draft"
    assert first_difference(more, ours) == f"id {VOCAB} is '<|more|>', but no token to the draft"


def test_what_does_not_change_the_meaning_of_ids_is_no_difference(target, tmp_path):
    def no_template(content: dict[str, Any]) -> None:
        del content["chat_template"]

    ours = Tokenizer.from_folder(target)
    assert first_difference(ours, ours) is None
    bare = changed(target, tmp_path / "a", no_template, "tokenizer_config.json")
    assert first_difference(ours, Tokenizer.from_folder(bare)) is None
    (bare / "tokenizer_config.json").unlink()
    assert first_difference(ours, Tokenizer.from_folder(bare)) is None


def test_another_family_is_refused_at_its_first_id(tmp_path):
    llama = Tokenizer.from_folder(tokenizers.write_llama(tmp_path / "llama"))
    ours = Tokenizer.from_folder(tokenizers.write_chatml(tmp_path / "chatml"))
    assert first_difference(ours, llama) == "id 0 is '!', but '<unk>' to the draft"
    assert first_difference(llama, Tokenizer.from_folder(tmp_path / "llama")) is None


@pytest.mark.real
def test_real_tokenizers(qwen_folder, smollm_folder):
    qwen, smollm = Tokenizer.from_folder(qwen_folder), Tokenizer.from_folder(smollm_folder)
    assert first_difference(qwen, Tokenizer.from_folder(qwen_folder)) is None
    assert first_difference(smollm, Tokenizer.from_folder(smollm_folder)) is None
    assert first_difference(qwen, smollm) == "id 0 is '!', but '<|endoftext|>' to the draft"


# --- padded vocabularies --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("target_rows", "draft_rows"), [(VOCAB + 128, VOCAB), (VOCAB, VOCAB + 128)])
def test_heads_padded_to_different_widths_are_one_tokenizer(tmp_path, target_rows, draft_rows):
    """As the small and the large models of one family have it; ids of the padding may be asked about and banned."""
    big = write_checkpoint(tmp_path / "big", vocab=target_rows, dtype=torch.float64)
    small = write_checkpoint(tmp_path / "small", vocab=draft_rows, dtype=torch.float64)
    top = target_rows - 1
    jobs = [
        ([5, 9, top, 7], SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)),
        ([5, 9, top, 7], SamplingParams(temperature=1, seed=1, max_tokens=20, logit_bias={top: 30.0, 3: 1.0})),
        ([5, 9], SamplingParams(seed=2, top_p=0.9, repetition_penalty=1.3, logit_bias={top: -100.0}, max_tokens=20)),
        ([5, 9, 11], SamplingParams(temperature=1, seed=4, top_k=30, presence_penalty=1.0, max_tokens=20)),
    ]
    options = EngineConfig(model=str(big), kv_blocks=64)
    plain = [r.token_ids for r in run_all(build_engine(options), jobs)]
    for k in (1, 4):
        engine = build_engine(EngineConfig(model=str(big), kv_blocks=64, draft=str(small), draft_tokens=k))
        assert [r.token_ids for r in run_all(engine, jobs)] == plain
        assert engine.recorder.totals["drafted"] > 10
        assert engine._draft_failures == 0


@pytest.mark.parametrize("arch", ["llama", "qwen3"])
def test_a_draft_of_another_architecture_with_a_shorter_context(target, tmp_path, arch):
    small = write_checkpoint(tmp_path / "small", arch, seed=3, max_position_embeddings=32, num_hidden_layers=1)
    ids = [(7 * i) % 300 for i in range(50)]
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    plain = run_one(build_engine(EngineConfig(model=str(target), kv_blocks=32)), ids, params)
    engine = build_engine(EngineConfig(model=str(target), kv_blocks=32, draft=str(small), draft_tokens=4))
    assert engine.max_model_len == 4096
    result = run_one(engine, ids, params)
    assert result.token_ids == plain.token_ids
    assert result.usage.drafted > 20


# --- options --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "kind", "policy"),
    [
        ({}, type(None), None),
        ({"draft": "none", "draft_tokens": 3}, type(None), None),
        ({"draft": "ngram"}, PromptLookup, Adaptive),
        ({"draft": "ngram", "draft_tokens": 3}, PromptLookup, Fixed),
        ({"draft": "DRAFT"}, DraftModel, Adaptive),
        ({"draft": "DRAFT", "draft_tokens": 0}, DraftModel, Fixed),
    ],
)
def test_options_make_the_proposer(target, draft, options, kind, policy):
    options = {name: str(draft) if value == "DRAFT" else value for name, value in options.items()}
    engine = build_engine(EngineConfig(model=str(target), kv_blocks=32, **options))
    assert type(engine.proposer) is kind
    if policy is not None:
        assert type(engine.proposer.policy) is policy
    if policy is Adaptive:
        assert engine.proposer.policy.drafts_free == (options["draft"] == "ngram")
    if kind is DraftModel:
        runner = engine.proposer.runner
        assert runner.model.dtype == engine.runner.model.dtype == torch.float64  # the target's, not the draft's own
        assert runner.kv.data.shape[2:4] == engine.runner.kv.data.shape[2:4]
    result = run_one(engine, [5, 6, 5, 6, 5, 6], SamplingParams(temperature=0, max_tokens=12))
    plain = build_engine(EngineConfig(model=str(target), kv_blocks=32))
    assert (
        result.token_ids == run_one(plain, [5, 6, 5, 6, 5, 6], SamplingParams(temperature=0, max_tokens=12)).token_ids
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"draft_tokens": 9}, "--draft-tokens is 9: it must be at most 8"),
        ({"draft_tokens": -1}, "--draft-tokens is -1: it must be at least 0"),
        ({"draft_tokens": "many"}, "--draft-tokens is 'many': it must be a whole number or auto"),
        ({"draft_tokens": None}, "--draft-tokens is None"),
        ({"draft": ""}, "--draft is ''"),
    ],
)
def test_values_that_cannot_work_are_named(options, said):
    with pytest.raises(UserError) as caught:
        EngineConfig(**options)
    assert said in str(caught.value)


def test_the_command_line_knows_both_options(run, target, draft, tmp_path):
    assert "is not a whole number or auto" in refused(run("generate", "hi", "--model", target, "--draft-tokens", "x"))
    assert "at most 8" in refused(run("generate", "hi", "--model", target, "--draft-tokens", "9"))
    line = refused(run("generate", "hi", "--model", target, "--draft", tmp_path / "nowhere"))
    assert "--draft: " in line and "nowhere: no such folder" in line
    word = "self"  # a word is offered once it works
    assert f"'{word}': no such folder" in refused(run("generate", "hi", "--model", target, "--draft", word))
    assert "--draft" in refused(run("generate", "hi", "--model", target, "--draft", "demo"))  # another vocabulary


def test_json_says_what_speculation_did(run, target, draft):
    ask = (
        "generate",
        "--json",
        "--raw",
        "--temperature",
        "0",
        "--max-tokens",
        "24",
        "--kv-blocks",
        "64",
        "--model",
        target,
    )
    more = ("--frequency-penalty", "-2", "--ignore-eos", "the of the of the of")
    plain = json.loads(run(*ask, *more)[1])
    assert plain["speculation"] == {
        "proposer": "none", "rounds": 0, "drafted": 0, "accepted": 0, "acceptance": None, "by_position": [],
        "tokens_per_step": 1.0, "time_saved_s": None, "off_reason": "OFF",
    }  # fmt: skip
    for source, name in (("ngram", "ngram"), (draft, "draft"), (target, "draft")):
        code, out, err = run(*ask, "--draft", source, "--draft-tokens", "4", *more)
        assert (code, err) == (0, "")
        answer = json.loads(out)
        assert answer["token_ids"] == plain["token_ids"]
        found = answer["speculation"]
        assert list(found) == list(plain["speculation"])
        assert found["proposer"] == name
        assert found["rounds"] > 0
        assert found["acceptance"] == found["accepted"] / found["drafted"]
        assert len(found["by_position"]) <= 4
        assert all(0 <= share <= 1 for share in found["by_position"])
        assert found["tokens_per_step"] >= 1
        assert found["time_saved_s"] is None or isinstance(found["time_saved_s"], float)
        if source == target:
            assert (found["acceptance"], found["off_reason"]) == (1.0, None)
            assert found["tokens_per_step"] > 3
    code, out, _ = run(*ask, "--draft", "ngram", "--draft-tokens", "0", *more)
    assert json.loads(out)["speculation"]["off_reason"] == "OFF"


def test_info_counts_the_draft_in_the_memory_plan(run, target, draft):
    def plan(*args: object) -> dict[str, Any]:
        code, out, err = run("info", "--json", "--kv-blocks", "100", "--model", target, *args)
        assert (code, err) == (0, "")
        found: dict[str, Any] = json.loads(out)["plan"]
        return found

    alone, ngram, both = plan(), plan("--draft", "ngram"), plan("--draft", draft)
    twice = plan("--draft", target)
    assert (alone["draft_weights"], ngram["draft_weights"]) == (0, 0)
    assert alone["kv_bytes_per_block"] == ngram["kv_bytes_per_block"]
    assert twice["draft_weights"] == twice["weights"] == alone["weights"]
    assert twice["kv_bytes_per_block"] == 2 * alone["kv_bytes_per_block"]
    layer = alone["kv_bytes_per_block"] // 2  # one layer of two
    assert both["kv_bytes_per_block"] == 3 * layer
    assert both["kv_memory"] == 100 * 3 * layer
    assert 0 < both["draft_weights"] < both["weights"]
    shown = run("info", "--kv-blocks", "100", "--model", target, "--draft", draft)[1]
    assert "draft weights" in shown
    assert "draft weights" not in run("info", "--kv-blocks", "100", "--model", target)[1]


def test_a_cache_sized_by_memory_has_room_for_both(run, target, draft):
    engine = build_engine(EngineConfig(model=str(target), kv_memory=10**6))
    pair = build_engine(EngineConfig(model=str(target), kv_memory=10**6, draft=str(draft)))
    each = engine.runner.kv.data.nbytes // engine.runner.kv.num_blocks
    assert engine.runner.kv.num_blocks == 10**6 // each
    assert pair.runner.kv.num_blocks == pair.proposer.runner.kv.num_blocks == 10**6 // (each * 3 // 2)
