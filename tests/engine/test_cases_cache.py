"""The cache and scheduler cases on the whole engine: each answer is the reference's, each count is right."""

from __future__ import annotations

import random

import pytest

from mini_infer.errors import UserError
from mini_infer.intake import ContextLengthError
from mini_infer.sampling.params import SamplingParams
from tests.support.engines import Run, expected_greedy, expected_logprobs, prompt, run_all, run_one, tiny_engine


def greedy(count, **more):
    return SamplingParams(temperature=0, max_tokens=count, **more)


def is_idle(engine):
    pool = engine.scheduler.pool
    return not engine.scheduler.sequences and pool.num_free == pool.num_blocks


def test_S01_an_all_hit_prompt_twice_with_logprobs():
    engine = tiny_engine()
    ids = prompt(32)
    first, second = (run_one(engine, ids, greedy(12, logprobs=4)) for _ in range(2))
    assert first.token_ids == second.token_ids == tuple(expected_greedy(ids, 12))
    want = expected_logprobs([*ids, *first.token_ids], 32)
    for result in (first, second):
        assert [t.logprob for t in result.logprobs] == pytest.approx(want, abs=1e-9)
    assert [[i for i, _ in t.top] for t in first.logprobs] == [[i for i, _ in t.top] for t in second.logprobs]
    assert (first.usage.cached_tokens, second.usage.cached_tokens) == (0, 16)


