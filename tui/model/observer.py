"""The playground's whole knowledge: history, ledger and cursor, fed with what a client's polls give."""

from __future__ import annotations

from collections.abc import Iterable

from mini_infer.observe.events import StepReport
from mini_infer.observe.state import EngineState
from tui.glyphs import UNICODE, Glyphs
from tui.model import cursor as moves
from tui.model.cursor import Cursor
from tui.model.history import History
from tui.model.ledger import Ledger
from tui.model.view_state import Meta, ViewState, view_state


class Observer:
    """`view` is what to draw; everything else changes what that is."""

    def __init__(self, snapshot: EngineState, glyphs: Glyphs = UNICODE) -> None:
        self.history = History(snapshot)
        self.ledger = Ledger(snapshot)
        self.cursor = Cursor()
        self.glyphs = glyphs

    def restart(self, snapshot: EngineState) -> None:
        """Go on from a snapshot, after a gap."""
        self.history.restart(snapshot)
        self.ledger.restart(snapshot)

    def take(self, reports: Iterable[StepReport]) -> bool:
        """Take reports in; False where some are missing and a snapshot is needed."""
        for report in reports:
            if not self.history.add(report):
                return False
            if self.history.live.report is report:
                self.ledger.add(report)
        return True

    def view(self, meta: Meta, paused: bool) -> ViewState:
        return view_state(self.history, self.ledger, self.cursor, self.glyphs, meta, paused=paused)

    # --- where one looks --------------------------------------------------------------------------------------------

    def move(self, by: int) -> None:
        """Steps back (negative) or on."""
        self.cursor = moves.move(self.cursor, by, self.history.oldest, self.history.newest)

    def go(self, step: int | None) -> None:
        self.cursor = moves.go(self.cursor, step, self.history.oldest, self.history.newest)

    def select(self, seq_id: str | None) -> None:
        self.cursor = Cursor(self.cursor.step, seq_id, self.cursor.pinned)

    def select_next(self, by: int) -> None:
        """Among the sequences that live at the cursor, else all that are known."""
        moment = self.history.live if self.cursor.step is None else self.history.at(self.cursor.step)
        ids = [s.seq_id for s in sorted(moment.state.sequences.values(), key=lambda s: (s.arrival, s.choice))]
        self.cursor = moves.select_next(self.cursor, ids or list(self.ledger.requests), by)

    def pin(self, block: int | None) -> None:
        self.cursor = Cursor(self.cursor.step, self.cursor.selected, block)
