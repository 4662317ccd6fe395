"""The last steps, a bar each, as long as the step took and divided into its phases."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from tui.messages import CursorMoved
from tui.model.records import StepRecord
from tui.model.view_state import ViewState
from tui.widgets.listing import Listing
from tui.widgets.panel import Line, Span, Target
from tui.widgets.phase_times import PHASES, SIGNS, STYLES, phases

KEPT = 500


class StepBars(Listing[StepRecord]):
    """The newest step last, and under the cursor until it is moved. All bars have one scale."""

    def heading(self, view: ViewState) -> tuple[str, str]:
        return "steps", "  ".join(f"{s} {p}" for s, p in zip(SIGNS, PHASES, strict=True))

    def items(self, view: ViewState) -> Sequence[StepRecord]:
        return [s for s in view.past.steps[-2 * KEPT :] if s.stepped and s.durations is not None][-KEPT:]

    def key(self, item: StepRecord) -> Hashable:
        return item.seq

    def home(self, view: ViewState, items: Sequence[StepRecord]) -> int:
        return len(items) - 1

    def none(self, view: ViewState) -> str:
        return "no step yet"

    def opened(self, item: StepRecord) -> None:
        self.post_message(CursorMoved(item.step))

    def head(self, view: ViewState, width: int, height: int) -> list[Line]:
        if height < 4 or width < 30:
            return []
        return [[Span(f"   step      ms  tok rows  1 cell = {_scale(self.drawn, width):.3g} ms", "muted")]]

    def row(self, view: ViewState, item: StepRecord, width: int, here: bool) -> Line:
        assert item.durations is not None
        target = Target("step", "", item.step)
        times = phases(item.durations)
        rows = item.budget.tokens if item.budget is not None else 0
        mark = view.glyphs.selected if here else " "
        figures = f"{mark}{item.step:>6} {sum(times):>7.1f} {item.tokens:>4} {rows:>4}  "
        line = [Span(figures, "bold" if here else "", target)]
        scale, done, drawn = _scale(self.drawn, width), 0.0, 0
        for sign, style, ms in zip(SIGNS, STYLES, times, strict=True):
            done += ms
            cells = round(done / scale) - drawn if scale > 0 else 0
            line.append(Span(sign * cells, style, target))
            drawn += cells
        return line


def _scale(items: Sequence[StepRecord], width: int) -> float:
    """Milliseconds per cell, so that the longest of the last 64 steps fits."""
    longest = max((sum(phases(s.durations)) for s in items[-64:] if s.durations is not None), default=0.0)
    return longest / max(1, width - 26)
