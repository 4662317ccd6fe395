"""The clients: a live engine on its thread, a recording, and what breaks them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mini_infer.config import EngineConfig
from mini_infer.errors import UserError
from mini_infer.observe.trace_file import read_trace
from mini_infer.sampling.params import SamplingParams
from tests.support.engines import tiny_tokenizer
from tests.support.fake import fake_engine
from tui.client.in_process import InProcessClient
from tui.client.protocol import Update
from tui.client.replay import ReplayClient
from tui.model.breaks import BreakOn
from tui.model.observer import Observer


def engine(progress, **options):
    progress(1, 2)
    made = fake_engine(num_blocks=200, context=700, model="some/tiny", **options)
    made.tokenizer = tiny_tokenizer()
    made.config.vocab_size = 50
    return made


async def until(client, observer: list, done, tries: int = 6000):
    """Poll until `done(observer)`; the observer is made by the first snapshot."""
    for _ in range(tries):
        update = client.poll()
        if update.snapshot is not None:
            if observer:
                observer[0].restart(update.snapshot)
            else:
                observer.append(Observer(update.snapshot))
        if observer:
            if not observer[0].take(update.reports):
                client.resync()
            if done(observer[0], update):
                return update
        await asyncio.sleep(0.01)
    raise AssertionError("it never came")


class Fake(InProcessClient):
    """Ids in place of messages: the fake model has a vocabulary of 50."""

    async def ask(self, ids, **params):
        made = await self._service.wait_ready()
        assert made is not None
        stream = await self._service.submit(ids, SamplingParams(temperature=0, **params))
        self._streams.append(stream)
        return stream.request_id


def client_of(record: Path | None = None, **options) -> Fake:
    return Fake(lambda progress: engine(progress, **options), EngineConfig(model="some/tiny"), record)


def test_a_live_engine_is_pulled_and_its_recording_gives_the_same_states(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"

    async def live() -> Observer:
        client = client_of(path)
        seen: list[Observer] = []
        await client.start()
        await client.ask([1, 2, 3], max_tokens=20)
        await until(client, seen, lambda o, _: any(r.finished for r in o.ledger.requests.values()))
        assert client.meta.model == "tiny"
        assert client._streams == []
        await client.close()
        return seen[0]

    observer = asyncio.run(live())
    now = [0.0]
    replay = ReplayClient(path, speed=10.0, clock=lambda: now[0])
    again: list[Observer] = []

    async def play() -> None:
        await replay.start()
        for _ in range(400):
            now[0] += 0.1
            update = replay.poll()
            if update.snapshot is not None:
                again.append(Observer(update.snapshot))
            assert again[0].take(update.reports)
            assert len([r for r in update.reports if r.stepped]) <= 2
            if update.notes:
                return
        raise AssertionError("it never ended")

    asyncio.run(play())
    assert again[0].history.live.state == observer.history.live.state
    for step in range(observer.history.newest + 1):
        assert again[0].history.at(step).state == observer.history.at(step).state
    assert replay.meta.model == "tiny"
    with pytest.raises(UserError, match="recording"):
        asyncio.run(replay.chat([], SamplingParams()))


def test_pause_step_run_speed_and_abort_reach_the_engine() -> None:
    async def main() -> None:
        client = client_of()
        seen: list[Observer] = []
        await client.start()
        client.pause()
        request = await client.ask([1, 2, 3], max_tokens=500)
        await until(client, seen, lambda o, _: request in o.history.live.state.sequences)
        assert client.is_paused
        assert seen[0].history.newest == 0
        client.step(2)
        await until(client, seen, lambda o, _: o.history.newest == 2)
        client.set_speed(1000.0)
        assert client.meta.speed == 1000.0
        client.run()
        await until(client, seen, lambda o, _: o.history.newest > 20)
        client.clear_cache()
        client.abort(request)
        await until(client, seen, lambda o, _: not o.history.live.state.sequences)
        assert seen[0].ledger.requests[request].finished.reason == "abort"
        await client.close()
        assert client.poll().failed == "the engine has stopped"

    asyncio.run(main())


def test_a_break_stops_the_engine_right_after_the_step_that_meets_it() -> None:
    async def main() -> None:
        client = client_of()
        seen: list[Observer] = []
        await client.start()
        client.set_breaks(BreakOn(frozenset({"finish"})))
        await client.ask([1, 2], max_tokens=300)
        await client.ask([3, 4], max_tokens=10)
        update = await until(client, seen, lambda o, u: u.stopped_for)
        assert update.stopped_for == "finish"
        assert client.is_paused
        for _ in range(20):
            await asyncio.sleep(0.01)
            seen[0].take(client.poll().reports)
        steps = [s for s in seen[0].ledger.steps if s.stepped]
        assert "F" in steps[-1].marks.values()
        assert not any("F" in s.marks.values() for s in steps[:-1])
        await client.close()

    asyncio.run(main())


def test_lost_reports_are_healed_by_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        client = client_of()
        seen: list[Observer] = []
        await client.start()
        client.pause()
        await client.ask([1, 2], max_tokens=400)
        client.step(5)
        await until(client, seen, lambda o, _: o.history.newest == 5)
        client.step(5)
        lost = 0
        while lost < 5:
            lost += len(client._ring.drain())
            await asyncio.sleep(0.01)
        client.run()
        await until(client, seen, lambda o, _: not o.history.live.state.sequences)
        record = seen[0].ledger.requests["r1"]
        assert len(record.output) == len(record.origins) == 400
        await client.close()

    asyncio.run(main())


def test_what_goes_wrong_while_loading_is_one_line() -> None:
    async def main(error: Exception) -> Update:
        def fail(progress):
            raise error

        client = InProcessClient(fail, EngineConfig(model="x"))
        await client.start()
        for _ in range(6000):
            update = client.poll()
            if update.failed:
                await client.close()
                return update
            assert update.loading is not None
            await asyncio.sleep(0.01)
        raise AssertionError

    assert asyncio.run(main(UserError("no such model"))).failed == "no such model"
    assert asyncio.run(main(RuntimeError("boom"))).failed == "loading failed: RuntimeError: boom"


def test_a_trace_that_cannot_be_written_is_refused_before_the_screen(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be written"):
        client_of(tmp_path / "none" / "x.jsonl")


def test_breaks_and_pauses_work_on_a_recording(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"

    async def live() -> None:
        client = client_of(path)
        await client.start()
        seen: list[Observer] = []
        await client.ask([1, 2], max_tokens=9)
        await until(client, seen, lambda o, _: any(r.finished for r in o.ledger.requests.values()))
        await client.close()

    asyncio.run(live())
    replay = ReplayClient(path, speed=None)
    replay.pause()
    first = replay.poll()
    assert (first.reports, first.snapshot is not None) == ([], True)
    replay.step(2)
    assert len([r for r in replay.poll().reports if r.stepped]) == 2
    replay.set_breaks(BreakOn().toggled("finish"))
    replay.run()
    assert replay.poll().stopped_for == "finish"
    assert replay.is_paused
    replay.resync()
    assert replay.poll().snapshot is not None
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:-2], b"nonsense\n"]))
    broken = ReplayClient(path, speed=None)
    assert "corrupt" in (broken.poll().failed or "")
    assert read_trace(path).header.config["model"] == "some/tiny"
