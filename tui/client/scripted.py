"""A client that gives out reports when it is told to, and keeps what it was asked: for tests and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mini_infer.errors import UserError
from mini_infer.observe.events import StepReport
from mini_infer.observe.state import EngineState
from mini_infer.sampling.params import SamplingParams
from tui.client.protocol import ChatMessage, Loading, Update
from tui.model.breaks import BreakOn
from tui.model.view_state import Meta


class ScriptedClient:
    """`snapshot` None: still loading (see `loading`). `asked` has (what, value) of everything it was asked."""

    def __init__(
        self, snapshot: EngineState | None, reports: Sequence[StepReport] = (), meta: Meta | None = None
    ) -> None:
        self.meta = meta or Meta()
        self.snapshot = snapshot
        self.reports = list(reports)
        self.loading = Loading("loading weights", 1, 4)
        self.failed: str | None = None
        self.stopped_for: str | None = None
        self.notes: list[str] = []
        self.refuse: str | None = None  # what `chat` raises
        self.asked: list[tuple[str, object]] = []
        self.is_paused = False
        self._next = 0
        self._given: list[StepReport] = []
        self._told = False

    # --- the script -------------------------------------------------------------------------------------------------

    def advance(self, count: int = 1) -> None:
        """The next reports come with the next poll."""
        self._given += self.reports[self._next : self._next + count]
        self._next += count

    def advance_to(self, step: int) -> None:
        """All reports up to a step."""
        while self._next < len(self.reports) and self.reports[self._next].step <= step:
            self.advance()

    def lose(self, count: int = 1) -> None:
        """The next reports never come."""
        self._next += count

    # --- EngineClient -----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        self.asked.append(("start", None))

    async def close(self) -> None:
        self.asked.append(("close", None))

    def poll(self) -> Update:
        if self.snapshot is None:
            return Update(loading=self.loading, failed=self.failed)
        fresh = None if self._told else self.snapshot
        self._told = True
        given, self._given = self._given, []
        notes, self.notes = self.notes, []
        stopped_for, self.stopped_for = self.stopped_for, None
        return Update(fresh, given, None, self.failed, stopped_for, notes)

    def resync(self) -> None:
        self.asked.append(("resync", None))
        self._told, self._given = False, []

    async def chat(self, messages: Sequence[ChatMessage], params: SamplingParams, priority: int = 0) -> str:
        if self.refuse is not None:
            raise UserError(self.refuse)
        self.asked.append(("chat", ([dict(m) for m in messages], params, priority)))
        return f"r{sum(what == 'chat' for what, _ in self.asked)}"

    def abort(self, request_id: str) -> None:
        self.asked.append(("abort", request_id))

    def pause(self) -> None:
        self.is_paused = True
        self.asked.append(("pause", None))

    def run(self) -> None:
        self.is_paused = False
        self.asked.append(("run", None))

    def step(self, count: int = 1) -> None:
        self.asked.append(("step", count))
        self.advance(count)

    def set_speed(self, steps_per_s: float | None) -> None:
        self.meta = replace(self.meta, speed=steps_per_s)
        self.asked.append(("speed", steps_per_s))

    def set_breaks(self, breaks: BreakOn) -> None:
        self.asked.append(("breaks", breaks.kinds))

    def set_draft_tokens(self, k: int | None) -> None:
        self.meta = replace(self.meta, k=k)
        self.asked.append(("k", k))

    def clear_cache(self) -> None:
        self.asked.append(("clear_cache", None))
