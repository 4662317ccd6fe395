"""The base of everything that is drawn anew at each step: lines of styled spans, in a frame with a title.

A panel is one widget that draws cells with the Line API, whatever it shows. `draw` is a pure function of the view, so
a test needs no app: `plain(panel.draw(view, 78, 10))`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, NamedTuple

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Region, Size
from textual.strip import Strip
from textual.widget import Widget

from tui.messages import BlockPinned, CursorMoved, RequestSelected, RoundOpened
from tui.model.view_state import ViewState
from tui.text import clip, fit, width


class Target(NamedTuple):
    """What a click on a span means."""

    kind: str  # request, block, step, round, or a panel's own word (see `Panel.clicked`)
    seq_id: str = ""
    number: int = 0  # the block or the step


class Span(NamedTuple):
    """A stretch of a line. `style`: names from `STYLES`, and bold, dim, reverse, underline, strike, blank-separated."""

    text: str
    style: str = ""
    target: Target | None = None


Line = Sequence[Span]

_HUES = tuple(f"owner-{i}" for i in range(8))
STYLES = (
    *_HUES, *(f"on-{h}" for h in _HUES), "frame", "title", "muted", "faint", "good", "bad", "own", "bonus", "draft",
    "shared", "live", "history", "paused", "warning", "cursor",
)  # fmt: skip
"""Component classes, as `panel--NAME`: themes own the colours. `on-owner-N` has the hue as background."""

_ATTRIBUTES = {
    word: Style.parse(word) for word in ("bold", "dim", "reverse", "underline", "strike", "italic")
}  # fmt: skip

_CSS = "\n".join(
    [f"    & > .panel--owner-{i} {{ color: $owner-{i}; }}" for i in range(8)]
    + [f"    & > .panel--on-owner-{i} {{ color: $background; background: $owner-{i}; }}" for i in range(8)]
    + [f"    & > .panel--{n} {{ color: ${n}; }}" for n in
       ("frame", "muted", "faint", "good", "bad", "own", "bonus", "live", "history", "paused", "warning")]
)  # fmt: skip


class Panel(Widget, can_focus=True):
    """A frame with lines in it. Subclasses implement `draw`, and `heading` for the two titles of the frame."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {f"panel--{name}" for name in STYLES}
    DEFAULT_CSS = f"""
    Panel {{
        width: 1fr; height: 1fr;
{_CSS}
    & > .panel--title {{ color: $foreground; }}
    & > .panel--draft {{ color: $good; }}
    & > .panel--shared {{ color: $shared-text; background: $shared-back; text-style: bold; }}
    & > .panel--cursor {{ color: $background; background: $foreground; }}
    }}
    """

    framed: ClassVar[bool] = True
    follows_end: ClassVar[bool] = False
    """Keeps the last line in sight until somebody scrolls up."""
    padding_cells: ClassVar[int] = 1
    """Blank cells between the frame and the lines, left and right."""

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.view: ViewState | None = None
        self.top = 0  # first line shown, where there are more than fit
        self._at_end = True
        self._rows: list[Line] | None = None
        self._styles: dict[str, Style] = {}

    # --- for subclasses ---------------------------------------------------------------------------------------------

    def draw(self, view: ViewState, width: int, height: int) -> Sequence[Line]:
        """The lines inside the frame, for that many cells and rows. Too many lines scroll, too long ones are cut."""
        return []

    def heading(self, view: ViewState) -> tuple[str, str]:
        """The titles at the left and the right of the upper edge."""
        return "", ""

    def clicked(self, target: Target) -> None:
        """A span with this target was clicked."""
        match target.kind:
            case "request":
                self.post_message(RequestSelected(target.seq_id))
            case "block":
                self.post_message(BlockPinned(target.number))
            case "step":
                self.post_message(CursorMoved(target.number))
            case "round":
                self.post_message(RoundOpened(target.seq_id, target.number))

    def hovered(self, target: Target | None) -> None:
        """The pointer is on a span with this target, or left it."""

    # --- data -------------------------------------------------------------------------------------------------------

    def show(self, view: ViewState) -> None:
        """Draw this from now on; only lines that differ are sent to the screen."""
        before, self.view = self._rows, view
        if before is None or not self.size:
            self.redraw()
            return
        self._rows = now = self.rows(view, self.size)
        common = min(len(before), len(now))
        changed = [y for y in range(common) if before[y] != now[y]]
        changed += range(common, max(len(before), len(now)))
        if changed:
            self.refresh(*(Region(0, y, self.size.width, 1) for y in changed))

    def redraw(self) -> None:
        """Draw again, after a change of the panel's own (its cursor, its zoom)."""
        self._rows = None
        self.refresh()

    # --- drawing ----------------------------------------------------------------------------------------------------

    def rows(self, view: ViewState, size: Size) -> list[Line]:
        """Everything, frame included, as lines of exactly that size or shorter."""
        edge = 1 if self.framed and size.width >= 4 and size.height >= 3 else 0
        pad = self.padding_cells if edge else 0
        inner = max(0, size.width - 2 * edge - 2 * pad)
        height = max(0, size.height - 2 * edge)
        drawn = self.draw(view, inner, height) if inner and height else []
        last = max(0, len(drawn) - height)
        self.top = last if self.follows_end and self._at_end else max(0, min(self.top, last))
        self._at_end = self.top == last
        lines = list(drawn[self.top : self.top + height])
        if not edge:
            return lines
        g, blank = view.glyphs, Span(" " * pad)
        left, right = (Span(s, "frame") for s in (g.vertical, g.vertical))
        body = [[left, blank, *cut(line, inner, pad=True), blank, right] for line in lines]
        body += [[left, Span(" " * (inner + 2 * pad)), right]] * (height - len(lines))
        return [self._top_edge(view, size.width), *body, self._bottom_edge(view, size.width)]

    def _top_edge(self, view: ViewState, cells: int) -> Line:
        g = view.glyphs
        left, right = self.heading(view)
        room = cells - 6
        left = clip(left, room, g.ellipsis)
        right = right if width(left) + width(right) + 3 <= room else ""
        spans = [Span(g.top_left + g.horizontal, "frame")]
        if left:
            spans.append(Span(f" {left} ", "title bold" if self.has_focus else "title"))
        used = 3 + (width(left) + 2 if left else 0) + (width(right) + 3 if right else 0)
        spans.append(Span(g.horizontal * max(0, cells - used), "frame"))
        if right:
            spans += [Span(f" {right} ", "muted"), Span(g.horizontal, "frame")]
        return [*spans, Span(g.top_right, "frame")]

    def _bottom_edge(self, view: ViewState, cells: int) -> Line:
        g = view.glyphs
        return [Span(g.bottom_left + g.horizontal * (cells - 2) + g.bottom_right, "frame")]

    def render_line(self, y: int) -> Strip:
        if self._rows is None:
            self._rows = self.rows(self.view, self.size) if self.view is not None else []
        if y >= len(self._rows):
            return Strip.blank(self.size.width, self.style(""))
        segments = [Segment(span.text, self.style(span.style)) for span in self._rows[y] if span.text]
        return Strip(segments).adjust_cell_length(self.size.width, self.style(""))

    def style(self, names: str) -> Style:
        """The style of blank-separated names."""
        found = self._styles.get(names)
        if found is None:
            found = self.rich_style
            for name in names.split():
                found += _ATTRIBUTES.get(name) or self.get_component_rich_style(f"panel--{name}", partial=True)
            self._styles[names] = found
        return found

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._styles.clear()

    # --- mouse and scrolling ----------------------------------------------------------------------------------------

    def target_at(self, x: int, y: int) -> Target | None:
        if self._rows is None or not 0 <= y < len(self._rows):
            return None
        for span in self._rows[y]:
            x -= width(span.text)
            if x < 0:
                return span.target
        return None

    def on_click(self, event: events.Click) -> None:
        target = self.target_at(event.x, event.y)
        if target is not None:
            event.stop()
            self.clicked(target)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        self.hovered(self.target_at(event.x, event.y))

    def on_leave(self, event: events.Leave) -> None:
        self.hovered(None)

    def on_resize(self, event: events.Resize) -> None:
        self._rows = None

    def on_focus(self, event: events.Focus) -> None:
        self.redraw()

    def on_blur(self, event: events.Blur) -> None:
        self.redraw()

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self.scroll_lines(3)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self.scroll_lines(-3)

    def scroll_lines(self, by: int) -> None:
        """Show lines further down (up); `rows` keeps it within bounds."""
        self.top = max(0, self.top + by)
        self._at_end = False  # unless `rows` finds it there
        self.redraw()


def cut(line: Iterable[Span], cells: int, pad: bool = False) -> list[Span]:
    """The spans of a line up to so many cells; `pad` fills the rest with blanks."""
    result: list[Span] = []
    for span in line:
        size = width(span.text)
        if size > cells:
            result.append(span._replace(text=fit(span.text, cells)))
            return result
        result.append(span)
        cells -= size
    if pad and cells:
        result.append(Span(" " * cells))
    return result


def plain(lines: Iterable[Line]) -> str:
    """The text of lines without styles, ends trimmed: for tests and for copying."""
    return "\n".join("".join(span.text for span in line).rstrip() for line in lines)


def empty(text: str) -> list[Line]:
    """What a panel shows where there is nothing to show yet."""
    return [[Span(text, "muted")]]
