"""Panels with a row per request: up and down select the request above or below."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType

from tui.messages import RequestSelected
from tui.model.view_state import ViewState
from tui.widgets.panel import Panel


class RequestRows(Panel):
    """Subclasses give `ids`, the requests they show from top to bottom."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "pick(-1)", "Request above", show=False, id="rows-up"),
        Binding("down", "pick(1)", "Request below", show=False, id="rows-down"),
    ]

    def ids(self, view: ViewState) -> Sequence[str]:
        return []

    def action_pick(self, by: int) -> None:
        ids = list(self.ids(self.view)) if self.view is not None else []
        if not ids or self.view is None:
            return
        selected = self.view.selected
        index = ids.index(selected) + by if selected in ids else 0 if by > 0 else len(ids) - 1
        self.post_message(RequestSelected(ids[max(0, min(len(ids) - 1, index))]))
