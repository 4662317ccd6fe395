"""Log-probabilities of answers and prompts through the whole engine."""

from __future__ import annotations

import pytest
import torch

from mini_infer.errors import UserError
from mini_infer.observe.events import decode_report, encode
from mini_infer.sampling.params import SamplingParams
from tests.support.dense import dense_logits
from tests.support.engines import (
    Run,
    expected,
    expected_greedy,
    expected_logprobs,
    preempt_when,
    prompt,
    run_all,
    run_one,
    tiny,
    tiny_engine,
)

EXACT = 1e-9


def scored(count=4, top=2, **more):
    return SamplingParams(**{"temperature": 0, "max_tokens": count, "prompt_logprobs": top} | more)


def check_prompt_scores(ids, found, top, arch="qwen2"):
    assert len(found) == len(ids)
    assert found[0] is None
    model, config = tiny(arch)
    scores = dense_logits(model, config, ids).log_softmax(-1)
    for p, one in enumerate(found[1:], start=1):
        row = scores[p - 1]
        assert one.token_id == ids[p]
        assert one.logprob == pytest.approx(float(row[ids[p]]), abs=EXACT)
        assert one.rank == int((row > row[ids[p]]).sum()) + 1
        best = row.topk(top) if top else None
        assert [i for i, _ in one.top] == (best.indices.tolist() if top else [])
        assert [v for _, v in one.top] == pytest.approx(best.values.tolist() if top else [], abs=EXACT)


# --- of the answer --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["qwen2", "qwen3", "llama"])
def test_logprobs_are_those_of_the_reference_whatever_shapes_the_draw(arch):
    ids = prompt(20)
    for more in (
        {"temperature": 0},
        {"temperature": 0.3, "top_k": 2, "repetition_penalty": 2.0, "logit_bias": {3: 50}, "seed": 1},
    ):
        params = SamplingParams(max_tokens=10, logprobs=5, **more)
        result = run_one(tiny_engine(arch), ids, params)
        assert list(result.token_ids) == expected(ids, params, arch=arch)
        assert [t.token_id for t in result.logprobs] == list(result.token_ids)
        want = expected_logprobs([*ids, *result.token_ids], 20, arch)
        assert [t.logprob for t in result.logprobs] == pytest.approx(want, abs=EXACT)
        for one in result.logprobs:
            values = [value for _, value in one.top]
            assert values == sorted(values, reverse=True)
            assert len(values) == 5
            assert (one.rank == 1) == (one.top[0][0] == one.token_id)


def test_M17_as_many_alternatives_as_asked_for():
    jobs = [(prompt(9), SamplingParams(temperature=0, max_tokens=3, logprobs=n)) for n in (None, 0, 1, 5, 20)]
    off, none, one, five, twenty = run_all(tiny_engine(), jobs)
    assert off.logprobs == ()
    for result, top in ((none, 0), (one, 1), (five, 5), (twenty, 20)):
        assert [len(t.top) for t in result.logprobs] == [top] * 3
        assert [t.logprob for t in result.logprobs] == pytest.approx([t.logprob for t in none.logprobs], abs=EXACT)
    for bad in (-1, 21, 2.5, True):
        with pytest.raises(UserError, match="logprobs"):
            SamplingParams(logprobs=bad)


def test_logprobs_of_every_choice_and_of_the_end_token():
    ids = prompt(12)
    engine = tiny_engine(eos=tuple(range(0, 384, 7)))
    params = SamplingParams(temperature=1, seed=3, n=4, max_tokens=30, logprobs=0)
    result = run_one(engine, ids, params)
    assert any(c.finish_reason == "stop" for c in result.choices)
    for choice in result.choices:
        want = expected_logprobs([*ids, *choice.token_ids], 12)
        assert [t.logprob for t in choice.logprobs] == pytest.approx(want, abs=EXACT)


def test_a_report_with_logprobs_survives_json():
    run = Run(tiny_engine())
    run.add(prompt(9), scored(3, logprobs=2))
    run.finish()
    for report in run.reports:
        assert decode_report(encode(report)) == report


# --- of the prompt --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 33, 150])
def test_prompt_logprobs_are_those_of_the_reference_in_any_chunks(length):
    ids = prompt(length, seed=2)
    for chunk in (1, 7, 16, 128):
        result = run_one(tiny_engine(max_chunk=chunk), ids, scored())
        check_prompt_scores(ids, result.prompt_logprobs, 2)
        assert list(result.token_ids) == expected_greedy(ids, 4)


