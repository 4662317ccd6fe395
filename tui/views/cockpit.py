"""Everything at once, small: the right part of a wide screen, beside the chat."""

from __future__ import annotations

from textual.app import ComposeResult

from tui.views.base import View
from tui.widgets.requests import EventList, RequestList


class CockpitView(View):
    NAME = "cockpit"
    TITLE = "Cockpit"
    HELP = """Everything at once. Each panel is a small form of a view of its own: *1* to *6* open them."""

    def compose(self) -> ComposeResult:
        yield RequestList()
        yield EventList()
