"""A panel of rows with a cursor, of which those around the cursor show; head and foot stay."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import ClassVar, Generic, TypeVar

from textual.binding import Binding, BindingType

from tui.model.view_state import ViewState
from tui.widgets.panel import Line, Panel, Span, Target
from tui.widgets.wrapped import wrap

T = TypeVar("T")


class Listing(Panel, Generic[T]):
    """Subclasses give `items`, `key`, and `row`; `head`, `foot`, `home`, `moved` and `opened` where they need to.

    The cursor holds on to the key of its item. Until somebody moves it, it stands where `home` says.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", "Up", show=False, id="list-up"),
        Binding("down", "move(1)", "Down", show=False, id="list-down"),
        Binding("pageup", "move(-10)", "Ten up", show=False, id="list-page-up"),
        Binding("pagedown", "move(10)", "Ten down", show=False, id="list-page-down"),
        Binding("enter", "open", "Open", show=True, id="list-open"),
    ]

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.at: Hashable | None = None  # the key of the item under the cursor; None follows `home`
        self.first = 0  # the first item in sight
        self.drawn: Sequence[T] = ()  # all items, while they are drawn

    # --- for subclasses ---------------------------------------------------------------------------------------------

    def items(self, view: ViewState) -> Sequence[T]:
        return []

    def key(self, item: T) -> Hashable:
        return item if isinstance(item, Hashable) else id(item)

    def row(self, view: ViewState, item: T, width: int, here: bool) -> Line:
        return []

    def head(self, view: ViewState, width: int, height: int) -> list[Line]:
        return []

    def foot(self, view: ViewState, width: int, height: int) -> list[Line]:
        return []

    def none(self, view: ViewState) -> str:
        """What to say where there is no item."""
        return "nothing yet"

    def home(self, view: ViewState, items: Sequence[T]) -> int:
        """Where the cursor stands before it is moved."""
        return 0

    def moved(self, item: T) -> None:
        """The cursor went to this item."""

    def opened(self, item: T) -> None:
        """Enter on this item."""

    # --- drawing ----------------------------------------------------------------------------------------------------

    def index(self, view: ViewState, items: Sequence[T]) -> int:
        """The cursor's place; that of `home` where its item is gone."""
        if self.at is not None:
            found = next((i for i, item in enumerate(items) if self.key(item) == self.at), None)
            if found is not None:
                return found
            self.at = None
        return self.home(view, items)

    def current(self) -> T | None:
        """The item under the cursor."""
        items = self.items(self.view) if self.view is not None else ()
        return items[self.index(self.view, items)] if self.view is not None and items else None

    def draw(self, view: ViewState, width: int, height: int) -> Sequence[Line]:
        items = self.drawn = self.items(view)
        head = self.head(view, width, height)[: max(0, height - 1)]
        if not items:
            return [*head, *([Span(line, "muted")] for line in wrap(self.none(view), width))]
        foot = self.foot(view, width, height)
        room = height - len(head) - len(foot)
        if room < min(3, len(items)):
            foot, room = [], max(1, height - len(head))
        here = self.index(view, items)
        self.first = max(0, min(self.first, here, len(items) - room), here - room + 1)
        shown = items[self.first : self.first + room]
        rows = [self._row(view, item, width, self.first + i, here) for i, item in enumerate(shown)]
        return [*head, *rows, *([[]] * (room - len(rows)) if foot else []), *foot]

    def _row(self, view: ViewState, item: T, cells: int, index: int, here: int) -> Line:
        """Its spans; a click on those without a target moves the cursor."""
        target = Target("item", "", index)
        return [
            span if span.target is not None else span._replace(target=target)
            for span in self.row(view, item, cells, index == here)
        ]

    # --- keys and mouse ---------------------------------------------------------------------------------------------

    def action_move(self, by: int) -> None:
        if self.view is None:
            return
        items = self.items(self.view)
        if items:
            self._go(items, max(0, min(len(items) - 1, self.index(self.view, items) + by)))

    def _go(self, items: Sequence[T], index: int) -> None:
        assert self.view is not None
        self.at = None if index == self.home(self.view, items) else self.key(items[index])
        self.redraw()
        self.moved(items[index])

    def action_open(self) -> None:
        item = self.current()
        if item is not None:
            self.opened(item)

    def clicked(self, target: Target) -> None:
        if target.kind != "item":
            super().clicked(target)
        elif self.view is not None and target.number < len(items := self.items(self.view)):
            self._go(items, target.number)

    def scroll_lines(self, by: int) -> None:
        self.action_move(by)
