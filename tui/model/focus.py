"""Which sequence a panel about one sequence shows, and what can be said about its drafts."""

from __future__ import annotations

from tui.model.explain import K_WORDS
from tui.model.view_state import ViewState


def focus(view: ViewState) -> str | None:
    """The selected sequence; else the first live one in order of service, else the last that ended."""
    if view.selected is not None and view.past.request(view.selected) is not None:
        return view.selected
    live = view.state.ordered
    if live:
        return next((s.seq_id for s in live if view.past.rounds(s.seq_id)), live[0].seq_id)
    requests = view.past.requests
    return requests[-1].seq_id if requests else None


def drafting(view: ViewState) -> str | None:
    """Why nobody gets drafts, in a sentence; None where drafting is on."""
    if view.state.info.draft == "none":
        return "This engine has no drafter: every step gives one token. Start it with --draft to see rounds."
    if view.meta.k == 0:
        return "Drafting is switched off by hand; d switches it on."
    return None


def why_k(view: ViewState, seq_id: str) -> tuple[int, str]:
    """(drafts it gets per round, why in words) at the cursor."""
    found, off = view.past.k(seq_id), drafting(view)
    k, why = found if found is not None else (0, None)
    if view.past.is_ended(seq_id):
        return k, "it has ended"
    if off is not None:
        return k, off
    if why == "FAILED":
        return k, f"{K_WORDS[why]}: it goes on without drafts, one token per step"
    if why is not None:
        return k, K_WORDS[why]
    seq = view.state.sequences.get(seq_id)
    if seq is not None and not seq.running:
        return k, "it waits"
    if seq is not None and not seq.output:
        return k, "its prompt is still being read"
    return k, "as set by hand" if view.meta.k is not None else "as many as pay"