@pytest.mark.parametrize("arch", ["qwen3", "llama"])
def test_prompt_logprobs_of_the_other_architectures(arch):
    ids = prompt(40, seed=2)
    check_prompt_scores(ids, run_one(tiny_engine(arch), ids, scored(top=0)).prompt_logprobs, 0, arch)


def test_prompt_logprobs_take_no_hit_but_publish():
    engine = tiny_engine()
    ids = prompt(50)
    plain = SamplingParams(temperature=0, max_tokens=2)
    run_one(engine, ids, plain)
    for _ in range(2):
        result = run_one(engine, ids, scored())
        assert result.usage.cached_tokens == 0
        check_prompt_scores(ids, result.prompt_logprobs, 2)
    fresh = tiny_engine()
    run_one(fresh, ids, scored())
    assert run_one(fresh, ids, plain).usage.cached_tokens == 48


@pytest.mark.parametrize("at", range(1, 9))
def test_prompt_logprobs_survive_a_preemption_in_any_step(at):
    """In the middle of the prompt and after it; resuming may hit blocks, but none whose rows are not scored yet."""
    ids = prompt(40, seed=2)
    engine = tiny_engine(max_chunk=9)
    preempt_when(engine, lambda seq: engine.scheduler.step + 1 == at)
    result = run_one(engine, ids, scored(6))
    assert result.usage.preemptions == (at > 1)
    check_prompt_scores(ids, result.prompt_logprobs, 2)
    assert list(result.token_ids) == expected_greedy(ids, 6)


def test_prompt_logprobs_in_a_crowd_that_is_preempted():
    jobs = [(prompt(8 + 3 * i, seed=i), scored(30, top=1) if i % 2 else scored(30, top=None)) for i in range(7)]
    engine = tiny_engine(num_blocks=26, block_size=4, max_running=7, max_chunk=6)
    results = run_all(engine, jobs)
    assert engine.scheduler.preemptions >= 5
    for i, ((ids, _), result) in enumerate(zip(jobs, results, strict=True)):
        assert list(result.token_ids) == expected_greedy(ids, 30)
        if i % 2:
            check_prompt_scores(ids, result.prompt_logprobs, 1)
        else:
            assert result.prompt_logprobs is None


@pytest.mark.parametrize("length", [1, 16, 40])
@pytest.mark.parametrize("n", [1, 3])
def test_no_token_at_all_with_prompt_logprobs(length, n):
    engine = tiny_engine(max_chunk=16)
    ids = prompt(length, seed=2)
    run = Run(engine)
    run.add(ids, scored(0, n=n))
    run.add(prompt(5), SamplingParams(temperature=0, max_tokens=3))
    result, other = run.finish()
    assert [c.token_ids for c in result.choices] == [()] * n
    assert [c.finish_reason for c in result.choices] == ["length"] * n
    assert (result.usage.prompt_tokens, result.usage.completion_tokens) == (length, 0)
    assert result.timings.ttft_s is None
    check_prompt_scores(ids, result.prompt_logprobs, 2)
    assert list(other.token_ids) == expected_greedy(prompt(5), 3)
    with pytest.raises(UserError, match="max_tokens"):
        SamplingParams(max_tokens=0)


def test_prompt_logprobs_come_once_with_several_choices():
    ids = prompt(20)
    run = Run(tiny_engine())
    run.add(ids, scored(5, n=3, temperature=1, seed=1))
    (result,) = run.finish()
    check_prompt_scores(ids, result.prompt_logprobs, 2)
    told = [o for report in run.reports for o in report.outputs if o.prompt_logprobs is not None]
    assert [o.seq_id for o in told] == ["r1/0"]


def test_float32_prompt_logprobs_do_not_depend_on_the_chunks():
    ids = prompt(100)
    found = [
        [t.logprob for t in run_one(tiny_engine(dtype=torch.float32, max_chunk=c), ids, scored()).prompt_logprobs[1:]]
        for c in (1, 16, 100)
    ]
    assert found[0] == pytest.approx(found[1], abs=1e-4)
    assert found[0] == pytest.approx(found[2], abs=1e-4)
