"""Everything at once, small: the right part of a wide screen, beside the chat."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical

from tui.messages import BlockHovered
from tui.views.base import View
from tui.widgets.acceptance import Acceptance
from tui.widgets.block_inspector import BlockInspector
from tui.widgets.block_tables import BlockTables
from tui.widgets.hit_bars import HitBars
from tui.widgets.pool_grid import PoolGrid
from tui.widgets.rounds import RoundList
from tui.widgets.step_panel import StepPanel
from tui.widgets.stop_reason import StopReason
from tui.widgets.timeline import Timeline


class CockpitView(View):
    NAME = "cockpit"
    TITLE = "Cockpit"
    HELP = """Everything at once. Each panel is a small form of a view of its own, where its signs are explained:

| panel | view | shows |
|---|---|---|
| chat, requests, events | *1* | the selected request, all requests, what happened last |
| KV pool, block, block tables | *2* | who holds which block of the cache |
| requests x steps, step | *3* | who was served in which step, and what the last one did |
| prefix hits | *4* | what the prefix cache gave to each request |
| speculation | *5* | which drafts were kept |

*tab* goes from panel to panel; the selected request (*n*, or a click) is the same in all of them."""

    DEFAULT_CSS = """
    CockpitView > Horizontal { height: 1fr; }
    CockpitView #pool { height: 10fr; }
    CockpitView PoolGrid { width: 3fr; }
    CockpitView BlockInspector { width: 2fr; }
    CockpitView BlockTables { height: 6fr; }
    CockpitView Timeline { height: 9fr; }
    CockpitView StepPanel { height: 5; }
    CockpitView #below { height: 12fr; }
    CockpitView #prefix, CockpitView #spec { width: 1fr; }
    CockpitView StopReason { height: 5; }
    CockpitView Acceptance { height: 6; }
    .-medium CockpitView BlockInspector, .-medium CockpitView BlockTables, .-medium CockpitView #below {
        display: none;
    }
    """

    def compose(self) -> ComposeResult:
        with Horizontal(id="pool"):
            yield PoolGrid()
            yield BlockInspector()
        yield BlockTables()
        yield Timeline()
        yield StepPanel()
        with Horizontal(id="below"):
            with Vertical(id="prefix"):
                yield HitBars()
                yield StopReason()
            with Vertical(id="spec"):
                yield RoundList()
                yield Acceptance()

    def on_block_hovered(self, message: BlockHovered) -> None:
        self.query_one(BlockInspector).look_at(message.block)
