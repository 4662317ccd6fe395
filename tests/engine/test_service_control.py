"""Pause, lease, single steps, speed, observers and snapshots of a running service."""

from __future__ import annotations

import asyncio
import time

import pytest

from mini_infer.errors import UserError
from mini_infer.observe.sinks import RingSink
from mini_infer.observe.state import fold_all
from tests.support.fake import fake_answer, fake_engine, idle
from tests.support.serving import CheckedMirror, ask, in_loop, params, read, serving


async def until(condition):
    while not condition():
        await asyncio.sleep(0.002)


def test_a_pause_holds_until_resumed_and_still_takes_submissions():
    async def main():
        service.pause()
        stream = await service.submit([1, 2], params(5))
        state = await service.snapshot()
        assert state.paused
        assert service.is_paused
        assert [s.wait.kind for s in state.waiting] == ["PAUSED"]
        await asyncio.sleep(0.05)
        assert engine.scheduler.step == 0
        service.resume()
        assert list((await read(stream)).token_ids) == fake_answer([1, 2], 5)
        assert not service.is_paused
        assert not (await service.snapshot()).paused

    engine = fake_engine()
    with serving(engine) as service:
        in_loop(main)


def test_a_pause_in_the_middle_of_an_answer_keeps_it():
    async def main():
        stream = await service.submit([1, 2], params(300))
        await until(lambda: engine.scheduler.step > 5)
        service.pause()
        before = await service.snapshot()
        await asyncio.sleep(0.03)
        after = await service.snapshot()
        assert (before.step, before.sequences) == (after.step, after.sequences)
        service.pause()  # twice is once
        service.resume()
        service.resume()
        assert list((await read(stream)).token_ids) == fake_answer([1, 2], 300)

    engine = fake_engine(num_blocks=100)
    with serving(engine) as service:
        in_loop(main)


def test_a_lease_runs_out_by_itself_and_can_be_renewed():
    async def main():
        service.pause(lease_s=0.05)
        service.pause(lease_s=600)
        await asyncio.sleep(0.1)
        assert service.is_paused
        began = time.monotonic()
        service.pause(lease_s=0.05)
        stream = await service.submit([1], params(2))
        await read(stream)
        assert time.monotonic() - began >= 0.05
        assert not service.is_paused
        assert not (await service.snapshot()).paused

    with serving() as service:
        in_loop(main)


def test_a_lease_of_an_idle_service_runs_out_too():
    async def main():
        service.pause(lease_s=0.02)
        await until(lambda: not service.is_paused)
        assert not (await service.snapshot()).paused

    with serving() as service:
        in_loop(main)


def test_a_plain_pause_ends_a_lease():
    async def main():
        service.pause(lease_s=0.02)
        service.pause()
        await asyncio.sleep(0.06)
        assert service.is_paused
        service.resume()

    with serving() as service:
        in_loop(main)


def test_single_steps():
    async def main():
        service.pause()
        stream = await service.submit([1, 2, 3], params(6))
        taken = 0
        for count in (1, 3):
            service.step(count)
            await until(lambda total=(taken := taken + count): engine.scheduler.step == total)
            await asyncio.sleep(0.02)
            assert engine.scheduler.step == taken
        state = await service.snapshot()
        assert state.paused
        assert len(state.running[0].output) == 4
        service.step(100)  # more than there is to do
        assert list((await read(stream)).token_ids) == fake_answer([1, 2, 3], 6)
        assert engine.scheduler.step == 6

    engine = fake_engine()
    with serving(engine) as service:
        in_loop(main)


def test_steps_that_found_nothing_to_do_are_not_saved_up():
    async def main():
        service.pause()
        service.step(5)
        await until(lambda: service._control.steps == 0)
        stream = await service.submit([1], params(3))
        await asyncio.sleep(0.03)
        assert engine.scheduler.step == 0
        service.resume()
        await read(stream)

    engine = fake_engine()
    with serving(engine) as service:
        in_loop(main)


def test_a_single_step_of_a_running_service_does_nothing():
    async def main():
        service.step(3)
        service.pause()
        stream = await service.submit([1], params(3))
        await asyncio.sleep(0.03)
        assert engine.scheduler.step == 0
        stream.close()

    engine = fake_engine()
    with serving(engine) as service:
        in_loop(main)