@pytest.mark.parametrize("caching", [True, False])
def test_S18_every_boundary_twice(caching):
    """7 prompt lengths × 4 answer lengths, twice each: with and without the cache 112 runs."""
    runs = 0
    for length in (1, 15, 16, 17, 31, 32, 33):
        for count in (1, 15, 16, 17):
            engine = tiny_engine(prefix_cache=caching)
            ids = prompt(length, seed=1000 + length)
            for again in range(2):
                result = run_one(engine, ids, greedy(count))
                assert list(result.token_ids) == expected_greedy(ids, count), (length, count, again)
                assert result.usage.cached_tokens == (again and caching and (length - 1) // 16 * 16)
                assert is_idle(engine)
                runs += 1
    assert runs == 56


def test_S06_refused_requests_leave_nothing():
    engine = tiny_engine(num_blocks=8, max_model_len=100)
    run = Run(engine)
    good = []
    for i in range(200):
        too_long = prompt(100 + i % 30)
        with pytest.raises(ContextLengthError) as refused:
            engine.add_request(too_long, greedy(5))
        assert (refused.value.prompt_tokens, refused.value.limit) == (len(too_long), 100)
        assert str(len(too_long)) in str(refused.value)
        assert "100" in str(refused.value)
        if i % 10 == 0:
            good.append(prompt(1 + i % 99, seed=i))
            run.add(good[-1], greedy(4))
    for ids, result in zip(good, run.finish(), strict=True):
        assert list(result.token_ids) == expected_greedy(ids, min(4, 100 - len(ids)))
    assert is_idle(engine)
    assert engine.snapshot().totals.requests == 20


def test_the_context_and_the_pool_are_filled_to_the_last_token():
    for options, room in (({"max_model_len": 50}, 50), ({"num_blocks": 3, "max_model_len": 400}, 48)):
        for length in (room - 3, room - 2, room - 1):
            engine = tiny_engine(**options)
            ids = prompt(length, seed=length)
            result = run_one(engine, ids, SamplingParams(temperature=0))
            # the last token of all needs no row: a pool that is full can still draw one more
            most = room - length + ("num_blocks" in options)
            assert result.finish_reason == "length"
            assert list(result.token_ids) == expected_greedy(ids, most)
        with pytest.raises(ContextLengthError):
            engine.add_request(prompt(room))


def test_S10_recomputed_tokens_are_neither_prompt_nor_output():
    jobs = [(prompt(10 + i, seed=i), greedy(50)) for i in range(5)]
    engine = tiny_engine(num_blocks=24, block_size=4, max_running=5)
    results = run_all(engine, jobs)
    assert engine.scheduler.preemptions >= 5
    for (ids, params), result in zip(jobs, results, strict=True):
        alone = run_one(tiny_engine(), ids, params)
        for name in ("prompt_tokens", "completion_tokens"):
            assert getattr(result.usage, name) == getattr(alone.usage, name)
        assert result.usage.cached_tokens <= len(ids)
    totals = engine.snapshot().totals
    assert totals.prompt_tokens == sum(len(ids) for ids, _ in jobs)
    assert totals.output_tokens == 250
    assert totals.recomputed_tokens == sum(r.usage.recomputed_tokens for r in results) > 0


def test_S13_blocks_of_ended_requests_are_evicted():
    engine = tiny_engine(num_blocks=12)
    for i in range(30):
        ids = prompt(100, seed=i)
        assert list(run_one(engine, ids, greedy(3)).token_ids) == expected_greedy(ids, 3)
        assert is_idle(engine)
    assert engine.snapshot().totals.evictions > 100


@pytest.mark.parametrize("caching", [True, False])
def test_S15_cached_tokens_are_counted_right(caching):
    engine = tiny_engine(prefix_cache=caching)
    ids = prompt(50)
    turns = [ids, ids, [*ids[:-1], 1], [1, *ids[1:]]]
    found = [run_one(engine, turn, greedy(2)).usage.cached_tokens for turn in turns]
    assert found == ([0, 48, 48, 0] if caching else [0, 0, 0, 0])
    assert engine.snapshot().totals.cached_tokens == sum(found)


def test_S19_a_long_prompt_does_not_stop_answers_that_run():
    run = Run(tiny_engine(num_blocks=200, max_chunk=64, max_batch_tokens=128))
    short = [run.add(prompt(5 + i, seed=i), greedy(60)) for i in range(3)]
    for _ in range(4):
        run.step()
    long = prompt(1500, seed=9)
    late = run.add(long, greedy(2))
    results = run.finish()
    for i, result in enumerate(results[:3]):
        assert list(result.token_ids) == expected_greedy(prompt(5 + i, seed=i), 60)
    told = {i: [n for n, report in enumerate(run.reports) if any(s == i for s, _ in report)] for i in short}
    for steps in told.values():
        assert steps == list(range(steps[0], steps[0] + 60))  # a token in every step
    first_late = next(n for n, report in enumerate(run.reports) if any(s == late for s, _ in report))
    assert first_late - 4 == -(-1500 // 64) - 1


def test_S08_a_big_request_and_small_ones_all_get_through():
    """16 blocks; six clients that ask again at once, and one prompt that needs ten of the blocks."""
    engine = tiny_engine(num_blocks=16, max_running=8)
    run = Run(engine)
    rng = random.Random(0)
    small: dict[str, list[int]] = {}

    def refill():
        while sum(i not in run.results for i in small) < 6:
            ids = prompt(rng.randrange(4, 20), seed=rng.randrange(10**6))
            small[run.add(ids, greedy(6))] = ids

    refill()
    for _ in range(30):
        run.step()
        refill()
    big_ids = prompt(150, seed=77)
    big = run.add(big_ids, greedy(5))
    waited = 0
    while big not in run.results:
        run.step()
        refill()
        waited += 1
        assert waited < 120, "the big request waits for ever"
    before = len(run.results)
    for _ in range(60):
        run.step()
        refill()
    assert len(run.results) > before + 20
    assert list(run.results[big].token_ids) == expected_greedy(big_ids, 5)
    for request_id, ids in list(small.items())[:60]:
        if request_id in run.results:
            assert list(run.results[request_id].token_ids) == expected_greedy(ids, 6)


def test_S21_partial_tails_do_not_push_full_blocks_out():
    engine = tiny_engine(num_blocks=12)
    prompts = [prompt(65, seed=1), prompt(65, seed=2)]
    for turn in range(10):
        for ids in prompts:
            result = run_one(engine, ids, greedy(1))
            assert list(result.token_ids) == expected_greedy(ids, 1)
            assert result.usage.cached_tokens == (64 if turn else 0)


def test_salts_keep_equal_prompts_apart():
    engine = tiny_engine()
    ids = prompt(40)
    found = []
    for salt in ("a", "b", "a"):
        run = Run(engine)
        run.add(ids, greedy(5), cache_salt=salt)
        (result,) = run.finish()
        assert list(result.token_ids) == expected_greedy(ids, 5)
        found.append(result.usage.cached_tokens)
    assert found == [0, 0, 32]


def test_a_refused_request_takes_no_number():
    engine = tiny_engine()
    for bad in ([], [384], [-1], [0.5 + 384]):
        with pytest.raises(UserError):
            engine.add_request(bad)
    assert engine.add_request([1]) == "r1"
    with pytest.raises(KeyError):
        engine.is_finished("r2")
