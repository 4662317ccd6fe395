"""Faults on the whole engine with a real (tiny) model: who is at fault ends, everybody else gets the right answer."""

from __future__ import annotations

import math

import pytest
import torch

from mini_infer.sampling.params import SamplingParams
from tests.support.engines import (
    Hooks,
    Run,
    choices,
    expected,
    expected_greedy,
    prompt,
    run_all,
    run_one,
    tiny_engine,
)
from tests.support.integrity import check_integrity
from tests.support.watch import Mirror


def greedy(count, **more):
    return SamplingParams(temperature=0, max_tokens=count, **more)


def seeded(count, **more):
    return SamplingParams(temperature=1, seed=4, max_tokens=count, **more)


def is_idle(engine):
    pool = engine.scheduler.pool
    return not engine.scheduler.sequences and pool.num_free == pool.num_blocks


class Watched(Run):
    """A run whose observer must see what is, after every report."""

    def __init__(self, engine):
        super().__init__(engine)
        self.mirror = Mirror()
        engine.attach(self.mirror)

    def take(self, report):
        super().take(report)
        assert self.mirror.state == self.engine.snapshot()


# --- run raises -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["first chunk", "second chunk", "decode"])
@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize("n", [1, 3])
def test_a_fault_tied_to_one_request_ends_that_one(when, place, n):
    engine = tiny_engine(max_chunk=16)
    hooks, run = Hooks(engine), Watched(engine)
    jobs = [(prompt(20 + i, seed=i), seeded(12, n=n if i == 1 else 1 + i // 2)) for i in range(4)]
    ids = [run.add(*job) for job in jobs]
    start = {"first chunk": 0, "second chunk": 16, "decode": 24}[when]

    def fail(batch):
        for span in batch.spans:
            if span.seq_id.split("/")[0] == ids[1] and span.kv_len > start:
                raise RuntimeError("cuda is unhappy")

    setattr(hooks, place, fail)
    results = run.finish()
    assert [r.finish_reason for r in results] == ["length", "error", "length", "length"]
    assert all(c.finish_reason == "error" and "cuda is unhappy" in c.error for c in results[1].choices)
    for i, (job, result) in enumerate(zip(jobs, results, strict=True)):
        for choice in result.choices:
            right = expected(*job, choice=choice.index)
            assert list(choice.token_ids) == (right[: len(choice.token_ids)] if i == 1 else right)
    assert is_idle(engine)
    assert not hooks.kv.isnan().any()
    setattr(hooks, place, lambda batch: None)
    assert list(run_one(engine, jobs[1][0], greedy(12)).token_ids) == expected_greedy(jobs[1][0], 12)


@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize("options", [{}, {"num_blocks": 26, "block_size": 4, "max_chunk": 7}])
def test_a_fault_that_does_not_come_again_ends_nobody_in_whatever_step_it_comes(place, options):
    """Prefills, forks, copies of shared blocks, preemptions: each step in turn is run twice."""
    jobs = [(prompt(9 + 5 * i, seed=i), seeded(10, n=1 + i % 3)) for i in range(4)]
    want = [[tuple(expected(*job, choice=c)) for c in range(job[1].n)] for job in jobs]
    at = steps = 0
    while at <= steps:
        engine = tiny_engine(max_running=6, **options)
        hooks, run = Hooks(engine), Watched(engine)

        def fail(batch, hooks=hooks, at=at):
            if len(hooks.batches) == at + (place == "after"):
                setattr(hooks, place, lambda batch: None)
                raise RuntimeError("once")

        setattr(hooks, place, fail)
        for job in jobs:
            run.add(*job)
        assert [choices(result) for result in run.finish()] == want, f"a fault in step {at}"
        steps = max(steps, len(run.reports))
        at += 1
    assert at > 10


def test_a_fault_of_the_sampler_itself_is_the_fault_of_the_row_that_brings_it():
    engine = tiny_engine()
    run = Watched(engine)
    ids = [run.add(prompt(10 + i, seed=i), greedy(8)) for i in range(3)]
    resolve = engine.sampler.resolve

    def picky(logits, rows, *args, **kwargs):
        if any(row.seq_id == ids[2] and row.position > 14 for row in rows):
            raise ZeroDivisionError("no")
        return resolve(logits, rows, *args, **kwargs)

    engine.sampler.resolve = picky
    results = run.finish()
    assert [r.finish_reason for r in results] == ["length", "length", "error"]
    for i in range(2):
        assert list(results[i].token_ids) == expected_greedy(prompt(10 + i, seed=i), 8)
    assert list(results[2].token_ids) == expected_greedy(prompt(12, seed=2), 3)


def test_a_detokeniser_that_fails_ends_its_own_request():
    for broken in (("push",), ("push", "end")):
        engine = tiny_engine(text="chatml")
        run = Watched(engine)
        ids = [run.add(prompt(10 + i, seed=i), greedy(8, n=1 + i)) for i in range(3)]
        run.step()
        for seq_id in engine.committer.requests[ids[1]][1:]:
            for name in broken:
                setattr(engine.committer.answers[seq_id].stream, name, lambda *a, **k: 1 // 0)
        results = run.finish()
        assert [r.finish_reason for r in results] == ["length", "error", "length"]
        assert "ZeroDivisionError" in results[1].error
        for i in (0, 2):
            assert choices(results[i]) == [tuple(expected_greedy(prompt(10 + i, seed=i), 8))] * (1 + i)
        assert engine.snapshot().totals.faults == 0
        assert is_idle(engine)


def test_ctrl_c_in_a_step_is_raised_and_the_step_undone():
    engine = tiny_engine()
    hooks, run = Hooks(engine), Watched(engine)
    jobs = [(prompt(20, seed=i), seeded(10, n=1 + i)) for i in range(2)]
    for job in jobs:
        run.add(*job)

    def interrupt(batch):
        if len(hooks.batches) % 3 == 2:
            hooks.batches.append(batch)
            raise KeyboardInterrupt

    hooks.before = interrupt
    interrupts = 0
    while len(run.results) < 2:
        try:
            run.step()
        except KeyboardInterrupt:
            interrupts += 1
            check_integrity(engine.scheduler)
    assert interrupts >= 3
    for job, result in zip(jobs, run.finish(), strict=True):
        assert choices(result) == [tuple(expected(*job, choice=c)) for c in range(job[1].n)]


# --- commit or plan raises ------------------------------------------------------------------------------------------


PLACES = ("commit_slice", "begin_commit", "fork", "remove", "publish", "output", "zero", "plan", "grow")


@pytest.mark.parametrize("place", PLACES)
def test_a_fault_in_the_bookkeeping_ends_all_in_flight_and_the_next_request_succeeds(place, monkeypatch):
    engine = tiny_engine(max_chunk=16, max_running=6)
    run = Watched(engine)
    for i in range(5):
        run.add(prompt(10 + 6 * i, seed=i), seeded(6 + i, n=1 + i % 2))
    owner, name = {
        "publish": (engine.scheduler.prefix, "publish"),
        "output": (engine.recorder, "output"),
        "zero": (engine.committer, "_zero_blocks"),
        "grow": (engine.scheduler.pool, "take"),
    }.get(place, (engine.scheduler, place))
    real, calls = getattr(owner, name), []

    def once(*args, **kwargs):
        calls.append(1)
        if len(calls) == (1 if place in ("fork", "remove", "zero") else 7):
            raise RuntimeError("the books do not balance")
        return real(*args, **kwargs)

    monkeypatch.setattr(owner, name, once)
    if place == "zero":
        hooks = Hooks(engine)
        hooks.before = lambda batch: hooks.spoil(batch, "r3") if len(hooks.batches) > 3 else None
    results = run.finish()
    assert len(results) == 5
    ended = [c for r in results for c in r.choices if c.finish_reason == "error"]
    assert ended
    assert any("the books do not balance" in c.error for c in ended)
    for i, result in enumerate(results):
        for choice in result.choices:
            right = expected(prompt(10 + 6 * i, seed=i), seeded(6 + i, n=1 + i % 2), choice=choice.index)
            assert list(choice.token_ids) == right[: len(choice.token_ids)]
            assert choice.finish_reason in ("error", "length")
            assert choice.finish_reason == "error" or list(choice.token_ids) == right
    assert is_idle(engine)
    assert engine.snapshot().totals.faults == 1
    for _ in range(2):
        again = run.add(prompt(34, seed=4), greedy(8))
        run.finish()
        assert list(run.results[again].token_ids) == expected_greedy(prompt(34, seed=4), 8)


# --- rows that are not finite ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("n", [1, 2])
def test_M13_not_finite_logits_of_one_sequence_end_its_request_alone(value, n):
    engine = tiny_engine()
    run = Watched(engine)
    jobs = [(prompt(15 + i, seed=i), seeded(10, n=n if i == 1 else 1)) for i in range(3)]
    ids = [run.add(*job) for job in jobs]
    bad = ids[1] if n == 1 else f"{ids[1]}/1"
    resolve = engine.sampler.resolve

    def spoilt(logits, rows, *args, **kwargs):
        for row in rows:
            if row.seq_id == bad and row.position == 20:
                logits = logits.clone()
                logits[row.row] = value
        return resolve(logits, rows, *args, **kwargs)

    engine.sampler.resolve = spoilt
    results = run.finish()
    assert [r.finish_reason for r in results] == ["length", "error", "length"]
    for i in (0, 2):
        assert list(results[i].token_ids) == expected(*jobs[i])
    for choice in results[1].choices:
        assert "not finite" in choice.error
        assert list(choice.token_ids) == expected(*jobs[1], choice=choice.index)[: len(choice.token_ids)]
        assert len(choice.token_ids) in (4, 5)  # a choice planned before the faulty one keeps its token of that step
    assert is_idle(engine)


def poisoned_then_100_others(engine, *, warm, n, at):
    """A request whose KV rows are overwritten with NaN in its step `at`, then 100 others through the same blocks."""
    hooks, run = Hooks(engine), Watched(engine)
    ids = prompt(40, seed=5)
    if warm:  # its first blocks will be a hit
        run.add(ids[:35], greedy(2))
        run.finish()
    neighbour = run.add(prompt(11, seed=6), greedy(30))
    victim = run.add(ids, seeded(30, n=n))
    run.step()

    def spoil(batch):
        for span in batch.spans:
            if span.seq_id.split("/")[0] == victim and len(hooks.batches) >= at:
                hooks.spoil(batch, span.seq_id)

    hooks.before = spoil
    while victim not in run.results:
        run.step()
    hooks.before = lambda batch: None
    assert run.results[victim].finish_reason == "error"
    run.finish()
    assert list(run.results[neighbour].token_ids) == expected_greedy(prompt(11, seed=6), 30)
    assert is_idle(engine)
    assert not hooks.kv.isnan().any(), "rows that are not finite went back to the pool"
    for i in range(100):
        others = ids[: 20 + i % 21] if i % 2 else prompt(1 + i % 60, seed=i)
        request = run.add(others, greedy(2))
        run.finish()
        assert list(run.results[request].token_ids) == expected_greedy(others, 2), f"request {i}"


NAN_CASES = [
    pytest.param({"warm": warm, "n": n, "at": at}, id=f"{'warm' if warm else 'cold'}-n{n}-step{at}")
    for warm in (False, True)
    for n in (1, 2)
    for at in (2, 6)
]


@pytest.mark.parametrize("case", NAN_CASES)
def test_after_a_request_whose_kv_held_nan_100_others_are_right(case):
    poisoned_then_100_others(tiny_engine(num_blocks=12, max_chunk=24), **case)


def test_sabotage_of_the_nan_check(monkeypatch):
    """Without zeroing, and without forgetting the keys, the check above fails."""
    engine = tiny_engine(num_blocks=12, max_chunk=24)
    monkeypatch.setattr(engine.committer, "_zero_blocks", lambda blocks: None)
    with pytest.raises(AssertionError, match="went back to the pool"):
        poisoned_then_100_others(engine, warm=False, n=1, at=6)
    engine = tiny_engine(num_blocks=12, max_chunk=24)
    monkeypatch.setattr(engine.scheduler.prefix, "unpublish", lambda block: None)
    with pytest.raises(AssertionError):
        poisoned_then_100_others(engine, warm=False, n=1, at=6)


def test_a_prompt_row_that_is_not_finite_ends_a_request_for_prompt_logprobs():
    engine = tiny_engine(max_chunk=16)
    hooks, run = Hooks(engine), Watched(engine)
    victim = run.add(prompt(40), greedy(3, prompt_logprobs=1))
    neighbour = run.add(prompt(30, seed=2), greedy(5, prompt_logprobs=0))

    def spoil(batch):
        if len(hooks.batches) == 1:
            hooks.spoil(batch, victim, rows=slice(0, 3))

    hooks.before = spoil
    run.finish()
    assert run.results[victim].finish_reason == "error"
    assert "not finite" in run.results[victim].error
    assert list(run.results[neighbour].token_ids) == expected_greedy(prompt(30, seed=2), 5)
    assert not hooks.kv.isnan().any()


def test_an_overflow_in_float16_is_an_error_and_no_garbage():
    """A real overflow: activations beyond 65,504 become infinite, and the request says so."""
    from mini_infer.engine import InferenceEngine
    from tests.support.checkpoints import fill_random, tiny_model

    model, config = tiny_model(dtype=torch.float16)
    fill_random(model)
    model.checkpoint_parameters()["model.norm.weight"].fill_(60_000.0)
    engine = InferenceEngine(model, config, 16)
    jobs = [(prompt(9, seed=i), greedy(4)) for i in range(2)]
    for result in run_all(engine, jobs):
        assert (result.finish_reason, result.token_ids) == ("error", ())
    assert is_idle(engine)
