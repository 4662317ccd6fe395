"""Where reports go: a sink gets a snapshot, then every report after it, on the engine's thread.

The engine detaches a sink that raises, and never waits for one: whoever reads slowly reads from a `RingSink`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import Lock
from typing import Protocol

from mini_infer.observe.events import StepReport
from mini_infer.observe.state import EngineState, Gap


class Sink(Protocol):
    def start(self, snapshot: EngineState) -> None:
        """The state from which the reports go on; called once, before any of them."""

    def emit(self, report: StepReport) -> None:
        """One report; they come in order and without gaps."""

    def close(self) -> None:
        """No more reports will come. May be called again, and after `emit` raised."""


class CallbackSink(Sink):
    """Hands every report to a function, for instance one that passes it to an event loop."""

    def __init__(self, on_report: Callable[[StepReport], object]) -> None:
        self._on_report = on_report

    def start(self, snapshot: EngineState) -> None:
        """Reports are all it hands on."""

    def emit(self, report: StepReport) -> None:
        self._on_report(report)

    def close(self) -> None:
        """Nothing is held."""


class RingSink(Sink):
    """Keeps the last `maxlen` reports for readers on other threads; older ones are dropped and counted.

    A reader that lost reports sees a `Gap` (here or in `fold`), asks the engine for a snapshot and goes on from there.
    """

    def __init__(self, maxlen: int) -> None:
        if maxlen < 1:
            raise ValueError(f"a ring keeps at least one report, not {maxlen}")
        self.snapshot: EngineState | None = None
        self.dropped = 0
        self.closed = False
        self._reports: deque[StepReport] = deque(maxlen=maxlen)
        self._next = 0  # the seq that the next report will have
        self._lock = Lock()

    def start(self, snapshot: EngineState) -> None:
        with self._lock:
            self.snapshot = snapshot
            self._reports.clear()
            self._next = snapshot.seq + 1

    def emit(self, report: StepReport) -> None:
        with self._lock:
            self.dropped += len(self._reports) == self._reports.maxlen
            self._reports.append(report)
            self._next = report.seq + 1

    def close(self) -> None:
        self.closed = True

    def drain(self) -> list[StepReport]:
        """Takes all reports out, oldest first: for a ring with one reader."""
        with self._lock:
            reports = list(self._reports)
            self._reports.clear()
        return reports

    def since(self, seq: int) -> list[StepReport]:
        """The reports after number `seq`, which stay in the ring: for several readers, each with a place of its own.

        Raises Gap where the first of them is no longer here, or `seq` is of another engine.
        """
        with self._lock:
            reports = [report for report in self._reports if report.seq > seq]
            first = reports[0].seq if reports else self._next
        if first != seq + 1:
            raise Gap(seq + 1, first)
        return reports
