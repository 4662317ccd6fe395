"""The conversation, and what belongs beside it: lens, requests, events."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Markdown

from tui.model.lens import LENSES
from tui.model.view_state import ViewState
from tui.text import safe
from tui.views.base import View
from tui.widgets.answer import AnswerText
from tui.widgets.lens_legend import LensLegend
from tui.widgets.requests import EventList, RequestList


class ChatView(View):
    """Shows the selected request. Its side panels appear where the window is high enough."""

    NAME = "chat"
    TITLE = "Chat"
    HELP = """The selected request: the turns of its prompt, and the answer as it is made.

Under each line of the answer the **lens** says where its tokens come from; *ctrl+t* changes it.

| sign | source |
|---|---|
| `+` | a draft that the target accepted |
| `x` | the target's own token, after it rejected a draft |
| `*` | the bonus token of a round whose drafts were all kept |
| `-` | a plain decode, without drafts |

With the lens off, a finished answer shows as Markdown. The lines below the answer say how much of the prompt came from
the cache, in how many target steps the answer was made, and at which speed. *n* goes to the next request, *x* aborts
the selected one, a click on a token opens its step."""

    DEFAULT_CSS = """
    ChatView AnswerText { height: 1fr; min-height: 3; }
    ChatView #markdown { height: 1fr; border: solid $frame; padding: 0 1; display: none; background: $background; }
    ChatView #markdown Markdown { background: $background; margin: 0; padding: 0; }
    ChatView.-rendered #markdown { display: block; }
    ChatView.-rendered AnswerText { display: none; }
    ChatView LensLegend { height: 3; }
    ChatView RequestList { height: 9; }
    ChatView EventList { height: 10; }
    .-short ChatView RequestList, .-short ChatView EventList { display: none; }
    .-narrow ChatView EventList, .-medium ChatView EventList { display: none; }
    .-medium ChatView RequestList { height: 7; }
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.lens = "off"
        self._rendered = ""  # the text that the Markdown shows

    def compose(self) -> ComposeResult:
        yield AnswerText()
        with VerticalScroll(id="markdown", can_focus=True):
            yield Markdown("", open_links=False)
        yield LensLegend()
        yield RequestList()
        yield EventList()

    def show(self, view: ViewState) -> None:
        super().show(view)
        self._render_markdown(view)

    def _render_markdown(self, view: ViewState) -> None:
        """A finished answer as Markdown, where no lens is on it."""
        seq_id = view.selected
        done = self.lens == "off" and seq_id is not None and view.past.is_ended(seq_id)
        text = view.past.text(seq_id) if done and seq_id is not None else ""
        record = view.past.request(seq_id) if seq_id is not None else None
        whole = record is not None and record.finished is not None and record.finished.reason in ("stop", "length")
        show = bool(text) and whole and not self.query_one(AnswerText).pending
        self.set_class(show, "-rendered")
        if show and seq_id is not None and self._rendered != seq_id:
            self._rendered = seq_id
            asked = escape(view.title(seq_id))
            self.query_one(Markdown).update(f"> {asked}\n\n{safe(text)}")

    def set_lens(self, lens: str) -> None:
        assert lens in LENSES
        self.lens = lens
        self.query_one(AnswerText).lens = lens
        self.query_one(LensLegend).lens = lens
        if self.view is not None:
            self.show(self.view)

    def set_pending(self, text: str) -> None:
        """What was sent and has not arrived at the engine yet."""
        self.query_one(AnswerText).pending = text
        if self.view is not None:
            self.show(self.view)


def escape(text: str) -> str:
    """Text that Markdown shows letter for letter."""
    return "".join(f"\\{c}" if c in "\\`*_{}[]<>()#+-.!|~" else c for c in text)
