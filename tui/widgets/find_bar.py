"""The line in which one types what to find."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Input


class FindBar(Input):
    """Hidden until `open`. Enter goes back to the list and keeps the text, escape drops it."""

    DEFAULT_CSS = """
    FindBar { height: 1; border: none; padding: 0 1; background: $panel; display: none; }
    FindBar:focus { border: none; }
    FindBar.-open { display: block; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "drop", "Find nothing", show=True, id="find-drop"),
    ]

    @dataclass
    class Sought(Message):
        """What is in the line now; empty finds everything."""

        text: str

    def __init__(self, what: str) -> None:
        super().__init__(placeholder=f"find {what}: enter keeps it, escape drops it", select_on_focus=True)
        self.cursor_blink = False
        self._back: Widget | None = None

    def open(self) -> None:
        """Show it; whoever has the focus gets it back."""
        if self.screen.focused is not self:
            self._back = self.screen.focused
        self.add_class("-open")
        self.focus()

    def _close(self) -> None:
        self.remove_class("-open")
        if self._back is not None:
            self._back.focus()

    @on(Input.Changed)
    def _changed(self, event: Input.Changed) -> None:
        event.stop()
        self.post_message(self.Sought(event.value))

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self._close()

    def action_drop(self) -> None:
        self.value = ""
        self._close()
