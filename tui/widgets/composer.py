"""Where one writes: several lines, a history, and nothing is sent before Enter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rich.segment import Segment
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.strip import Strip
from textual.widgets import TextArea

from tui.text import safe

LONGEST = 200_000
"""Characters; beyond that nobody's context holds it."""
KEPT = 100


class Composer(TextArea):
    """Posts `Sent` at Enter. Up on the first line and down on the last walk through what was sent before."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "send", "Send", id="send", key_display="⏎"),
        Binding("ctrl+j,shift+enter", "newline", "New line", show=False, id="newline"),
        Binding("up", "older", show=False, id="older"),
        Binding("down", "newer", show=False, id="newer"),
    ]
    DEFAULT_CSS = """
    Composer {
        height: auto; min-height: 3; max-height: 8; border: solid $frame; padding: 0 1; background: $background;
    }
    Composer:focus { border: solid $primary; }
    """

    @dataclass
    class Sent(Message):
        text: str

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id, soft_wrap=True, tab_behavior="focus", show_line_numbers=False, compact=False)
        self.placeholder = "Ask something…"
        self.cursor_blink = False
        self._sent: list[str] = []
        self._at = 0  # in the history; its length is the text being written
        self._draft = ""

    def render_line(self, y: int) -> Strip:
        """What was pasted may hold control characters: they are kept in the text and drawn as signs."""
        strip = super().render_line(y)
        if strip.text.isprintable():
            return strip
        segments = [Segment(safe(s.text), s.style) for s in strip]
        return Strip(segments).adjust_cell_length(self.size.width)

    async def _on_key(self, event: events.Key) -> None:
        if event.key == "enter":  # TextArea would take it for a line end before any binding
            event.stop()
            event.prevent_default()
            self.action_send()
            return
        await super()._on_key(event)

    async def _on_paste(self, event: events.Paste) -> None:
        """All lines of what was pasted, whatever their ends."""
        event.stop()
        event.prevent_default()
        room = LONGEST - len(self.text)
        text = event.text.replace("\r\n", "\n").replace("\r", "\n")
        if len(text) > room:
            self.app.notify(f"The text was cut to {LONGEST:,} characters.", severity="warning", markup=False)
        self.insert(text[: max(0, room)], maintain_selection_offset=False)

    def action_send(self) -> None:
        text = self.text.strip()
        if not text:
            return
        if not self._sent or self._sent[-1] != text:
            self._sent = [*self._sent, text][-KEPT:]
        self._at, self._draft = len(self._sent), ""
        self.text = ""
        self.post_message(self.Sent(text))

    def action_newline(self) -> None:
        self.insert("\n")

    def action_older(self) -> None:
        if self.cursor_location[0] > 0 or self._at == 0:
            self.action_cursor_up()
            return
        if self._at == len(self._sent):
            self._draft = self.text
        self._show(self._at - 1)

    def action_newer(self) -> None:
        if self.cursor_location[0] < self.document.line_count - 1 or self._at >= len(self._sent):
            self.action_cursor_down()
            return
        self._show(self._at + 1)

    def _show(self, at: int) -> None:
        self._at = at
        self.text = self._draft if at == len(self._sent) else self._sent[at]
        self.move_cursor(self.document.end)
