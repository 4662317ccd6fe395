"""Loops: how many run at once, how many are asked, what time counts from, and what becomes of the unfinished."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from itertools import islice, pairwise

import pytest

from mini_infer.errors import UserError
from mini_infer.load.arrivals import Level, sped_up
from mini_infer.load.client import Client, Target
from mini_infer.load.figures import Slo, figures
from mini_infer.load.records import Record
from mini_infer.load.runner import Extent, LevelRun, Runner
from mini_infer.load.workload import WorkloadOptions, make_workload
from tests.load.fake_server import FakeOpenAI
from tests.load.support import Connection, Handler, Request, Served, answer, in_loop, serving


class Counted:
    """An observer that counts."""

    def __init__(self) -> None:
        self.begun = self.pieces = 0
        self.records: list[Record] = []

    def sent(self) -> None:
        self.begun += 1

    def piece(self, at: float) -> None:
        self.pieces += 1

    def ended(self, record: Record) -> None:
        self.records.append(record)


Then = Callable[[Runner, Served], Awaitable[None]]


def run_level(
    level: Level, extent: Extent, handler: Handler, meanwhile: Then | None = None, **workload: object
) -> tuple[LevelRun, Served, Counted]:
    async def main() -> tuple[LevelRun, Served, Counted]:
        async with serving(handler) as served:
            counted = Counted()
            runner = Runner(lambda: Client(Target(served.url, "m")), time.perf_counter, counted)
            talks = make_workload(WorkloadOptions(output_tokens=5, **workload)).conversations("1")  # type: ignore[arg-type]
            other = asyncio.create_task(meanwhile(runner, served)) if meanwhile else None
            run = await runner.run(level, talks, extent, "1")
            await runner.aclose()
            if other is not None:
                await other
            return run, served, counted

    return in_loop(main)


@pytest.mark.parametrize("streams", [1, 4, 16])
def test_a_closed_loop_keeps_so_many_at_once_on_so_many_connections(streams: int) -> None:
    together = asyncio.Event()

    async def handler(request: Request, out: Connection) -> None:
        if len(seen := handler_state) < streams:
            seen.append(request)
            if len(seen) == streams:
                together.set()
        await together.wait()
        await out.stream(answer("a", "b"))

    handler_state: list[Request] = []
    run, served, counted = run_level(Level(concurrency=streams), Extent(requests=3 * streams), handler)
    assert [r.number for r in run.records] == list(range(3 * streams))
    assert all(r.is_ok for r in run.records)
    assert served.peak == streams == served.connections
    assert (counted.begun, counted.pieces, len(counted.records)) == (3 * streams, 6 * streams, 3 * streams)
    assert not run.is_cut


def test_turns_of_a_conversation_carry_the_answers_and_count_as_requests() -> None:
    run, served, _ = run_level(Level(concurrency=1), Extent(requests=5), FakeOpenAI(), kind="multi-turn", turns=3)
    lengths = [len(r.body["messages"]) for r in served.asked()]
    assert lengths == [1, 3, 5, 1, 3]
    assert served.asked()[1].body["messages"][1] == {"role": "assistant", "content": run.records[0].text}
    assert len(run.records) == 5


def test_a_conversation_ends_with_its_first_failure() -> None:
    handler = FakeOpenAI(fail_every=2)
    run, served, _ = run_level(Level(concurrency=1), Extent(requests=4), handler, kind="multi-turn", turns=3)
    assert [len(r.body["messages"]) for r in served.asked()] == [1, 3, 1, 3]
    assert [r.outcome for r in run.records] == ["ok", "failed"] * 2


def test_B11_what_is_unfinished_when_time_is_up_is_shown_apart() -> None:
    """One answer is complete, and one has begun when time is up: told by the server, not by the clock."""
    begun = asyncio.Event()

    async def handler(request: Request, out: Connection) -> None:
        if request.number == 0:
            await out.stream(answer(*"abcde"))
            return
        await out.start()
        for piece in answer(*"abc")[:4]:
            await out.chunk(piece)
        begun.set()
        await asyncio.Event().wait()

    async def end(runner: Runner, served: Served) -> None:
        await begun.wait()
        while counted_pieces(runner) != 8:
            await asyncio.sleep(0.01)
        runner.stop.set()

    def counted_pieces(runner: Runner) -> int:
        return runner._observer.pieces  # type: ignore[attr-defined, no-any-return]

    run, _, _ = run_level(Level(concurrency=1), Extent(), handler, end)
    found = figures(run, Slo())
    assert (found.ok, found.unfinished, found.num_failed) == (1, 1, 0)
    assert (found.output_tokens, found.unfinished_tokens) == (5, 3)
    assert found.e2e_ms.count == 1
    assert found.output_tok_s == pytest.approx(8 / found.window_s)
    assert run.is_cut


@pytest.mark.parametrize("level", [Level(concurrency=2), Level(rate=1e5), Level(rate=1e5, cap=2)])
def test_a_duration_ends_a_level_of_any_kind(level: Level) -> None:
    async def handler(request: Request, out: Connection) -> None:
        await asyncio.Event().wait()

    run, _, _ = run_level(level, Extent(duration_s=0.3, requests=40), handler)
    assert {r.outcome for r in run.records} == {"unfinished"}
    assert 1 <= len(run.records) <= (2 if level.concurrency else 40)
    assert run.is_cut


def test_an_open_loop_sends_on_time_and_counts_from_then() -> None:
    """The server answers nobody until all have come: a client that waited for answers would hang."""
    all_came = asyncio.Event()

    async def handler(request: Request, out: Connection) -> None:
        if request.number == 9:
            all_came.set()
        await all_came.wait()
        await out.stream(answer("a"))

    level = Level(times=tuple(0.01 * i for i in range(10)))
    run, served, _ = run_level(level, Extent(requests=10), handler)
    assert served.peak == 10
    scheduled = [r.scheduled - run.start for r in run.records]
    assert scheduled == pytest.approx(level.times)
    assert all(r.sent >= r.scheduled for r in run.records)


def test_who_waits_for_a_seat_waits_on_its_own_clock() -> None:
    """Three requests are due at once and one may run: the time in the line is in the latency of the others."""
    level = Level(times=(0.0, 0.0, 0.0), cap=1)
    run, served, _ = run_level(level, Extent(requests=3), FakeOpenAI())
    assert served.peak == 1
    first, second, third = run.records
    assert first.scheduled == second.scheduled == third.scheduled
    assert first.end <= second.sent <= second.end <= third.sent


def test_some_requests_are_given_up_at_random_points_and_the_rest_is_whole() -> None:
    extent = Extent(requests=60, cancel_rate=0.5)
    run, _, _ = run_level(Level(concurrency=4), extent, FakeOpenAI())
    outcomes = [r.outcome for r in run.records]
    assert len(outcomes) == 60
    assert outcomes.count("cancelled") >= 10
    assert outcomes.count("ok") >= 10
    assert set(outcomes) == {"ok", "cancelled"}
    assert len({len(r.pieces) for r in run.records if r.outcome == "cancelled"}) >= 3


def test_stop_ends_a_level_and_keeps_what_was_measured() -> None:
    async def stop(runner: Runner, served: Served) -> None:
        while len(served.asked()) < 4:
            await asyncio.sleep(0.005)
        runner.stop.set()

    run, _, _ = run_level(Level(concurrency=1), Extent(), FakeOpenAI(hold_every=4), stop)
    assert [r.outcome for r in run.records] == ["ok"] * 3 + ["unfinished"]


# --- arrivals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("burstiness", [0.0, 0.5, 1.0, 4.0])
def test_gaps_have_the_rate_and_the_burstiness_asked_for(burstiness: float) -> None:
    times = list(islice(Level(rate=50.0, burstiness=burstiness).arrivals("s"), 20_001))
    gaps = [b - a for a, b in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    variance = sum((g - mean) ** 2 for g in gaps) / len(gaps)
    assert mean == pytest.approx(0.02, rel=0.05)
    assert variance / mean**2 == pytest.approx(burstiness, rel=0.15, abs=1e-9)
    assert times == list(islice(Level(rate=50.0, burstiness=burstiness).arrivals("s"), 20_001))


def test_levels_know_their_names_and_refuse_nonsense() -> None:
    assert [Level(concurrency=4).name, Level(rate=2.5).name, Level(times=(0.0,)).name] == ["4", "2.5/s", "replay"]
    assert sped_up([0, 1, 4], 2) == (0, 0.5, 2)
    for wrong in ({}, {"concurrency": 0}, {"rate": 0.0}, {"rate": 1.0, "concurrency": 1}, {"rate": float("nan")}):
        with pytest.raises(UserError):
            Level(**wrong)  # type: ignore[arg-type]
    with pytest.raises(UserError):
        sped_up([0], 0)
