"""Speculative decoding: each round of a request, the rule at work in one of them, and what it all came to."""

from __future__ import annotations

from textual.app import ComposeResult

from tui.model.view_state import ViewState
from tui.views.base import View
from tui.widgets.acceptance import Acceptance
from tui.widgets.round_detail import RoundDetail
from tui.widgets.rounds import RoundList


class SpecView(View):
    NAME = "spec"
    TITLE = "Spec"
    HELP = """**Speculative decoding** of the selected request. In a round a drafter proposes up to k tokens, the target
reads all of them in one step, and keeps them up to the first that does not pass. Then it adds a token of its own.

| sign | token |
|---|---|
| ✓ | kept |
| ✗ | the first one rejected |
| `-` | never judged, because an earlier one was rejected |
| `x` | the target's own token in place of the rejected one |
| `*` | the bonus token of a round whose drafts were all kept |

Tokens stand between `|`, so that their spaces show. *kept* counts the tokens that the round gave.

**The rule.** With sampling, a draft is kept when `u < min(1, p/q)`: p is the target's probability of it, q the
drafter's, u a random number. A rejected one is drawn anew from what is left, `max(0, p-q)`. So the answer has exactly
the target's distribution. In greedy rounds a draft is kept where it is the target's best: the gap says how far its
logit was from the best.

**Acceptance by position** says how many of the drafts judged at each place were kept. *k* is how many drafts the
request gets, and why.

| key | does |
|---|---|
| *up* *down* | the round |
| *enter* | show it in Chat, at its step |
| *n* | the next request |
| *k* | drafts per round |
| *d* | drafting on and off |"""

    DEFAULT_CSS = """
    SpecView RoundList { height: 1fr; min-height: 3; }
    SpecView RoundDetail { height: 9; }
    SpecView Acceptance { height: 8; }
    .-short SpecView RoundDetail { height: 8; }
    .-short SpecView Acceptance { height: 6; }
    """

    def compose(self) -> ComposeResult:
        yield RoundList()
        yield RoundDetail()
        yield Acceptance()

    def show(self, view: ViewState) -> None:
        super().show(view)
        self._follow()

    def on_round_list_moved(self, message: RoundList.Moved) -> None:
        message.stop()
        self._follow()

    def _follow(self) -> None:
        """The detail is that of the round under the cursor."""
        current, detail = self.query_one(RoundList).current(), self.query_one(RoundDetail)
        at = current.seq if current is not None else None
        if detail.at != at:
            detail.at = at
            detail.redraw()
