"""The pool block by block, the block one looks at, and the tables of all requests."""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal

from tui.messages import BlockHovered
from tui.views.base import View
from tui.widgets.block_inspector import BlockInspector
from tui.widgets.block_tables import BlockTables
from tui.widgets.find_bar import FindBar
from tui.widgets.pool_grid import PoolGrid


class BlocksView(View):
    NAME = "blocks"
    TITLE = "Blocks"
    HELP = """**The KV pool.** Keys and values of all requests live in blocks of a fixed number of tokens. Each block is
two cells: who holds it, and how full it is.

| sign | block |
|---|---|
| `A█` | held by A, full; `A▁` has only a few tokens |
| `*3` | shared by three requests: the same prefix, kept once (`*+`: ten or more) |
| `○█` | cached: nobody holds it, a later prefix can hit it, it is evicted when blocks run out |
| `··` | free, with nothing in it |
| reverse | taken in this step |
| `x` | freed in this step (`x█` is still cached) |

*Cached* is neither used nor free: it can be had at any time, but it is worth keeping. The selected request is bold,
others are dim.

**The inspector** shows the pinned block, else the one under the pointer or cursor: its holders with the place in
their tables, its key and its parent's key, when it was taken and hit, and its place in the order of eviction.

**Tables** are in logical order: the n-th entry holds the n-th block of tokens.

| key | does |
|---|---|
| arrows | the block; in the tables, the request |
| *enter* | pin or unpin it |
| */* | find blocks whose tokens contain a text |
| *z* | zoom: two cells a block, one cell, eight blocks a cell |
| *n* | the next request |"""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "find", "Find text", show=True, id="blocks-find"),
        Binding("z", "zoom", "Zoom", show=True, id="blocks-zoom"),
    ]
    DEFAULT_CSS = """
    BlocksView Horizontal { height: 2fr; }
    BlocksView PoolGrid { width: 1fr; }
    BlocksView BlockInspector { width: 32%; min-width: 26; max-width: 44; }
    BlocksView.-slim BlockInspector { display: none; }
    BlocksView BlockTables { height: 1fr; }
    """

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield PoolGrid()
            yield BlockInspector()
        yield BlockTables()
        yield FindBar("text in blocks")

    def on_resize(self, event: events.Resize) -> None:
        self.set_class(event.size.width < 48, "-slim")

    def on_block_hovered(self, message: BlockHovered) -> None:
        self.query_one(BlockInspector).look_at(message.block)

    def on_find_bar_sought(self, message: FindBar.Sought) -> None:
        message.stop()
        self.query_one(PoolGrid).find(message.text)

    def action_find(self) -> None:
        self.query_one(FindBar).open()

    def action_zoom(self) -> None:
        self.query_one(PoolGrid).action_zoom()
