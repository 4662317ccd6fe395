"""Everything in the order in which it happened, and where the time went."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container

from tui.views.base import View
from tui.widgets.event_log import EventLog
from tui.widgets.find_bar import FindBar
from tui.widgets.phase_times import PhaseTimes
from tui.widgets.step_bars import StepBars


class TraceView(View):
    NAME = "trace"
    TITLE = "Trace"
    HELP = """What happened, **step by step**, as the engine reported it.

**Events**, the newest first: the step, the request, the kind, and what it was. A click or *enter* goes to that step in
all views; *end* comes back to now.

**Time per phase**: the step at the cursor, and the mean of the last 100 steps. A step first *schedules* (who gets how
many tokens), then *drafts*, runs the target's *forward* pass over all rows at once, *samples* and judges drafts, and
*commits* (text, blocks, ends). The curves are the length of steps and the tokens per second over four steps each.

**Steps**: a bar for each, with a letter per phase: `s` schedule, `D` draft, `F` forward, `m` sample, `c` commit;
*tok* are the tokens it gave, *rows* those it computed.

| key | does |
|---|---|
| *up* *down* | the event, the step |
| *enter* | go to its step |
| *f* | all events, requests, blocks, drafts, trouble |
| *s* | only the selected request, or all |
| */* | find a text in the events |
| *tab* | the next panel |"""

    DEFAULT_CSS = """
    TraceView EventLog { height: 1fr; min-height: 3; }
    TraceView #times { height: 12; layout: horizontal; }
    TraceView StepBars { display: none; }
    .-short TraceView #times { height: 11; }
    .-wide TraceView StepBars, .-medium TraceView StepBars { display: block; }
    .-medium TraceView #times { height: 20; layout: vertical; }
    .-medium TraceView PhaseTimes { height: 11; }
    .-medium.-short TraceView #times { height: 11; }
    .-medium.-short TraceView StepBars { display: none; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f", "filter", "Filter", show=True, id="trace-filter"),
        Binding("s", "selected", "Only selected", show=True, id="trace-selected"),
        Binding("slash", "find", "Find text", show=True, id="trace-find"),
    ]

    def compose(self) -> ComposeResult:
        yield EventLog()
        with Container(id="times"):
            yield PhaseTimes()
            yield StepBars()
        yield FindBar("text in events")

    def action_filter(self) -> None:
        self.query_one(EventLog).next_filter()

    def action_selected(self) -> None:
        self.query_one(EventLog).toggle_selected()

    def action_find(self) -> None:
        self.query_one(FindBar).open()

    def on_find_bar_sought(self, message: FindBar.Sought) -> None:
        message.stop()
        self.query_one(EventLog).search(message.text)
