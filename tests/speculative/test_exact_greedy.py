"""With drafts, whoever makes them, greedy answers of the whole engine equal the dense reference in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from mini_infer.sampling.params import SamplingParams
from tests.support.engines import (
    choices,
    expected,
    expected_greedy,
    expected_logprobs,
    preempt_when,
    prompt,
    run_one,
    tiny_engine,
)
from tests.support.speculation import DRAFTS, SpecRun, spec_all, spec_engine, totals

LENGTHS = (1, 5, 15, 16, 17, 31, 32, 33)
EDGES = (15, 16, 17, 32)


def greedy(count: int, **more: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=count, **more)


def repeating(count: int) -> SamplingParams:
    """An answer that repeats itself, so that n-grams find something."""
    return greedy(count, frequency_penalty=-2)


JOBS = [(prompt(length, seed=length), repeating(30) if length % 2 else greedy(30)) for length in LENGTHS]
WANT = [expected(ids, params) for ids, params in JOBS]


def answers(results: Sequence[Any]) -> list[list[int]]:
    return [list(r.token_ids) for r in results]


# --- K and company --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("draft", DRAFTS)
def test_every_k_in_a_batch_of_8(draft):
    for k in range(9):
        engine = spec_engine(draft, k)
        assert answers(spec_all(engine, JOBS)) == WANT, f"K = {k}"
        drafted, accepted = totals(engine)["drafted"], totals(engine)["accepted"]
        assert bool(drafted) == bool(k)
        if draft == "good":
            assert drafted == accepted
        elif draft != "bad" and k:
            assert 0 < accepted < drafted


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("options", [{}, {"max_chunk": 5}, {"max_batch_tokens": 24, "max_running": 8}])
def test_a_batch_of_8_with_different_k(draft, options):
    for ks in ((0, 1, 2, 3, 4, 5, 7, 8), (8, 0, 8, 1, 0, 3, 2, 0)):
        assert answers(spec_all(spec_engine(draft, ks, **options), JOBS)) == WANT


@pytest.mark.parametrize("draft", DRAFTS)
def test_adaptive_k(draft):
    assert answers(spec_all(spec_engine(draft, "auto"), JOBS)) == WANT


@pytest.mark.parametrize("arch", ["qwen3", "llama"])
def test_the_other_architectures(arch):
    for draft in DRAFTS:
        results = spec_all(spec_engine(draft, 4, arch=arch), JOBS)
        assert answers(results) == [expected(ids, params, arch=arch) for ids, params in JOBS]


@pytest.mark.parametrize("block_size", [1, 3, 64])
def test_every_block_size(block_size):
    for draft in DRAFTS:
        engine = spec_engine(draft, 8, block_size=block_size, num_blocks=500)
        assert answers(spec_all(engine, JOBS)) == WANT
        assert answers(spec_all(engine, JOBS)) == WANT  # on cached blocks


def test_requests_that_come_and_go_at_any_time():
    for draft in DRAFTS:
        run = SpecRun(spec_engine(draft, (4, 8, 0, 2), num_blocks=20, max_running=3, max_chunk=7, max_batch_tokens=16))
        jobs = [(prompt(1 + 7 * i % 40, seed=i), 3 + 5 * i % 17) for i in range(14)]
        for ids, count in jobs:
            run.add(ids, greedy(count), priority=count % 3)
            run.step()
            if count % 4 == 0:
                gone = run.add(prompt(20, seed=count), greedy(30))
                run.step()
                run.engine.abort(gone)
        results = [r for r in run.finish() if r.finish_reason != "abort"]
        for (ids, count), result in zip(jobs, results, strict=True):
            assert list(result.token_ids) == expected_greedy(ids, count)


# --- preemption -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("caching", [True, False])
def test_preempted_once_at_every_step(draft, caching):
    ids, params = prompt(27), repeating(24)
    want = expected(ids, params)
    for victim_of_step in range(2, 40):
        engine = spec_engine(draft, 4, max_chunk=8, prefix_cache=caching)
        preempt_when(engine, lambda seq, e=engine, at=victim_of_step: e.scheduler.step + 1 == at)
        (result,) = spec_all(engine, [(ids, params)])
        assert list(result.token_ids) == want, f"preempted in step {victim_of_step}"
        if not result.usage.preemptions:
            assert victim_of_step > 5
            break
    else:
        raise AssertionError("never at its end")


@pytest.mark.parametrize("caching", [True, False])
def test_8_requests_in_a_pool_that_holds_less_than_half_of_them(caching):
    jobs = [(prompt(length, seed=length), greedy(60)) for length in (3, 15, 16, 17, 5, 8, 33, 1)]
    for draft in DRAFTS:
        engine = spec_engine(
            draft, (8, 3, 4, 0, 1, 5), num_blocks=30, block_size=4, max_running=8, max_chunk=24, prefix_cache=caching
        )
        results = spec_all(engine, jobs)
        assert totals(engine)["preemptions"] >= 5
        for (ids, _), result in zip(jobs, results, strict=True):
            assert list(result.token_ids) == expected_greedy(ids, 60)
            assert result.finish_reason == "length"
            assert (result.usage.prompt_tokens, result.usage.completion_tokens) == (len(ids), 60)


def test_a_request_that_fills_the_pool_alone_ends_where_it_ends_without_drafts():
    ids = prompt(20)
    plain = run_one(tiny_engine(num_blocks=12, block_size=4), ids, greedy(200))
    for draft in DRAFTS:
        (result,) = spec_all(spec_engine(draft, 8, num_blocks=12, block_size=4), [(ids, greedy(200))])
        assert (result.token_ids, result.finish_reason) == (plain.token_ids, "length")
    assert len(plain.token_ids) == 12 * 4 + 1 - 20


# --- the prefix cache -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("length", EDGES)
def test_hits_of_every_depth_and_misses(draft, length):
    ids = prompt(length, seed=length)
    answer = expected_greedy(ids, 18)
    turns = [ids, ids, ids + answer + prompt(5, 9), [*ids[:-1], 7], [7, *ids[1:]], [*ids, 3], ids[:-1]]
    for options in ({"max_chunk": 9}, {"prefix_cache": False}):
        engine = spec_engine(draft, 5, **options)
        for turn in turns:
            (result,) = spec_all(engine, [(turn, greedy(18))])
            assert list(result.token_ids) == expected_greedy(turn, 18)


@pytest.mark.parametrize("draft", ["good", "near", "bad"])
def test_hits_whose_draft_rows_are_missing(draft):
    """The first request never drafts: its blocks have no draft rows, and the others must read them anew."""
    head = prompt(64)
    jobs = [(head + prompt(n, seed=n), greedy(20)) for n in (3, 1, 9, 16, 5)]
    run = SpecRun(spec_engine(draft, (0, 4, 8, 1, 4)))
    run.add(*jobs[0])
    run.finish()
    assert not any(run.engine.scheduler.pool.draft_valid)
    for job in jobs[1:]:
        run.add(*job)
    for (ids, _), result in zip(jobs, run.finish(), strict=True):
        assert list(result.token_ids) == expected_greedy(ids, 20)
        assert result.usage.cached_tokens == (64 if ids is not jobs[0][0] else 0)
    assert (0, "LAG") in run.reasons("r2")


# --- forks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("length", [*EDGES, 31, 33])
def test_forks_share_what_they_have_and_write_apart(draft, length):
    ids, params = prompt(length), repeating(20)
    want = [tuple(expected(ids, params))] * 4
    engine = spec_engine(draft, 4, max_chunk=10)
    for _ in range(2):  # cold, then on cached blocks
        (result,) = spec_all(engine, [(ids, replace(params, n=4))])
        assert choices(result) == want
        assert result.usage.completion_tokens == 80
        assert sum(result.usage.accepted_by_position) == result.usage.accepted


@pytest.mark.parametrize("draft", DRAFTS)
def test_forks_under_preemption_in_a_small_pool(draft):
    jobs = [(prompt(length, seed=length), greedy(40, n=n)) for length, n in ((20, 3), (33, 2), (7, 1), (16, 4))]
    engine = spec_engine(draft, (4, 8), num_blocks=40, block_size=4, max_running=6)
    results = spec_all(engine, jobs)
    assert totals(engine)["preemptions"] >= 3
    for (ids, params), result in zip(jobs, results, strict=True):
        assert choices(result) == [tuple(expected_greedy(ids, 40))] * params.n


# --- where answers end ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("draft", ["near", "ngram"])
def test_S18_lengths_and_limits_at_block_edges_cached_or_not_each_twice(draft):
    for caching in (True, False):
        engine = spec_engine(draft, 4, prefix_cache=caching)
        for length in (1, 15, 16, 17, 31, 32, 33):
            ids = prompt(length, seed=50 + length)
            for count in (1, 15, 16, 17) * 2:
                (result,) = spec_all(engine, [(ids, greedy(count))])
                assert list(result.token_ids) == expected_greedy(ids, 17)[:count]
                assert result.finish_reason == "length"


@pytest.mark.parametrize("draft", DRAFTS)
def test_every_max_tokens_with_8_drafts(draft):
    ids = prompt(10)
    for count in range(1, 20):
        (result,) = spec_all(spec_engine(draft, 8), [(ids, greedy(count))])
        assert list(result.token_ids) == expected_greedy(ids, 20)[:count]


@pytest.mark.parametrize("draft", DRAFTS)
def test_P13_at_the_end_of_the_context(draft):
    engine = spec_engine(draft, 8, max_model_len=128)
    jobs = [(prompt(length, seed=length), SamplingParams(temperature=0)) for length in range(120, 128)]
    for (ids, _), result in zip(jobs, spec_all(engine, jobs), strict=True):
        assert list(result.token_ids) == expected_greedy(ids, 128 - len(ids))
        assert result.finish_reason == "length"


@pytest.mark.parametrize("draft", DRAFTS)
def test_P05_an_end_token_inside_an_accepted_run_ends_the_answer_there(draft):
    ids = prompt(12, seed=4)
    whole = expected_greedy(ids, 20)
    for index in range(10):
        end = whole[index]
        first = whole.index(end)
        engine = spec_engine(draft, 4, eos=(end,))
        run = SpecRun(engine)
        run.add(ids, greedy(20))
        (result,) = run.finish()
        assert list(result.token_ids) == whole[: first + 1]
        assert (result.finish_reason, result.choices[0].stop) == ("stop", end)
        assert result.usage.completion_tokens == first + 1
        if draft == "good":  # what was drafted after the end counts as neither drafted nor accepted
            rounds, rest = divmod(first, 5)  # after the first token each full round gives 4 drafts and a bonus
            assert result.usage.drafted == result.usage.accepted == 4 * rounds + rest
        own = spec_all(spec_engine(draft, 4), [(ids, greedy(20, stop_token_ids=[end]))])[0]
        assert own.token_ids == result.token_ids


# --- scores ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("draft", DRAFTS)
def test_log_probabilities_are_those_of_the_answer_and_of_no_draft(draft):
    jobs = [(ids, greedy(20, logprobs=3)) for ids, _ in JOBS]
    for (ids, _), result in zip(jobs, spec_all(spec_engine(draft, 4), jobs), strict=True):
        assert [t.token_id for t in result.logprobs] == list(result.token_ids)
        want = expected_logprobs([*ids, *result.token_ids], len(ids))
        assert [t.logprob for t in result.logprobs] == pytest.approx(want, abs=1e-9)
        assert all(t.rank == 1 and t.top[0][0] == t.token_id and len(t.top) == 3 for t in result.logprobs)


def test_prompt_log_probabilities_beside_drafts():
    for draft in DRAFTS:
        for ids in (prompt(17), prompt(33)):  # their last chunk is one row, of the prompt, and is not drafted for twice
            run = SpecRun(spec_engine(draft, 4, max_chunk=16))
            run.add(ids, greedy(12, prompt_logprobs=1, n=2))
            (result,) = run.finish()
            assert choices(result) == [tuple(expected_greedy(ids, 12))] * 2
            assert result.prompt_logprobs is not None
            found = [t.logprob for t in result.prompt_logprobs[1:] if t is not None]
            assert found == pytest.approx(expected_logprobs(ids, 1), abs=1e-9)


@pytest.mark.parametrize("draft", DRAFTS)
def test_penalties_bias_and_a_shortest_length_count_the_drafts_before(draft):
    ids = prompt(9, seed=2)
    shapes = (
        {"repetition_penalty": 1.4},
        {"presence_penalty": 1.1, "frequency_penalty": 0.6},
        {"logit_bias": {3: 2.0, 200: -100}},
        {"min_tokens": 9, "stop_token_ids": expected_greedy(ids, 3)},
    )
    jobs = [(ids, greedy(24, **shape)) for shape in shapes]
    for k in (2, 8):
        for (_, params), result in zip(jobs, spec_all(spec_engine(draft, k), jobs), strict=True):
            assert list(result.token_ids) == expected(ids, params)
