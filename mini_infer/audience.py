"""The sinks that listen to an engine: who gets which report, and what happens when one of them fails."""

from __future__ import annotations

import logging
from collections.abc import Callable

from mini_infer.errors import UserError
from mini_infer.observe.events import StepReport
from mini_infer.observe.sinks import Sink
from mini_infer.observe.state import EngineState

log = logging.getLogger("mini_infer")


class Audience:
    """`snapshot()` gives the engine's state as of its last report; `on_listen` is told whether anybody listens."""

    def __init__(self, snapshot: Callable[[], EngineState], on_listen: Callable[[bool], None]) -> None:
        self._snapshot = snapshot
        self._on_listen = on_listen
        self._sinks: list[Sink] = []
        self._joining: list[Sink] = []

    def join(self, sink: Sink, *, now: bool) -> None:
        """Begin with a snapshot, now or (where news are pending that no report has told) after the next report."""
        self._joining.append(sink)
        if now:
            self._welcome()

    def leave(self, sink: Sink) -> None:
        """Send this sink nothing more; it is not closed."""
        listened = bool(self._sinks)
        self._sinks = [s for s in self._sinks if s is not sink]
        self._joining = [s for s in self._joining if s is not sink]
        if listened and not self._sinks:
            self._on_listen(False)

    def tell(self, report: StepReport) -> None:
        for sink in tuple(self._sinks):  # one that joins now has a snapshot that includes this report
            self._guarded(sink, lambda sink=sink: sink.emit(report))  # type: ignore[misc]
        if self._joining:
            self._welcome()

    def _welcome(self) -> None:
        joining, self._joining = self._joining, []
        if not self._sinks:
            self._on_listen(True)
        snapshot = self._snapshot()
        self._sinks += joining
        for sink in joining:
            self._guarded(sink, lambda sink=sink: sink.start(snapshot))  # type: ignore[misc]

    def _guarded(self, sink: Sink, call: Callable[[], None]) -> None:
        """A sink that raises (disk full) is detached with one warning; the step stands."""
        try:
            call()
        except Exception as error:
            said = error if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            log.warning("an observer failed and was detached: %s", said)
            self.leave(sink)
