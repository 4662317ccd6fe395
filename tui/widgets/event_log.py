"""All that happened, a line each, the newest first; by kind, by request, by text."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from tui.messages import CursorMoved
from tui.model.records import Event
from tui.model.view_state import ViewState
from tui.text import clip, fit, width
from tui.widgets.listing import Listing
from tui.widgets.panel import Line, Span, Target

FILTERS: dict[str, frozenset[str]] = {
    "all": frozenset(),
    "requests": frozenset({"arrived", "admitted", "preempted", "finished", "error", "aborted"}),
    "blocks": frozenset({"blocks", "evict", "preempted"}),
    "drafts": frozenset({"spec"}),
    "trouble": frozenset({"preempted", "evict", "error", "aborted", "control"}),
}
KIND_STYLES = {
    "preempted": "bad", "error": "bad bold", "aborted": "own", "evict": "own", "finished": "good", "control": "paused",
    "spec": "muted", "blocks": "muted",
}  # fmt: skip
MOST = 4_000


class EventLog(Listing[Event]):
    """`filter` is a name in `FILTERS`; `only_selected` keeps what names the selected request; `find` a text."""

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.filter = "all"
        self.only_selected = False
        self.find = ""
        self._for: tuple[object, ...] = ()
        self._found: list[tuple[int, Event]] = []

    def heading(self, view: ViewState) -> tuple[str, str]:
        words = ["events"]
        if self.filter != "all":
            words.append(self.filter)
        if self.only_selected and view.selected is not None:
            words.append(f"of {view.letter(view.selected)}")
        if self.find:
            words.append(f'"{clip(self.find, 20, view.glyphs.ellipsis)}"')
        return " ".join(words), f"{len(self._events(view))} kept, newest first"

    def items(self, view: ViewState) -> Sequence[Event]:
        return [event for _, event in self._events(view)]

    def _events(self, view: ViewState) -> list[tuple[int, Event]]:
        """(its number within its report, the event); found once per view and filter."""
        asked = (view, self.filter, self.only_selected, self.find)
        if not (self._for and self._for[0] is view and self._for[1:] == asked[1:]):
            self._for, self._found, number, seq = asked, [], 0, -1
            for event in view.past.events(MOST):
                number, seq = (number + 1, seq) if event.seq == seq else (0, event.seq)
                if self._keeps(view, event):
                    self._found.append((number, event))
        return self._found

    def _keeps(self, view: ViewState, event: Event) -> bool:
        kinds = FILTERS[self.filter]
        if kinds and event.kind not in kinds:
            return False
        if self.only_selected and view.selected is not None and event.seq_id != view.selected:
            return False
        return not self.find or self.find.casefold() in f"{event.step} {event.kind} {event.text}".casefold()

    def key(self, item: Event) -> Hashable:
        return item

    def none(self, view: ViewState) -> str:
        narrowed = self.filter != "all" or self.only_selected or self.find
        return "nothing like that happened" if narrowed else "nothing yet"

    def opened(self, item: Event) -> None:
        self.post_message(CursorMoved(item.step))

    def row(self, view: ViewState, item: Event, width: int, here: bool) -> Line:
        g, target = view.glyphs, Target("step", item.seq_id, item.step)
        mark = g.selected if here and self.has_focus else g.preempted if item.kind == "preempted" else " "
        letter = view.letter(item.seq_id) if item.seq_id else " "
        kind = f"{item.kind:<10}" if width >= 50 else ""
        style = KIND_STYLES.get(item.kind, "")
        text = item.text.replace("→", g.arrow)
        owner = view.owner(item.seq_id) if item.seq_id else "faint"
        here_style = "bold " if here and self.has_focus else ""
        return [
            Span(f"{item.step:>5} {mark} ", "faint", target),
            Span(f"{letter} ", owner, Target("request", item.seq_id) if item.seq_id else target),
            Span(kind, style or "muted", target),
            Span(_fit(text, max(0, width - 10 - len(kind)), g.ellipsis), here_style + style, target),
        ]

    def next_filter(self) -> None:
        names = list(FILTERS)
        self.filter, self.at = names[(names.index(self.filter) + 1) % len(names)], None
        self.redraw()

    def toggle_selected(self) -> None:
        self.only_selected, self.at = not self.only_selected, None
        self.redraw()

    def search(self, text: str) -> None:
        self.find, self.at = text, None
        self.redraw()


def _fit(text: str, cells: int, mark: str) -> str:
    return fit(clip(text, cells, mark), cells) if width(text) > cells else text
