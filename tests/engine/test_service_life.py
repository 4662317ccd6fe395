"""How a service begins and ends: loading and its failure, draining, stopping, and a thread that dies."""

from __future__ import annotations

import asyncio
import threading

import pytest

from mini_infer.errors import UserError
from mini_infer.observe.sinks import RingSink
from mini_infer.service import EngineService, ServiceStopped
from tests.support.fake import fake_answer, fake_engine, idle
from tests.support.serving import Gate, ask, in_loop, params, read, serving


def test_requests_may_come_before_it_is_ready():
    loaded = threading.Event()

    def build():
        assert loaded.wait(30)
        return fake_engine()

    service = EngineService(build).start()

    async def main():
        asked = [asyncio.create_task(ask(service, [i], params(5))) for i in range(5)]
        gone = asyncio.create_task(ask(service, [9], params(500)))
        waiting = asyncio.create_task(service.wait_ready())
        await asyncio.sleep(0.03)
        assert not service.is_ready
        assert not any(task.done() for task in (*asked, waiting))
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        loaded.set()
        engine = await waiting
        assert service.is_ready
        assert service.engine is engine
        for i, result in enumerate(await asyncio.gather(*asked)):
            assert list(result.token_ids) == fake_answer([i], 5)
        assert engine._arrivals == 5

    in_loop(main)
    service.stop()


@pytest.mark.parametrize(
    "failure", [UserError("no such folder"), RuntimeError("bad weights"), SystemExit(3), MemoryError()]
)
def test_a_failure_to_load_reaches_everybody_who_waits(failure):
    go = threading.Event()

    def build():
        assert go.wait(30)
        raise failure

    service = EngineService(build).start()

    async def main():
        service.pause()
        service.attach(RingSink(4))
        waiters = [
            *(asyncio.create_task(service.submit([i], params())) for i in range(3)),
            asyncio.create_task(service.snapshot()),
        ]
        ready = asyncio.wrap_future(service._ready)
        await asyncio.sleep(0.02)
        service.resume()
        service.abort("r1")
        go.set()
        for waiter in (*waiters, ready):
            with pytest.raises(type(failure)):
                await waiter
        with pytest.raises(type(failure)):
            await service.submit([1], params())
        with pytest.raises(type(failure)):
            service.engine  # noqa: B018
        assert not service.is_ready

    if isinstance(failure, SystemExit):  # asyncio lets that one out of its loop
        with pytest.raises(SystemExit):
            in_loop(main)
    else:
        in_loop(main)
    go.set()
    service.stop(drain_s=1)
    assert not service._thread.is_alive()
    assert not service._control.commands


def test_a_drain_lets_answers_end_and_takes_no_more():
    engine = fake_engine(num_blocks=100)
    gate = Gate(engine)

    async def main():
        service.pause()  # a drain ends it
        streams = [await service.submit([i], params(30, n=1 + i % 2)) for i in range(6)]
        gate.close()
        stopping = asyncio.create_task(asyncio.to_thread(service.stop, 20.0))
        await gate.reached()
        with pytest.raises(ServiceStopped):
            await service.submit([1], params())
        with pytest.raises(ServiceStopped):
            await service.snapshot()
        service.pause()  # comes too late
        gate.open()
        for i, result in enumerate(await asyncio.gather(*(read(s) for s in streams))):
            for choice in result.choices:
                assert choice.finish_reason == "length"
                assert list(choice.token_ids) == fake_answer([i], 30, choice.index)
        await stopping

    service = EngineService(lambda: engine).start()
    in_loop(main)
    assert not service._thread.is_alive()
    assert idle(engine)


def test_a_drain_that_takes_too_long_aborts_the_rest():
    engine = fake_engine(num_blocks=100)

    async def main():
        service.set_speed(5.0)
        short, long = [await service.submit([i], params(count)) for i, count in ((1, 1), (2, 380))]
        await read(short)
        engine.runner.before_run = lambda batch: threading.Event().wait(0.02)
        stopping = asyncio.create_task(asyncio.to_thread(service.stop, 0.2))
        result = await read(long)
        await stopping
        assert result.finish_reason == "abort"
        assert 2 < len(result.token_ids) < 380
        assert list(result.token_ids) == fake_answer([2], len(result.token_ids))

    service = EngineService(lambda: engine).start()
    in_loop(main)
    assert idle(engine)


def test_a_drain_of_an_idle_service_ends_at_once():
    service = EngineService(fake_engine).start()
    in_loop(service.wait_ready)
    service.stop(drain_s=60)
    assert not service._thread.is_alive()


