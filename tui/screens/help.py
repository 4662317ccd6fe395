"""F1: what the view in front shows, and every key."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Markdown

from tui.strings import KEYS, TOUR


class HelpScreen(ModalScreen[None]):
    """`text`: the Markdown of a view's HELP. F1 again leads on: keys, then the tour, then back."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f1,question_mark", "next", "Next page", id="help_next"),
        Binding("escape,q,enter", "dismiss_help", "Close", id="help_close"),
    ]
    DEFAULT_CSS = """
    HelpScreen { align: center middle; background: $background 60%; }
    HelpScreen VerticalScroll {
        width: 90%; max-width: 96; height: 90%; background: $panel; border: solid $primary; padding: 0 1;
    }
    HelpScreen Markdown { background: $panel; }
    """

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self._pages = [f"# {title}\n\n{text}\n\n*F1: the keys, then the tour. Escape closes.*", KEYS, TOUR]
        self._page = 0

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Markdown(self._pages[0], open_links=False)

    async def action_next(self) -> None:
        self._page = (self._page + 1) % len(self._pages)
        await self.query_one(Markdown).update(self._pages[self._page])
        self.query_one(VerticalScroll).scroll_home(animate=False)

    def action_dismiss_help(self) -> None:
        self.dismiss()
