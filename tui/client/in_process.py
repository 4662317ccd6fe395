"""The engine in this very process, on a thread of its own. The only module of the playground that knows the engine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mini_infer.config import EngineConfig
from mini_infer.errors import UserError
from mini_infer.observe.events import StepReport
from mini_infer.observe.sinks import RingSink
from mini_infer.observe.state import EngineState
from mini_infer.observe.trace_file import FileSink
from mini_infer.response_stream import ResponseStream
from mini_infer.sampling.params import SamplingParams
from mini_infer.service import EngineService
from tui.client.meta import meta_of
from tui.client.protocol import ChatMessage, Loading, Update
from tui.model.breaks import BreakOn

if TYPE_CHECKING:
    from mini_infer.engine import InferenceEngine
    from mini_infer.progress import Progress

log = logging.getLogger("mini_infer")

RING = 8_192
"""Reports that may wait for a screen that stands still for a while; beyond them, it starts again from a snapshot."""

DEMO_BLOCKS = 96
"""So few that each is seen, and that a handful of requests fills them: queues, evictions and preemptions show."""

Build = Callable[["Progress"], "InferenceEngine"]


class _Breaker:
    """A sink that pauses the engine, on its own thread, right after the step that meets a condition."""

    def __init__(self, service: EngineService) -> None:
        self.service = service
        self.breaks = BreakOn()
        self.stopped_for: str | None = None

    def start(self, snapshot: EngineState) -> None:
        pass

    def emit(self, report: StepReport) -> None:
        kind = self.breaks.met_by(report)
        if kind is not None and not self.service.is_paused:
            self.stopped_for = kind
            self.service.pause()

    def close(self) -> None:
        pass


class _Warnings(logging.Handler):
    """Keeps what the engine logs, for the screen: printed, it would land in the middle of it."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


class InProcessClient:
    """`build` makes the engine on the engine's thread; it is handed a function to tell its progress to.

    `record`: a trace of everything goes there. Raises UserError where that cannot be written.
    """

    def __init__(self, build: Build, options: EngineConfig, record: Path | None = None) -> None:
        self.meta = meta_of(asdict(options))
        self._build = build
        self._service = EngineService(self._make)
        self._breaker = _Breaker(self._service)
        self._ring = RingSink(RING)
        self._told: EngineState | None = None
        self._record = record
        self._sink: FileSink | None = None
        if record is not None:
            FileSink(record, {}).close()  # whatever is wrong with it is said before the screen is drawn
        self._streams: list[ResponseStream] = []
        self._loading = Loading("loading the engine")
        self._was_ready = False
        self._warnings = _Warnings()

    # --- life -------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        log.addHandler(self._warnings)
        self._service.attach(self._breaker)
        self._service.attach(self._ring)
        self._service.start()

    async def close(self) -> None:
        self._streams.clear()
        await asyncio.to_thread(self._service.stop)
        if self._sink is not None:
            self._sink.close()
        log.removeHandler(self._warnings)

    def _make(self) -> InferenceEngine:
        """On the engine's thread."""
        engine = self._build(self._read)
        if self._record is not None:
            self._sink = FileSink(self._record, asdict(engine.options))
            engine.attach(self._sink)
        return engine

    def _read(self, done: int, total: int) -> None:
        self._loading = Loading("loading weights", done, total)

    @property
    def is_paused(self) -> bool:
        return self._service.is_paused

    @property
    def record_error(self) -> str | None:
        """Why the recording ends before the run does; None where it does not."""
        return str(self._sink.error) if self._sink is not None and self._sink.error is not None else None

    # --- news -------------------------------------------------------------------------------------------------------

    def poll(self) -> Update:
        if not self._was_ready:
            if not self._service.is_ready:
                return Update(loading=self._loading, failed=self._why_dead(), notes=self._notes())
            self._ready()
        self._streams = [s for s in self._streams if not any(c.result is not None for c in s.drain())]
        stopped_for, self._breaker.stopped_for = self._breaker.stopped_for, None
        snapshot = self._ring.snapshot
        if snapshot is None:
            return Update(failed=self._why_dead(), notes=self._notes())
        fresh = None if snapshot is self._told else snapshot
        self._told = snapshot
        return Update(fresh, self._ring.drain(), None, self._why_dead(), stopped_for, self._notes())

    def _ready(self) -> None:
        self._was_ready = True
        options = asdict(self._service.engine.options)
        self.meta = replace(meta_of(options), speed=self.meta.speed)

    def _why_dead(self) -> str | None:
        """None while it lives."""
        if self._service.is_alive:
            return None
        try:
            self._service.engine  # noqa: B018  (raises what loading raised)
        except UserError as error:
            return str(error)
        except BaseException as error:
            return f"loading failed: {type(error).__name__}: {error}"
        return "the engine has stopped"

    def _notes(self) -> list[str]:
        lines, self._warnings.lines = self._warnings.lines, []
        return lines

    def resync(self) -> None:
        self._service.detach(self._ring)
        self._ring = RingSink(RING)
        self._service.attach(self._ring)

    # --- what is asked of it ----------------------------------------------------------------------------------------

    async def chat(self, messages: Sequence[ChatMessage], params: SamplingParams, priority: int = 0) -> str:
        engine = await self._service.wait_ready()
        tokenizer = engine.tokenizer
        assert tokenizer is not None  # `build_engine` gives one
        ids = await asyncio.to_thread(tokenizer.encode_chat, [dict(m) for m in messages])
        stream = await self._service.submit(ids, params, priority=priority)
        self._streams.append(stream)
        return stream.request_id

    def abort(self, request_id: str) -> None:
        self._service.abort(request_id)

    def pause(self) -> None:
        self._service.pause()

    def run(self) -> None:
        self._service.resume()

    def step(self, count: int = 1) -> None:
        self._service.step(count)

    def set_speed(self, steps_per_s: float | None) -> None:
        self._service.set_speed(steps_per_s)
        self.meta = replace(self.meta, speed=steps_per_s)

    def set_breaks(self, breaks: BreakOn) -> None:
        self._breaker.breaks = breaks

    def set_draft_tokens(self, k: int | None) -> None:
        self._service.set_draft_tokens(k)
        self.meta = replace(self.meta, k=k)

    def clear_cache(self) -> None:
        self._service.reset_prefix_cache()


def connect(options: EngineConfig, record: Path | None = None, speed: float | None = None) -> InProcessClient:
    """A client of the engine that `options` describe. `speed`: most steps a second, 0 is full speed.

    The demo pair starts slow enough to be watched, with the same rounds for everybody, in a pool that fills.
    """
    from mini_infer.build import build_engine

    if options.model == "demo":
        options = replace(options, draft_tokens=4) if options.draft_tokens == "auto" else options
        if options.kv_blocks is None and options.kv_memory is None:
            options = replace(options, kv_blocks=DEMO_BLOCKS)
        speed = 10.0 if speed is None else speed
    client = InProcessClient(lambda progress: build_engine(options, progress=progress), options, record)
    if speed:
        client.set_speed(speed)
    return client
