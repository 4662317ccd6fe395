"""Greedy answers of the whole engine equal the dense reference, id for id, in float64: whatever the chunks, the cache,
the company, the preemptions and the forks."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from mini_infer.sampling.params import SamplingParams
from tests.support.engines import (
    Run,
    choices,
    expected_greedy,
    expected_logprobs,
    greedy_ids,
    preempt_when,
    prompt,
    run_all,
    run_one,
    tiny_engine,
)

ARCHS = ("qwen2", "qwen3", "llama")
EDGES = (15, 16, 17, 32)


def greedy(count, **more):
    return SamplingParams(temperature=0, max_tokens=count, **more)


# --- chunks and blocks ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ARCHS)
def test_every_chunk_size(arch):
    ids = prompt(37)
    want = expected_greedy(ids, 20, arch)
    sizes = range(1, 39) if arch == "qwen2" else (1, 7, 15, 16, 17, 36, 37)
    for size in sizes:
        assert greedy_ids(tiny_engine(arch, max_chunk=size), ids, 20) == want, f"chunks of {size}"


@pytest.mark.parametrize("block_size", [1, 3, 16, 64])
def test_every_block_size(block_size):
    ids = prompt(37)
    for size in (5, 37):
        engine = tiny_engine(num_blocks=200, block_size=block_size, max_chunk=size)
        assert greedy_ids(engine, ids, 20) == expected_greedy(ids, 20)
        assert greedy_ids(engine, ids, 20) == expected_greedy(ids, 20)  # on its own cached blocks


# --- the prefix cache -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("length", EDGES)
def test_hits_of_every_depth_and_misses(arch, length):
    """A prompt, again (an all-hit one computes its last block anew), continued, and changed at either end."""
    ids = prompt(length, seed=length)
    answer = expected_greedy(ids, 18, arch)
    turns = [ids, ids, ids + answer + prompt(5, 9), [*ids[:-1], 7], [7, *ids[1:]], [*ids, 3], ids[:-1]]
    for engine in (tiny_engine(arch, max_chunk=9), tiny_engine(arch, prefix_cache=False)):
        for turn in turns:
            assert greedy_ids(engine, turn, 18) == expected_greedy(turn, 18, arch)


def test_the_second_turn_hits_blocks_of_prompt_and_answer():
    ids = prompt(20)
    engine = tiny_engine()
    first = run_one(engine, ids, greedy(30))
    second_ids = [*ids, *first.token_ids, *prompt(4, 1)]
    second = run_one(engine, second_ids, greedy(10))
    assert second.usage.cached_tokens == 48  # 49 rows stood: the 50th token was never computed
    assert list(second.token_ids) == expected_greedy(second_ids, 10)


def test_a_prompt_is_shared_while_it_is_still_read():
    ids = prompt(60)
    run = Run(tiny_engine(max_chunk=16))
    run.add(ids, greedy(8))
    run.step()
    run.step()  # 32 of its 60 rows stand
    run.add(ids[:40], greedy(8))
    first, second = run.finish()
    assert second.usage.cached_tokens == 32
    assert list(second.token_ids) == expected_greedy(ids[:40], 8)
    assert list(first.token_ids) == expected_greedy(ids, 8)


# --- preemption -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("caching", [True, False])
def test_preempted_once_at_every_step(arch, caching):
    """In the middle of its prompt, at its first decode, at block edges: one run for each step of the answer."""
    ids = prompt(27)
    want = expected_greedy(ids, 10, arch)
    for victim_of_step in range(2, 14):
        engine = tiny_engine(arch, max_chunk=8, prefix_cache=caching)
        preempt_when(engine, lambda seq, e=engine, at=victim_of_step: e.scheduler.step + 1 == at)
        result = run_one(engine, ids, greedy(10))
        assert list(result.token_ids) == want, f"preempted in step {victim_of_step}"
        assert result.usage.preemptions == (victim_of_step <= 13)
        assert (result.usage.prompt_tokens, result.usage.completion_tokens) == (27, 10)


@pytest.mark.parametrize("caching", [True, False])
def test_preempted_after_every_step(caching):
    """Each step of progress is lost at once, or would be: without the cache a resumed one begins at row 0."""
    ids = prompt(27)
    engine = tiny_engine(prefix_cache=caching)
    served: set[str] = set()

    def asked(seq):
        return seq.seq_id not in served or served.remove(seq.seq_id)

    def serve_next(step):
        served.update(s.seq_id for s in engine.scheduler.running if step % 2)

    result = run_one(engine, ids, greedy(20), before_step=serve_next)
    assert list(result.token_ids) == expected_greedy(ids, 20)
    preempt_when(engine, asked)
    again = run_one(engine, ids, greedy(20), before_step=serve_next)
    assert list(again.token_ids) == expected_greedy(ids, 20)
    assert again.usage.preemptions >= 10


def test_8_requests_in_a_pool_that_holds_less_than_half_of_them():
    jobs = [(prompt(length, seed=length), greedy(60)) for length in (3, 15, 16, 17, 5, 8, 33, 1)]
    for caching in (True, False):
        engine = tiny_engine(num_blocks=30, block_size=4, max_running=8, max_chunk=24, prefix_cache=caching)
        results = run_all(engine, jobs)
        assert engine.scheduler.preemptions >= 5
        for (ids, _), result in zip(jobs, results, strict=True):
            assert list(result.token_ids) == expected_greedy(ids, 60)
            assert result.finish_reason == "length"
            assert (result.usage.prompt_tokens, result.usage.completion_tokens) == (len(ids), 60)
            assert result.usage.cached_tokens < len(ids)
        assert sum(r.usage.preemptions for r in results) == engine.scheduler.preemptions


# --- company --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ARCHS)
def test_4_requests_of_different_lengths_give_what_each_gives_alone(arch):
    jobs = [(prompt(length, seed=length), greedy(count)) for length, count in ((1, 30), (9, 12), (33, 25), (70, 5))]
    for options in ({}, {"max_chunk": 5}, {"max_batch_tokens": 7, "max_running": 4}):
        together = run_all(tiny_engine(arch, **options), jobs)
        for (ids, params), result in zip(jobs, together, strict=True):
            alone = run_one(tiny_engine(arch, **options), ids, params)
            assert result.token_ids == alone.token_ids
            assert list(result.token_ids) == expected_greedy(ids, params.max_tokens, arch)


def test_requests_that_come_and_go_at_any_time():
    run = Run(tiny_engine(num_blocks=20, max_running=3, max_chunk=7, max_batch_tokens=16))
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


LENGTHS_S11 = (1, 2, 5, 9, 15, 16, 17, 31, 32, 33, 48, 70)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_S11_12_prompts_alone_and_at_once_give_the_same_ids_and_logprobs(dtype):
    jobs = [(prompt(length, seed=100 + length), greedy(40, logprobs=3)) for length in LENGTHS_S11]
    together = run_all(tiny_engine(dtype=dtype), jobs)
    alone = [run_one(tiny_engine(dtype=dtype), ids, params) for ids, params in jobs]
    exact = dtype == torch.float64
    for (ids, _), one, other in zip(jobs, alone, together, strict=True):
        assert one.token_ids == other.token_ids
        found = [t.logprob for t in other.logprobs]
        assert found == pytest.approx([t.logprob for t in one.logprobs], abs=1e-9 if exact else 1e-4)
        assert [t.token_id for t in other.logprobs] == list(other.token_ids)
        if exact:
            assert list(one.token_ids) == expected_greedy(ids, 40)
            want = expected_logprobs([*ids, *one.token_ids], len(ids))
            assert found == pytest.approx(want, abs=1e-9)


# --- forks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", (*EDGES, 31, 33))
def test_forks_share_what_they_have_and_write_apart(length):
    ids = prompt(length)
    engine = tiny_engine(max_chunk=10)
    for _ in range(2):  # cold, then on cached blocks
        result = run_one(engine, ids, greedy(20, n=4))
        assert choices(result) == [tuple(expected_greedy(ids, 20))] * 4
        assert result.usage.completion_tokens == 80
        assert result.usage.prompt_tokens == length


def test_forks_under_preemption_in_a_small_pool():
    jobs = [(prompt(length, seed=length), greedy(40, n=n)) for length, n in ((20, 3), (33, 2), (7, 1), (16, 4))]
    engine = tiny_engine(num_blocks=40, block_size=4, max_running=6)
    results = run_all(engine, jobs)
    assert engine.scheduler.preemptions >= 5
    for (ids, params), result in zip(jobs, results, strict=True):
        assert choices(result) == [tuple(expected_greedy(ids, 40))] * params.n


def test_reports_iterate_over_ids_in_order_with_a_choice_where_there_are_several():
    run = Run(tiny_engine())
    plain, forked = run.add(prompt(5), greedy(4)), run.add(prompt(9), greedy(3, n=2))
    run.finish()
    pairs = [pair for report in run.reports for pair in report]
    for name, ids, count in ((plain, prompt(5), 4), (f"{forked}/0", prompt(9), 3), (f"{forked}/1", prompt(9), 3)):
        assert [token for seq_id, token in pairs if seq_id == name] == expected_greedy(ids, count)
    assert len(pairs) == 10
    assert all(a.seq + 1 == b.seq for a, b in pairwise(run.reports))
