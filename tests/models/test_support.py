"""The tests' own tools: a comparison that cannot fail, or a checkpoint that says nothing, would prove nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.support import real, ties
from tests.support.checkpoints import (
    IM_END,
    IM_START,
    SPECIALS,
    VOCAB,
    tiny_model,
    tokenizer_json,
    write_checkpoint,
)
from tests.support.dense import dense_greedy

transformers = pytest.importorskip("transformers")


def gap(value: float):
    return lambda index, reference, token: value


def test_equal_answers_are_equal() -> None:
    assert ties.compare([1, 2, 3], [1, 2, 3], gap(1.0)) is None
    assert ties.compare([], [], gap(1.0)) is None


def test_a_tie_ends_the_comparison_and_a_clear_preference_fails() -> None:
    calls = []

    def gap_at(index: int, reference: int, token: int) -> float:
        calls.append((index, reference, token))
        return 4e-3

    assert ties.compare([1, 9, 7], [1, 2, 3], gap_at) == 1
    assert calls == [(1, 2, 9)]
    for value in (5e-3, 0.1, float("nan")):
        with pytest.raises(AssertionError, match="token 1: 9 in place of 2"):
            ties.compare([1, 9], [1, 2], gap(value))
    assert ties.compare([1, 9], [1, 2], gap(0.2), "bfloat16") == 1
    with pytest.raises(AssertionError):
        ties.compare([1, 9], [1, 2], gap(0.25), "bfloat16")


def test_an_answer_that_is_too_short_or_too_long_fails() -> None:
    for ids in ([1], [1, 2, 3], []):
        with pytest.raises(AssertionError, match="tokens against"):
            ties.compare(ids, [1, 2], gap(0.0))


def test_at_most_one_answer_in_twenty_may_end_in_a_tie() -> None:
    counter = ties.TieCounter()
    for index in range(40):
        counter.compare([index in (3, 7)], [False], gap(1e-3), f"answer {index}")
    counter.check()
    counter.compare([1], [0], gap(1e-3), "one more")
    with pytest.raises(AssertionError, match="3 of 41 answers end in a tie: answer 3 at token 0"):
        counter.check()
    loose = ties.TieCounter("bfloat16")
    for _ in range(5):
        loose.compare([1], [0], gap(0.1))
    loose.check()


@pytest.mark.parametrize("arch", ["qwen2", "qwen3", "llama"])
@pytest.mark.parametrize("tie", [False, True])
@pytest.mark.parametrize("vocab", [32, VOCAB])
def test_greedy_answers_of_tiny_models_wander(arch: str, tie: bool, vocab: int) -> None:
    for seed in range(3):
        model, config = tiny_model(arch, seed=seed, vocab=vocab, tie_word_embeddings=tie)
        answer = dense_greedy(model, config, [1, 2, 3, 4], 40)
        assert len(answer) == 40
        assert len(set(answer)) >= (10 if vocab == 32 else 20)


def test_a_stop_id_ends_the_dense_answer() -> None:
    model, config = tiny_model()
    answer = dense_greedy(model, config, [5, 6, 7], 20)
    assert dense_greedy(model, config, [5, 6, 7], 20, {answer[4]}) == answer[: answer.index(answer[4]) + 1]


def test_files_and_memory_hold_the_same_weights(tmp_path: Path) -> None:
    for arch in ("qwen2", "llama"):
        stored = load_file(write_checkpoint(tmp_path / arch, arch, seed=3) / "model.safetensors")
        model, _ = tiny_model(arch, torch.float32, seed=3)
        assert all(torch.equal(stored[name], view) for name, view in model.checkpoint_parameters().items())


def test_shards_hold_the_whole_and_transformers_reads_them(tmp_path: Path) -> None:
    one = write_checkpoint(tmp_path / "one", "qwen3", dtype=torch.bfloat16)
    two = write_checkpoint(tmp_path / "two", "qwen3", dtype=torch.bfloat16, shards=2)
    files = sorted(two.glob("*.safetensors"))
    assert len(files) == 2
    merged = load_file(files[0]) | load_file(files[1])
    whole = load_file(one / "model.safetensors")
    assert merged.keys() == whole.keys()
    assert all(torch.equal(merged[name], whole[name]) and whole[name].dtype == torch.bfloat16 for name in whole)
    reference = transformers.AutoModelForCausalLM.from_pretrained(two)
    assert reference.dtype == torch.bfloat16
    assert torch.equal(reference.lm_head.weight, whole["lm_head.weight"])


def test_the_tokenizer_is_the_same_every_time_and_in_transformers(tmp_path: Path) -> None:
    first = tokenizer_json()
    tokenizer_json.cache_clear()
    assert tokenizer_json() == first
    reference = transformers.AutoTokenizer.from_pretrained(write_checkpoint(tmp_path))
    assert len(reference) == VOCAB
    assert reference.convert_tokens_to_ids(list(SPECIALS)) == [VOCAB - 3, IM_START, IM_END]
    text = "The bada of kibo, isn't it?\n<|im_end|> héllo 😀"
    ids = reference(text).input_ids
    assert reference.decode(ids) == text
    assert IM_END in ids
    chat = reference.apply_chat_template([{"role": "user", "content": "Hi"}], add_generation_prompt=True)["input_ids"]
    assert reference.decode(chat) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


def test_real_checkpoints_are_looked_for_where_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MINI_INFER_TEST_DOWNLOAD", raising=False)
    monkeypatch.setenv("MINI_INFER_TEST_MODELS", str(tmp_path))
    with pytest.raises(pytest.skip.Exception, match=f"no {real.QWEN} in {tmp_path}"):
        real.real_checkpoint(real.QWEN)
    folder = write_checkpoint(tmp_path / real.QWEN)
    assert real.real_checkpoint(real.QWEN) == folder
    monkeypatch.delenv("MINI_INFER_TEST_MODELS")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert real.models_folder() == Path("/somewhere/mini-infer-test-models")
