"""Seeded answers of the whole engine equal blackboard sampling over the dense reference, id for id, in float64:
alone, batched, chunked, preempted, on cached blocks, forked."""

from __future__ import annotations

import pytest

from mini_infer.sampling.params import SamplingParams
from tests.support.engines import Run, choices, expected, preempt_when, prompt, run_all, run_one, tiny_engine

KINDS = {
    "plain": {},
    "top_k": {"temperature": 0.8, "top_k": 40},
    "top_p": {"temperature": 1.3, "top_p": 0.9},
    "min_p": {"temperature": 1.5, "min_p": 0.05},
    "repetition": {"temperature": 0.9, "repetition_penalty": 1.3},
    "presence and frequency": {"temperature": 0.9, "presence_penalty": 0.8, "frequency_penalty": 0.5},
    "bias": {"temperature": 1.0, "logit_bias": {3: 4.0, 250: -100, 17: 2.5}},
    "all": {
        "temperature": 0.9,
        "top_k": 60,
        "top_p": 0.95,
        "min_p": 0.01,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": -0.3,
        "logit_bias": {9: 3.0},
    },
}


def sampled(kind="plain", seed=7, count=16, **more):
    return SamplingParams(**{"temperature": 1.0} | KINDS[kind] | {"seed": seed, "max_tokens": count} | more)


@pytest.mark.parametrize("kind", KINDS)
def test_a_seeded_answer_is_the_same_whatever_happens_to_it(kind):
    ids, params = prompt(27), sampled(kind)
    want = tuple(expected(ids, params))
    assert run_one(tiny_engine(), ids, params).token_ids == want
    for options in ({"max_chunk": 1}, {"max_chunk": 10}, {"prefix_cache": False}, {"block_size": 5}):
        assert run_one(tiny_engine(**options), ids, params).token_ids == want, options
    engine = tiny_engine(max_chunk=9)
    assert run_one(engine, ids, params).token_ids == want
    assert run_one(engine, ids, params).token_ids == want  # hit
    for at in (2, 4, 5, 9, 14):
        engine = tiny_engine(max_chunk=9)
        preempt_when(engine, lambda seq, e=engine, at=at: e.scheduler.step + 1 == at)
        result = run_one(engine, ids, params)
        assert result.usage.preemptions == 1
        assert result.token_ids == want, f"preempted in step {at}"


def test_every_kind_at_once_in_a_small_pool():
    jobs = [(prompt(5 + 6 * i, seed=i), sampled(kind, seed=i, count=30)) for i, kind in enumerate(KINDS)]
    engine = tiny_engine(num_blocks=30, block_size=4, max_running=8, max_chunk=12)
    for (ids, params), result in zip(jobs, run_all(engine, jobs), strict=True):
        assert list(result.token_ids) == expected(ids, params)
    assert engine.scheduler.preemptions >= 5


@pytest.mark.parametrize("arch", ["qwen3", "llama"])
def test_the_other_architectures(arch):
    jobs = [(prompt(20 + i, seed=i), sampled(kind, seed=i)) for i, kind in enumerate(KINDS)]
    for (ids, params), result in zip(jobs, run_all(tiny_engine(arch), jobs), strict=True):
        assert list(result.token_ids) == expected(ids, params, arch=arch)


# --- n > 1 ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [15, 16, 17, 32])
def test_4_choices_of_one_seed_differ_and_are_the_same_each_time(length):
    ids, params = prompt(length, seed=3), sampled(n=4, count=20)
    want = [tuple(expected(ids, params, choice=choice)) for choice in range(4)]
    assert len(set(want)) == 4
    engine = tiny_engine()
    alone = [choices(run_one(engine, ids, params)) for _ in range(2)]
    assert alone == [want, want]
    mates = [(prompt(5 * i, seed=i), sampled(kind, seed=i, count=25)) for i, kind in enumerate(KINDS) if i]
    results = run_all(tiny_engine(max_running=16), [*mates[:4], (ids, params), *mates[4:]])
    assert choices(results[4]) == want
    for (mate, asked), result in zip(mates, [*results[:4], *results[5:]], strict=True):
        assert list(result.token_ids) == expected(mate, asked)


def test_choice_0_of_several_is_the_answer_of_one():
    ids = prompt(20)
    several = run_one(tiny_engine(), ids, sampled(n=3))
    assert several.token_ids == run_one(tiny_engine(), ids, sampled()).token_ids


def test_8_forked_requests_at_once_under_preemption():
    jobs = [(prompt(8 + 3 * i, seed=i), sampled(seed=i, count=20, n=1 + i % 4)) for i in range(8)]
    engine = tiny_engine(num_blocks=40, block_size=4, max_running=8, max_chunk=12)
    for (ids, params), result in zip(jobs, run_all(engine, jobs), strict=True):
        assert choices(result) == [tuple(expected(ids, params, choice=c)) for c in range(params.n)]
        assert result.usage.completion_tokens == 20 * params.n
    assert engine.scheduler.preemptions >= 5


def test_a_fork_in_the_step_of_its_copy_under_forced_preemption():
    """Every place at which a choice can be thrown out between the fork and the first private block."""
    ids, params = prompt(14), sampled(n=3, count=8)
    want = [tuple(expected(ids, params, choice=choice)) for choice in range(3)]
    for at in range(2, 8):
        for victim in range(3):
            engine = tiny_engine()
            preempt_when(engine, lambda seq, e=engine, at=at, v=victim: (e.scheduler.step + 1, seq.choice) == (at, v))
            result = run_one(engine, ids, params)
            assert choices(result) == want, (at, victim)
            assert result.usage.preemptions == 1


# --- without a seed -------------------------------------------------------------------------------------------------


def test_M06_unseeded_answers_differ_one_after_the_other_at_once_and_over_two_starts():
    ids, params = prompt(12), SamplingParams(temperature=1, max_tokens=12)
    engine = tiny_engine()
    in_turn = {run_one(engine, ids, params).token_ids for _ in range(8)}
    at_once = {result.token_ids for result in run_all(engine, [(ids, params)] * 8)}
    of_another = {run_one(tiny_engine(), ids, params).token_ids for _ in range(8)}
    for answers in (in_turn, at_once, of_another):
        assert len(answers) >= 7
    assert len(in_turn | at_once | of_another) >= 21


def test_the_entropy_seed_makes_unseeded_requests_repeatable_by_order_of_arrival():
    ids, params = prompt(12), SamplingParams(temperature=1, max_tokens=12)
    first, second = ([r.token_ids for r in run_all(tiny_engine(entropy_seed=5), [(ids, params)] * 4)] for _ in range(2))
    assert first == second
    assert len(set(first)) == 4
    other = [r.token_ids for r in run_all(tiny_engine(entropy_seed=6), [(ids, params)] * 4)]
    assert not set(other) & set(first)
    run = Run(tiny_engine(entropy_seed=5))
    run.add(ids, params)
    run.add(ids, sampled(seed=1))  # draws nothing from the source of seeds
    run.add(ids, params)
    assert [r.token_ids for r in run.finish()][::2] == first[:2]
