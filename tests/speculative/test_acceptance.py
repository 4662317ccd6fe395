"""Where draft and target are one model every draft is right, at every position and whatever happens in between: a
stale, missing or misplaced draft row would show as a rejection."""

from __future__ import annotations

import pytest
import torch

from mini_infer.config import EngineConfig
from mini_infer.engine import InferenceEngine
from mini_infer.models.loader import load_model_from_safetensors
from mini_infer.models.runner import ModelRunner
from mini_infer.results import GenerationResult
from mini_infer.sampling.params import SamplingParams
from mini_infer.speculative.adaptive import Fixed
from mini_infer.speculative.draft_model import DraftModel
from mini_infer.text.tokenizer import Tokenizer
from tests.support.engines import preempt_when, prompt, run_all
from tests.support.speculation import spec_all, spec_engine, totals

SAMPLED = SamplingParams(temperature=1, max_tokens=300)
GREEDY = SamplingParams(temperature=0, max_tokens=300)
SEEDED = SamplingParams(temperature=1, seed=3, max_tokens=300)
SHAPED = SamplingParams(temperature=0.9, top_k=50, presence_penalty=1, repetition_penalty=1.2, max_tokens=300)


def check_all_accepted(result: GenerationResult, k: int) -> None:
    usage = result.usage
    assert usage.drafted == usage.accepted > 0
    assert usage.accepted_by_position == usage.judged_by_position
    assert len(usage.judged_by_position) == k


@pytest.mark.parametrize("params", [GREEDY, SAMPLED, SEEDED, SHAPED])
@pytest.mark.parametrize("k", [1, 4, 8])
def test_300_tokens_without_a_rejection(params, k):
    (result,) = spec_all(spec_engine("good", k, entropy_seed=0), [(prompt(37), params)])
    check_all_accepted(result, k)
    # the first token is the prompt's; K drafts and a bonus at a time, fewer at the end
    assert result.usage.steps <= 2 + -(-299 // (k + 1))


@pytest.mark.parametrize("params", [GREEDY, SAMPLED, SEEDED])
@pytest.mark.parametrize("caching", [True, False])
def test_after_a_preemption_too(params, caching):
    for at in (6, 7, 21, 40):
        engine = spec_engine("good", 4, entropy_seed=0, prefix_cache=caching)
        preempt_when(engine, lambda seq, e=engine, at=at: e.scheduler.step + 1 == at)
        (result,) = spec_all(engine, [(prompt(37), params)])
        assert result.usage.preemptions == 1
        check_all_accepted(result, 4)


@pytest.mark.parametrize("params", [GREEDY, SAMPLED, SEEDED])
def test_after_a_prefix_hit_too(params):
    """On blocks whose draft rows are there, on some whose rows are missing, and on both in a row."""
    head = prompt(100)
    engine = spec_engine("good", (4, 4, 0, 4), entropy_seed=0, num_blocks=200)
    turns = [head, head[:70] + prompt(9, 1), head + prompt(60, 2), head + prompt(60, 2) + prompt(3, 3)]
    for index, turn in enumerate(turns):
        (result,) = spec_all(engine, [(turn, params)])
        assert (result.usage.cached_tokens > 0) == (index > 0)
        if index == 2:
            assert result.usage.drafted == 0
        else:
            check_all_accepted(result, 4)


def test_in_company_under_pressure_and_forked():
    jobs = [(prompt(20 + 3 * i, seed=i), SamplingParams(temperature=1, max_tokens=60, n=1 + i % 3)) for i in range(6)]
    engine = spec_engine("good", (4, 8, 1), num_blocks=70, block_size=4, max_running=6, entropy_seed=0)
    spec_all(engine, jobs)
    assert totals(engine)["preemptions"] > 3
    assert totals(engine)["drafted"] == totals(engine)["accepted"] > 200


def test_draft_rows_of_valid_blocks_are_those_of_their_tokens():
    """The bits and counters against the tensors: all rows that are said to stand do, in every block that is held."""
    engine = spec_engine("good", (4, 0, 8, 2), num_blocks=26, block_size=8, max_running=5, entropy_seed=0)
    target, draft = engine.runner.kv.data, engine.proposer.runner.kv.data  # same model: same rows
    checked = 0

    def check(step: int) -> None:
        nonlocal checked
        pool = engine.scheduler.pool
        for seq in engine.scheduler.running:
            assert all(pool.draft_valid[b] for b in seq.table.blocks[: seq.num_computed_draft // 8])
            for i, block in enumerate(seq.table.blocks):
                rows = min(8, max(0, seq.num_computed_draft - 8 * i))
                torch.testing.assert_close(draft[:, :, block, :rows], target[:, :, block, :rows], rtol=0, atol=1e-9)
                checked += rows
        for block in range(26):
            if pool.draft_valid[block] and (pool.ref[block] or pool.key[block] is not None):
                torch.testing.assert_close(draft[:, :, block], target[:, :, block], rtol=0, atol=1e-9)
                checked += 1

    heads = [prompt(40, 1), prompt(40, 2)]
    jobs = [
        (heads[i % 2][: 16 + 8 * (i % 4)] + prompt(5, 10 + i), SamplingParams(max_tokens=70, n=1 + i % 2))
        for i in range(12)
    ]
    spec_all(engine, jobs, before_step=check)
    assert totals(engine)["preemptions"]
    assert totals(engine)["cached_tokens"]
    assert checked > 5000


@pytest.mark.real
@pytest.mark.parametrize("temperature", [0, 1])
def test_smollm_drafting_for_itself_in_float32(smollm_folder, temperature):
    model, config = load_model_from_safetensors(smollm_folder, "cpu", "float32")
    tokenizer = Tokenizer.from_folder(smollm_folder)
    proposer = DraftModel(ModelRunner(model, config, 128, 16, "cpu"), Fixed(4), config.vocab_size)
    options = EngineConfig(entropy_seed=0)
    engine = InferenceEngine(model, config, 128, options=options, tokenizer=tokenizer, proposer=proposer)
    questions = ("Tell a story about a fox.", "Why is the sky blue?", "Name ten rivers.", "What is a prime number?")
    params = SamplingParams(temperature=temperature, max_tokens=100, ignore_eos=True)
    jobs = [(tokenizer.encode_chat([{"role": "user", "content": q}]), params) for q in questions]
    run_all(engine, jobs)
    assert totals(engine)["drafted"] > 300
    assert totals(engine)["accepted"] / totals(engine)["drafted"] >= 0.98
