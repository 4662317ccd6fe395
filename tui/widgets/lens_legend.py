"""What the signs under an answer mean."""

from __future__ import annotations

from collections.abc import Sequence

from tui.model.lens import WORDS, legend
from tui.model.view_state import ViewState
from tui.widgets.panel import Line, Panel, Span


class LensLegend(Panel):
    can_focus = False
    framed = False

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.lens = "off"

    def draw(self, view: ViewState, width: int, height: int) -> Sequence[Line]:
        title: list[Line] = [[Span(f" lens (^t): {WORDS[self.lens].split(' ')[0]}", "muted")]]
        lines = [[Span("  "), *(Span(text, style) for text, style in line)] for line in legend(self.lens, view.glyphs)]
        return title + lines
