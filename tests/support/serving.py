"""An `EngineService` on the fake model, and what its tests need from an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from mini_infer.engine import InferenceEngine
from mini_infer.observe.events import StepReport
from mini_infer.observe.state import EngineState, fold
from mini_infer.results import GenerationResult
from mini_infer.sampling.params import SamplingParams
from mini_infer.service import EngineService, ResponseStream
from tests.support.fake import fake_engine

T = TypeVar("T")


def params(count: int = 8, **more: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=count, **more)


@contextmanager
def serving(engine: InferenceEngine | None = None, **options: Any) -> Iterator[EngineService]:
    """A service on this engine, or on a fake one; stopped at the end."""
    engine = engine or fake_engine(**options)
    service = EngineService(lambda: engine).start()
    try:
        yield service
    finally:
        service.stop()
        assert not service._thread.is_alive()


def in_loop(main: Callable[[], Awaitable[T]], limit_s: float = 60.0) -> T:
    """Run a coroutine function in a loop of its own; a hang is a failure."""

    async def limited() -> T:
        return await asyncio.wait_for(main(), limit_s)

    return asyncio.run(limited())


async def read(stream: ResponseStream) -> GenerationResult:
    """Everything a stream gives: exactly one result, equal to its chunks."""
    results, ids, text = [], [], ""
    async for chunk in stream:
        if chunk.index == 0:
            ids += chunk.token_ids
            text += chunk.text
        if chunk.result is not None:
            results.append(chunk.result)
    assert len(results) == 1
    assert tuple(ids) == results[0].token_ids
    assert text == results[0].text
    return results[0]


async def ask(service: EngineService, prompt: list[int], asked: SamplingParams, **how: Any) -> GenerationResult:
    return await read(await service.submit(prompt, asked, **how))


class Gate:
    """Holds the engine's thread inside a forward pass."""

    def __init__(self, engine: InferenceEngine) -> None:
        self._open = threading.Event()
        self._open.set()
        self._reached = threading.Event()
        engine.runner.before_run = self._pass  # type: ignore[attr-defined]

    def _pass(self, batch: object) -> None:
        self._reached.set()
        assert self._open.wait(30)

    def close(self) -> None:
        self._reached.clear()
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    async def reached(self) -> None:
        """Wait until the thread stands at the closed gate."""
        assert await asyncio.to_thread(self._reached.wait, 30)


class CheckedMirror:
    """A sink that folds every report and compares with the engine's own snapshot, on the engine's thread."""

    def __init__(self, engine: Callable[[], InferenceEngine]) -> None:
        self._engine = engine
        self.state: EngineState | None = None
        self.reports: list[StepReport] = []
        self.faults: list[str] = []

    def start(self, snapshot: EngineState) -> None:
        self.state = snapshot

    def emit(self, report: StepReport) -> None:
        self.reports.append(report)
        try:
            assert self.state is not None
            self.state = fold(self.state, report)
            if self.state != self._engine().snapshot():
                self.faults.append(f"after report {report.seq} the fold differs from the snapshot")
        except Exception as error:  # it would only be detached
            self.faults.append(f"report {report.seq}: {error!r}")

    def close(self) -> None:
        pass
