"""The pair that comes with the package: what it is, what it says, and that it is what runs where nothing is named."""

from __future__ import annotations

import json

import pytest

from mini_infer import LLM, EngineConfig, SamplingParams
from mini_infer.build import build_engine
from mini_infer.demo import DRAFT, MODELS, TARGET, evaluate, measure
from mini_infer.demo.corpus import SYSTEM_PROMPT
from mini_infer.demo.train import CORPUS
from mini_infer.errors import UserError
from mini_infer.models.config import ModelConfig
from tests.support.checkpoints import write_checkpoint


@pytest.fixture(scope="module")
def llm():
    return LLM()


def parameters(folder):
    header = (folder / "model.safetensors").read_bytes()[:1_000_000]
    size = int.from_bytes(header[:8], "little")
    tensors = {k: v for k, v in json.loads(header[8 : 8 + size]).items() if k != "__metadata__"}
    assert {t["dtype"] for t in tensors.values()} == {"BF16"}
    return sum(t["data_offsets"][1] - t["data_offsets"][0] for t in tensors.values()) // 2


def test_its_size_is_as_promised():
    target, draft = ModelConfig.from_folder(TARGET), ModelConfig.from_folder(DRAFT)
    assert (target.num_layers, target.max_position_embeddings) == (6, 1024)
    assert draft.num_layers <= 2
    assert 5_000_000 <= parameters(TARGET) <= 6_000_000
    assert parameters(DRAFT) <= 1_300_000
    files = [file for file in MODELS.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) <= 16_000_000
    assert {file.name for file in files} == {
        "README.md", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
        "tokenizer_config.json",
    }  # fmt: skip
    assert CORPUS in (MODELS / "README.md").read_text(encoding="utf-8")


def test_both_have_one_tokenizer():
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (TARGET / name).read_bytes() == (DRAFT / name).read_bytes()


def test_it_is_what_runs_where_nothing_is_named(llm):
    assert llm.engine.proposer is not None and llm.engine.proposer.name == "draft"
    assert (EngineConfig().model, EngineConfig().drafter) == ("demo", "demo")
    assert EngineConfig(draft="ngram").drafter == "ngram"
    assert EngineConfig(model="owner/name").drafter == "none"


@pytest.mark.parametrize(("draft", "name"), [("none", None), ("ngram", "ngram"), ("demo", "draft")])
def test_the_draft_can_be_chosen(draft, name):
    proposer = build_engine(EngineConfig(draft=draft)).proposer
    assert (proposer.name if proposer else None) == name


def test_its_draft_does_not_fit_other_models(tmp_path):
    write_checkpoint(tmp_path)
    with pytest.raises(UserError, match="--draft"):
        build_engine(EngineConfig(model=str(tmp_path), draft="demo"))


def test_the_system_prompt_is_long_enough_to_be_shared(llm):
    one, two = llm.encode_chat("Hello"), llm.encode_chat("What is a block?")
    shared = next(i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b)
    assert shared >= 64
    assert SYSTEM_PROMPT in llm.tokenizer.decode(one)
    params = SamplingParams(temperature=0, max_tokens=1)
    fresh = LLM()
    fresh.chat("Hello", params)
    assert fresh.chat("What is a block?", params).usage.cached_tokens >= 64


def test_unseen_stories_and_wordings_pass_the_rules():
    passed, asked = evaluate.evaluate(TARGET, 8, 11)
    assert asked == 16
    assert passed >= 0.9 * asked


def test_the_answers_are_those_of_the_target_alone_and_the_draft_guesses_most_of_them():
    found, target_ms, draft_ms = measure.measure(MODELS, 3, 1, 4)
    assert target_ms > 0 and draft_ms > 0
    assert found["story"].acceptance >= 0.6
    assert found["tour"].acceptance >= 0.7
    assert sum(f.equal for f in found.values()) >= 5  # in bfloat16 a near tie may go either way


def test_it_says_what_it_is_and_copies(llm):
    greedy = SamplingParams(temperature=0, max_tokens=60)
    assert "tiny demo model" in llm.chat("Hello!", greedy).text
    results = [llm.chat(text, greedy).finish_reason for text in ("Thank you!", "What is the capital of France?")]
    assert results == ["stop", "stop"]


@pytest.mark.timing
def test_it_is_loaded_in_under_a_second():
    import time

    import torch  # noqa: F401  (not a part of the loading)

    build_engine(EngineConfig())  # imports
    start = time.perf_counter()
    build_engine(EngineConfig())
    assert time.perf_counter() - start < 1.0
