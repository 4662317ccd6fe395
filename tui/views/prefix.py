"""The prefix cache: what each request hit, what is cached, and why a match ended."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from tui.views.base import View
from tui.widgets.chain_tree import ChainTree
from tui.widgets.find_bar import FindBar
from tui.widgets.hit_bars import HitBars
from tui.widgets.stop_reason import StopReason


class PrefixView(View):
    NAME = "prefix"
    TITLE = "Prefix"
    HELP = """What the **prefix cache** did for each request, and what it holds.

**Hits per request.** One sign per block of the prompt, as it is at the cursor:

| sign | block |
|---|---|
| `H` | taken from the cache |
| `M` | computed |
| `p` | computed, but not full: only full blocks are cached |
| `-` | not computed yet |

The hit is counted once, when the request is admitted: a request that is preempted and comes back does not change the
rate. *run* is the share of all prompt tokens so far, *last* that of the last requests.

**Cached chains.** Every full block that was computed is kept under a key made of its tokens and of all before it, so
prefixes make a tree. A chain is a run of blocks with the same holders: their numbers, the key of the last one, the
text, how many hold it (`ref`), and who. `ref 0` is idle: the cache may evict it, `#1` first.

**Why did it stop matching?** The scheduler's own reason: the first different token with both texts, a block that was
evicted (and when), a text never seen before, another salt, a rest shorter than a block, or the last token, which is
always computed.

| key | does |
|---|---|
| *up* *down* | the request, the chain |
| *tab* | the next panel |
| *enter* | show in Blocks |
| *e* | idle blocks in the order of their eviction, and back |
| */* | find a text in the cached chains |
| *c* | clear the cache |"""

    DEFAULT_CSS = """
    PrefixView HitBars { height: 2fr; min-height: 4; }
    PrefixView ChainTree { height: 4fr; min-height: 4; }
    PrefixView StopReason { height: 2fr; min-height: 4; }
    .-short PrefixView HitBars { height: 7; }
    .-short PrefixView StopReason { height: 6; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("e", "eviction", "Eviction order", show=True, id="prefix-evict"),
        Binding("slash", "find", "Find text", show=True, id="prefix-find"),
    ]

    def compose(self) -> ComposeResult:
        yield HitBars()
        yield ChainTree()
        yield StopReason()
        yield FindBar("text in cached chains")

    def action_eviction(self) -> None:
        self.query_one(ChainTree).action_eviction()

    def action_find(self) -> None:
        self.query_one(FindBar).open()

    def on_find_bar_sought(self, message: FindBar.Sought) -> None:
        message.stop()
        self.query_one(ChainTree).search(message.text)