def test_a_speed_limit_is_kept_and_lifted_in_the_middle_of_a_wait():
    async def main():
        service.set_speed(50.0)
        began = time.monotonic()
        await ask(service, [1], params(6))
        assert time.monotonic() - began >= 5 / 50
        service.set_speed(0.01)
        stream = await service.submit([1], params(6))
        await asyncio.sleep(0.05)
        service.set_speed(None)
        await read(stream)
        assert time.monotonic() - began < 30

    with serving() as service:
        in_loop(main)


def test_submissions_and_aborts_are_carried_out_while_a_slow_step_is_due():
    async def main():
        service.set_speed(0.01)
        streams = [await service.submit([i], params(5)) for i in range(3)]
        service.abort(streams[1].request_id)
        assert (await read(streams[1])).finish_reason == "abort"
        state = await service.snapshot()
        assert len(state.sequences) == 2
        assert state.step <= 1

    with serving() as service:
        in_loop(main)


@pytest.mark.parametrize("bad", [0, -1.0, float("nan")])
def test_a_speed_that_is_none_is_refused(bad):
    with serving() as service, pytest.raises(ValueError, match="steps"):
        service.set_speed(bad)


# --- observers ------------------------------------------------------------------------------------------------------


def test_sinks_come_and_go_while_it_runs():
    engine = fake_engine(num_blocks=64, max_running=6)
    mirrors = [CheckedMirror(lambda: engine) for _ in range(12)]

    async def load(first):
        for i in range(15):
            await ask(service, [first, i] * 5, params(10, n=1 + i % 2))

    async def watch():
        for before, mirror in zip([None, *mirrors], mirrors, strict=False):
            service.attach(mirror)
            await asyncio.sleep(0.004)
            if before is not None:
                service.detach(before)

    async def main():
        await asyncio.gather(*(load(first) for first in range(4)), watch())
        await service.snapshot()

    with serving(engine) as service:
        in_loop(main)
    assert all(m.faults == [] for m in mirrors)
    assert sum(len(m.reports) for m in mirrors) > 20
    assert mirrors[-1].state == engine.snapshot()
    for mirror in mirrors:
        numbers = [report.seq for report in mirror.reports]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else True


def test_snapshots_of_a_running_service_are_whole():
    """Each one is what a ring of reports folds to."""
    engine = fake_engine()
    ring = RingSink(100_000)

    async def main():
        service.attach(ring)
        service.pause()  # so that at least one snapshot finds somebody, however slow this machine is
        asked = [asyncio.create_task(ask(service, [i, i], params(40))) for i in range(10)]
        while not (states and len(states[-1].sequences) == 10):
            states.append(await service.snapshot())
        service.resume()
        for _ in range(20):
            states.append(await service.snapshot())
            await asyncio.sleep(0.001)
        await asyncio.gather(*asked)

    states: list = []
    with serving(engine) as service:
        in_loop(main)
    reports = ring.drain()
    for state in states:
        assert fold_all(ring.snapshot, [r for r in reports if r.seq <= state.seq]) == state


def test_a_sink_that_raises_does_not_stop_the_service():
    class Broken:
        def start(self, snapshot):
            pass

        def emit(self, report):
            raise OSError("disk full")

        def close(self):
            pass

    async def main():
        service.attach(Broken())
        mirror = CheckedMirror(lambda: engine)
        service.attach(mirror)
        assert list((await ask(service, [1], params(4))).token_ids) == fake_answer([1], 4)
        await service.snapshot()
        assert mirror.faults == []
        assert len(mirror.reports) >= 4

    engine = fake_engine()
    with serving(engine) as service:
        in_loop(main)


def test_news_while_paused_and_idle_are_reported():
    engine = fake_engine()
    mirror = CheckedMirror(lambda: engine)

    async def main():
        service.attach(mirror)
        service.pause()
        stream = await service.submit([1, 2], params(5))
        stream.close()
        service.resume()
        with pytest.raises(UserError):
            await service.submit([], params())
        await service.snapshot()

    with serving(engine) as service:
        in_loop(main)
    assert mirror.faults == []
    assert not any(report.stepped for report in mirror.reports)
    assert [c.action for r in mirror.reports for c in r.control] == ["pause", "resume"]
    assert [a for r in mirror.reports for a in r.aborted] == ["r1"]
    assert idle(engine)


def test_the_prefix_cache_can_be_reset_between_two_requests():
    async def main():
        prompt = list(range(20))
        await ask(service, prompt, params(2))
        assert (await ask(service, prompt, params(2))).usage.cached_tokens == 16
        service.reset_prefix_cache()
        assert (await ask(service, prompt, params(2))).usage.cached_tokens == 0

    with serving() as service:
        in_loop(main)
