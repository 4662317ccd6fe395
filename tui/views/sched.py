"""The scheduler: who did what in which step, who waits and why, and what the step at the cursor was made of."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from tui.messages import Notice
from tui.model.explain import explain
from tui.views.base import View
from tui.widgets.step_panel import StepPanel
from tui.widgets.timeline import Timeline
from tui.widgets.waiting_list import WaitingList


class SchedView(View):
    NAME = "sched"
    TITLE = "Sched"
    HELP = """**Requests by steps.** A row is a request, a column a step, the last column is the step at the cursor.

| sign | in that step |
|---|---|
| `P` | a chunk of its prompt was computed |
| `━` | it got one token |
| `0`-`9` | it got that many drafts, and one token of the target's own |
| `!` | it was preempted: its blocks went to others |
| `✓` `x` | it finished, it was aborted |
| `·` `-` | it waited, it was not there |

**Waiting.** The scheduler's own reason for each, never a guess:

| reason | means |
|---|---|
| `BLOCKS` | it needs more blocks than there are free and cached ones |
| `TOKENS` | the step's token budget was spent |
| `SEQS` | all seats are taken |
| `ORDER` | somebody before it in the queue waits |
| `COOLDOWN` | somebody was preempted in this step, so nobody is let in |
| `PAUSED` | the engine stands |

**The step.** The bar has one cell per token of the step's budget (scaled where it is wider than the screen), by
request; drafts are underlined. Below: milliseconds per phase, and the blocks that moved.

| key | does |
|---|---|
| *up* *down* | the request |
| *left* *right* | a step back, a step on |
| *w* | why the selected request waits |
| *enter* | open it in Chat |
| *b* | break on preemption, eviction, end, rejection |"""
    BINDINGS: ClassVar[list[BindingType]] = [Binding("w", "why", "Why", show=True, id="sched-why")]
    DEFAULT_CSS = """
    SchedView Timeline { height: 3fr; }
    SchedView WaitingList { height: 2fr; }
    SchedView StepPanel { height: 6; }
    .-short SchedView StepPanel { height: 5; }
    """

    def compose(self) -> ComposeResult:
        yield Timeline()
        yield WaitingList()
        yield StepPanel()

    def action_why(self) -> None:
        view = self.view
        if view is None:
            return
        waiting = view.state.waiting
        seq_id = view.selected or (waiting[0].seq_id if waiting else "")
        self.post_message(Notice(explain(view, seq_id)))