def test_a_stop_ends_what_is_in_flight_and_nobody_waits_for_ever():
    engine = fake_engine(max_running=2)
    gate = Gate(engine)

    async def main():
        service.pause()
        streams = [await service.submit([i], params(100, n=1 + i % 2)) for i in range(5)]
        gate.close()
        service.resume()
        await gate.reached()
        late = asyncio.create_task(service.submit([9], params()))
        later = asyncio.create_task(service.snapshot())
        await asyncio.sleep(0.01)
        stopping = asyncio.create_task(asyncio.to_thread(service.stop))
        while not service._control.stopped and not service._control.draining:
            await asyncio.sleep(0.002)
        gate.open()
        results = await asyncio.gather(*(read(s) for s in streams))
        assert {c.finish_reason for r in results for c in r.choices} == {"abort"}
        for task in (late, later):
            with pytest.raises(ServiceStopped):
                await task
        await stopping
        with pytest.raises(ServiceStopped):
            await service.submit([1], params())
        service.abort("r1")
        service.resume()
        service.stop()  # twice is once

    service = EngineService(lambda: engine).start()
    in_loop(main)
    assert idle(engine)


@pytest.mark.parametrize("drain_s", [0.0, 1.0])
def test_a_service_that_was_never_started_can_be_stopped(drain_s):
    service = EngineService(fake_engine)
    service.stop(drain_s)

    async def main():
        for waiting in (service.submit([1], params()), service.wait_ready()):
            with pytest.raises(ServiceStopped):
                await waiting

    in_loop(main, 5)


def test_a_stop_while_loading_answers_those_who_waited():
    go = threading.Event()

    def build():
        assert go.wait(30)
        return fake_engine()

    service = EngineService(build).start()

    async def main():
        waiting = asyncio.create_task(service.submit([1], params()))
        await asyncio.sleep(0.01)
        stopping = asyncio.create_task(asyncio.to_thread(service.stop))
        while not service._control.stopped and not service._control.draining:
            await asyncio.sleep(0.002)
        go.set()
        with pytest.raises(ServiceStopped):
            await waiting
        await stopping

    in_loop(main)
    assert not service._thread.is_alive()


def test_a_thread_that_dies_tells_everybody():
    """Only what no engine can mend gets here, such as the interpreter being told to exit."""
    engine = fake_engine(max_running=2)

    async def main():
        service.pause()
        streams = [await service.submit([i], params(200, n=1 + i % 2)) for i in range(4)]
        service.step(3)
        while engine.scheduler.step < 3:
            await asyncio.sleep(0.002)

        def die(batch):
            raise SystemExit("told to go")

        engine.runner.before_run = die
        service.resume()
        for stream in streams:
            result = await read(stream)
            for choice in result.choices:
                assert choice.finish_reason == "error"
                assert "told to go" in choice.error
                right = fake_answer([streams.index(stream)], 200, choice.index)
                assert list(choice.token_ids) == right[: len(choice.token_ids)]
        with pytest.raises(ServiceStopped):
            await service.submit([1], params())

    with serving(engine) as service:
        in_loop(main)


def test_a_thread_that_dies_tells_those_behind_a_closed_loop_too():
    engine = fake_engine(num_blocks=300)
    gate = Gate(engine)
    kept: list = []

    async def leave():
        service.pause()
        kept.append(await service.submit([1], params(400)))

    async def stay():
        stream = await service.submit([2], params(400))

        def die(batch):
            raise SystemExit("told to go")

        engine.runner.before_run = die
        service.resume()
        assert (await read(stream)).finish_reason == "error"

    with serving(engine) as service:
        gate.open()
        in_loop(leave)
        in_loop(stay)


def test_a_fault_in_the_bookkeeping_ends_what_is_in_flight_and_serving_goes_on(monkeypatch):
    engine = fake_engine(max_running=3)

    async def main():
        service.pause()
        streams = [await service.submit([i, 3], params(20, n=1 + i)) for i in range(3)]
        service.step(1 if broken == "fork" else 3)
        while engine.scheduler.step < (1 if broken == "fork" else 3):
            await asyncio.sleep(0.002)
        service.resume()
        results = await asyncio.gather(*(read(s) for s in streams))
        assert "error" in {c.finish_reason for r in results for c in r.choices}
        assert list((await ask(service, [8], params(9))).token_ids) == fake_answer([8], 9)
        assert (await service.snapshot()).totals.faults == 1

    for broken in ("fork", "commit_slice"):
        engine = fake_engine(max_running=6)
        real = getattr(engine.scheduler, broken)
        calls = iter(range(1000))

        def once(*args, real=real, calls=calls, at={"fork": 0, "commit_slice": 9}[broken], **kwargs):
            result = real(*args, **kwargs)
            if next(calls) == at:
                raise RuntimeError("a fault in the bookkeeping")
            return result

        monkeypatch.setattr(engine.scheduler, broken, once)
        with serving(engine) as service:
            in_loop(main)
