"""A recorded trace, played as if it happened now."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from mini_infer.errors import UserError
from mini_infer.observe.events import StepReport
from mini_infer.observe.trace_file import read_trace
from mini_infer.sampling.params import SamplingParams
from tui.client.meta import meta_of
from tui.client.protocol import ChatMessage, Update
from tui.model.breaks import BreakOn

MOST_PER_POLL = 500
"""Reports handed over at once, however fast it plays: the screen stays alive."""


class ReplayClient:
    """Plays `path` at `speed` steps per second (None: as fast as it can be shown). Raises UserError.

    Pausing, stepping and breaking work on the recording; nothing can be asked of it.
    """

    def __init__(self, path: Path, speed: float | None = 10.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._trace = read_trace(path)
        self.meta = replace(meta_of(self._trace.header.config, is_replay=True), speed=speed)
        self._reports: Iterator[StepReport] = self._trace.reports()
        self._clock = clock
        self._due = 0.0  # when the next step is
        self._steps = 0  # to be taken while paused
        self._told_snapshot = self._ended = False
        self._breaks = BreakOn()
        self.is_paused = False

    async def start(self) -> None:
        self._due = self._clock()

    async def close(self) -> None:
        self._ended = True

    def poll(self) -> Update:
        snapshot = None if self._told_snapshot else self._trace.snapshot
        self._told_snapshot = True
        reports: list[StepReport] = []
        while not self._ended and len(reports) < MOST_PER_POLL:
            if self.is_paused and not self._steps:
                break
            if not self.is_paused and self.meta.speed is not None and self._clock() < self._due:
                break
            try:
                report = next(self._reports, None)
            except UserError as error:
                self._ended = True
                return Update(snapshot, reports, failed=str(error))
            if report is None:
                self._ended = True
                return Update(snapshot, reports, notes=["the end of the recording", *filter(None, [self._trace.note])])
            reports.append(report)
            if report.stepped:
                self._due = max(self._due, self._clock() - 1.0) + 1.0 / (self.meta.speed or 1e9)
                self._steps = max(0, self._steps - 1)
            kind = self._breaks.met_by(report)
            if kind is not None and not self.is_paused:
                self.is_paused = True
                return Update(snapshot, reports, stopped_for=kind)
        return Update(snapshot, reports)

    def resync(self) -> None:
        """Play it from the beginning."""
        self._reports, self._told_snapshot, self._ended = self._trace.reports(), False, False

    async def chat(self, messages: Sequence[ChatMessage], params: SamplingParams, priority: int = 0) -> str:
        raise UserError("this is a recording: it takes no messages")

    def abort(self, request_id: str) -> None: ...

    def pause(self) -> None:
        self.is_paused = True

    def run(self) -> None:
        self.is_paused, self._steps, self._due = False, 0, self._clock()

    def step(self, count: int = 1) -> None:
        if self.is_paused:
            self._steps += count

    def set_speed(self, steps_per_s: float | None) -> None:
        self.meta = replace(self.meta, speed=steps_per_s)
        self._due = self._clock()

    def set_breaks(self, breaks: BreakOn) -> None:
        self._breaks = breaks

    def set_draft_tokens(self, k: int | None) -> None: ...

    def clear_cache(self) -> None: ...
