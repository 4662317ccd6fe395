"""The pool as a grid of its blocks: owner and fill of each, at three sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType

from tui.messages import BlockHovered, BlockPinned
from tui.model.pool_facts import PoolFacts, find_blocks, pool_facts
from tui.model.view_state import ViewState
from tui.text import safe
from tui.widgets.block_inspector import in_one_line
from tui.widgets.panel import Line, Panel, Span, Target
from tui.widgets.pool_cells import Cells

ZOOMS = ("1:1", "1 cell", "dense")
PER_DENSE = 8
"""Blocks in one cell of the dense form."""


class PoolGrid(Panel):
    """`at`: the block under the grid's own cursor. `zoom`: None takes the largest form that fits."""

    padding_cells = 0
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "move(-1, 0)", "Block left", show=False, id="grid-left"),
        Binding("right", "move(1, 0)", "Block right", show=False, id="grid-right"),
        Binding("up", "move(0, -1)", "Block up", show=False, id="grid-up"),
        Binding("down", "move(0, 1)", "Block down", show=False, id="grid-down"),
        Binding("pageup", "move(0, -8)", "Eight rows up", show=False, id="grid-page-up"),
        Binding("pagedown", "move(0, 8)", "Eight rows down", show=False, id="grid-page-down"),
        Binding("enter", "pin", "Pin", show=True, id="grid-pin"),
        Binding("z", "zoom", "Zoom", show=True, id="grid-zoom"),
    ]

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.at: int | None = None
        self.zoom: str | None = None
        self.sought = ""
        self._first = 0  # the first row of blocks in sight
        self._shape = (ZOOMS[0], 16)  # zoom and blocks per row, as drawn last
        self._hover: int | None = None

    # --- drawing ----------------------------------------------------------------------------------------------------

    def heading(self, view: ViewState) -> tuple[str, str]:
        info = view.state.info
        left = f"KV pool  {info.num_blocks} x {info.block_size} tok"
        if self.sought:
            count = len(find_blocks(view, self.sought))
            return f'{left}  "{safe(self.sought, view.glyphs.newline)}": {count} blocks', self._shape[0]
        return left, f"z {self._shape[0]}"

    def draw(self, view: ViewState, width: int, height: int) -> Sequence[Line]:
        facts = pool_facts(view)
        total = view.state.info.num_blocks
        label = len(str(total - 1)) + 1 if width >= 12 else 0
        zoom, columns = self._shape = self._fitting(total, width - label, height)
        rows = -(-total // columns)
        head = [self._ruler(zoom, columns, label)] if height > 2 and zoom != "dense" else []
        foot = [self._counts(view, facts, width)] if height - len(head) > 1 else []
        room = height - len(head) - len(foot)
        if self.at is not None:
            row = min(self.at, total - 1) // columns
            self._first = max(min(self._first, row), row - room + 1)
        self._first = max(0, min(self._first, rows - room))
        shown = range(self._first, min(rows, self._first + room))
        cells = Cells(view, facts, frozenset(find_blocks(view, self.sought)) if self.sought else None, self._marked())
        lines: list[Line] = list(head)
        for first in (row * columns for row in shown):
            start = [Span(f"{first:>{label - 1}} ", "faint")] if label else []
            lines.append([*start, *cells.row(zoom, first, min(total, first + columns))])
        legend = self._legend(view, width)
        if room - len(shown) >= len(legend) + 2:
            lines += [[], *legend, []]
        elif room - len(shown) >= len(legend):
            lines += legend
        return [*lines, *foot]

    def _fitting(self, total: int, cells: int, height: int) -> tuple[str, int]:
        """The form and its blocks per row: the narrowest round number whose rows all fit, else the widest."""
        shape = (ZOOMS[-1], PER_DENSE)
        for zoom in ZOOMS if self.zoom is None else (self.zoom,):
            most = {"1:1": (cells + 1) // 3, "1 cell": cells, "dense": cells * PER_DENSE}[zoom]
            first, by = {"1:1": (16, 8), "1 cell": (32, 16), "dense": (128, 64)}[zoom]
            widths = [*range(first, most + 1, by)] or [max(1 << i for i in range(8) if 1 << i <= max(1, most))]
            fits = [w for w in widths if -(-total // w) <= height - 2]
            shape = (zoom, fits[0] if fits else widths[-1])
            if fits:
                break
        return shape

    def _marked(self) -> int | None:
        return self.at if self.has_focus else None

    def _ruler(self, zoom: str, columns: int, label: int) -> Line:
        if zoom == "1:1":
            return [Span(" " * label + " ".join(f"{i:>2}" for i in range(columns)), "faint")]
        return [Span(" " * label + "".join(f"{i:<8}" for i in range(0, columns, 8))[:columns], "faint")]

    def _counts(self, view: ViewState, facts: PoolFacts, width: int) -> Line:
        pool = view.state.pool
        figures = f"used {pool.used}   cached {pool.cached}   free {pool.free}"
        unused = f"   slots unused {facts.wasted}"
        if width < len(figures):
            figures = f"{pool.used}+{pool.cached}+{pool.free}"
        return [Span(figures), Span(unused if len(figures + unused) <= width else "", "muted")]

    def _legend(self, view: ViewState, width: int) -> list[Line]:
        g, zoom = view.glyphs, self._shape[0]
        if zoom == "dense":
            sign = (
                "a dot per held block, 8 blocks a cell" if g.name == "unicode" else "1-8 held of the 8 blocks of a cell"
            )
            entries = [sign, f"{g.cached} only cached ones   {g.free} all free"]
        elif zoom == "1 cell":
            entries = ["A..Z owner (selected: bold)", "2-9 + shared by so many", f"{g.cached} cached, evictable",
                       f"{g.free} free   new: reverse   freed: {g.freed}"]  # fmt: skip
        else:
            to = "-" if g.name == "ascii" else g.ellipsis
            entries = ["A..Z owner (selected: bold)", f"{g.fill[0]}{to}{g.fill[-1]} how full",
                       f"{g.shared}n  shared by n requests", f"{g.cached}  cached, evictable",
                       f"{g.free * 2}  free", f"new: reverse  freed: {g.freed}"]  # fmt: skip
        columns = 2 if width >= 48 and zoom != "dense" else 1
        pairs = [entries[i : i + columns] for i in range(0, len(entries), columns)]
        return [[Span("".join(f"{e:<29} " for e in pair).rstrip(), "muted")] for pair in pairs]

    # --- keys and mouse ---------------------------------------------------------------------------------------------

    def action_move(self, dx: int, dy: int) -> None:
        """The cursor starts at the pinned block, else at what is new in this step, else at the first one in sight."""
        if self.view is None:
            return
        columns, last = self._shape[1], self.view.state.info.num_blocks - 1
        if self.at is None:
            new = pool_facts(self.view).new
            start = self.view.pinned if self.view.pinned is not None else min(new, default=self._first * columns)
            self.go(min(last, start))
            return
        at = self.at + dx + dy * columns
        self.go(at if 0 <= at <= last else max(0, min(last, at)) if abs(dy) != 1 else self.at)

    def go(self, block: int) -> None:
        """Put the cursor on a block."""
        self.at = block
        self.redraw()
        self.post_message(BlockHovered(block))

    def action_pin(self) -> None:
        if self.view is None:
            return
        at = self.at if self.at is not None else self._hover
        if at is None or at == self.view.pinned:
            self.post_message(BlockPinned(None))
        else:
            self.post_message(BlockPinned(at))

    def action_zoom(self) -> None:
        self.zoom = ZOOMS[(ZOOMS.index(self._shape[0]) + 1) % len(ZOOMS)]
        self._first = 0
        self.redraw()

    def find(self, text: str) -> None:
        """Mark the blocks with this text, and go to the first of them."""
        self.sought = text
        found = find_blocks(self.view, text) if self.view is not None else []
        if found:
            self.go(found[0])
        self.redraw()

    def clicked(self, target: Target) -> None:
        if target.kind == "block":
            self.at = target.number
            self.redraw()
        super().clicked(target)

    def hovered(self, target: Target | None) -> None:
        block = target.number if target is not None and target.kind == "block" else None
        if block == self._hover:
            return
        self._hover = block
        self.tooltip = None if block is None or self.view is None else Text(in_one_line(self.view, block))
        self.post_message(BlockHovered(block if block is not None else self._marked()))

    def scroll_lines(self, by: int) -> None:
        if self.at is not None:
            self.action_move(0, by)
        else:
            self._first = max(0, self._first + by)
            self.redraw()
