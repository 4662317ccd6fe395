"""One sentence for "why?": why a request waits, why it drafts nothing, why its prefix stopped matching."""

from __future__ import annotations

from mini_infer.observe.events import KReason, Miss, Wait
from mini_infer.observe.state import SequenceState
from tui.model.view_state import ViewState

K_WORDS: dict[KReason, str] = {
    "OFF": "drafting is off",
    "LAG": "the draft model is still reading what the target has read",
    "BUDGET": "the step has no tokens left for drafts",
    "BLOCKS": "no free block for drafts",
    "TAIL": "the answer is about to reach its limit",
    "GRAMMAR": "its grammar forbids drafts",
    "NO_MATCH": "nothing in the text so far looks like its end",
    "ADAPTIVE": "drafts cost more than they bring",
    "FAILED": "the drafter failed three times in a row",
}


def why_waiting(view: ViewState, wait: Wait | None) -> str:
    """The scheduler's own reason, in words."""
    if wait is None:
        return "next: the coming step looks at it first"
    match wait.kind:
        case "BLOCKS":
            pool = view.state.pool
            have = f"{wait.have} available ({pool.free} free + {pool.cached} cached now)"
            return f"needs {wait.need} blocks, only {have}"
        case "TOKENS":
            return f"the token budget of the step was spent, {wait.have} left"
        case "SEQS":
            return f"all {wait.have or view.state.info.max_running} seats are taken"
        case "ORDER":
            return f"behind {view.letter(wait.behind)}, which comes first"
        case "COOLDOWN":
            return "somebody was preempted in this step, nobody is let in"
    return "the engine is paused"


def why_missed(view: ViewState, miss: Miss | None) -> str:
    """Where its prefix hit ended, and why."""
    if miss is None:
        return "not looked up yet"
    match miss.kind:
        case "DIFF":
            theirs, ours = view.decode(miss.theirs), view.decode(miss.ours)
            return f'first different token is {miss.token}: cached "{theirs}", here "{ours}"'
        case "EVICTED":
            return f"the block at token {miss.token} was evicted at step {miss.step}"
        case "NEVER_SEEN":
            return f"nothing cached goes on at token {miss.token}"
        case "SALT":
            return "the same text is cached under another salt"
        case "PARTIAL":
            return f"less than a block is left from token {miss.token}"
    return "all but the last token was cached, and that is always computed"


def explain(view: ViewState, seq_id: str) -> str:
    """All that can be said about one sequence at the cursor."""
    name, seq = view.letter(seq_id), view.state.sequences.get(seq_id)
    record = view.past.request(seq_id)
    if record is None:
        return "no request is selected"
    if seq is None:
        said = f"{name} has ended."
        return f"{said} Prefix: {why_missed(view, record.miss)}." if record.miss else said
    parts = [_doing(view, seq)]
    if seq.miss is not None:
        parts.append(f"Prefix: {why_missed(view, seq.miss)}.")
    if seq.running and seq.k == 0 and seq.k_why is not None:
        parts.append(f"No drafts: {K_WORDS[seq.k_why]}.")
    return " ".join(parts)


def _doing(view: ViewState, seq: SequenceState) -> str:
    name = view.letter(seq.seq_id)
    if seq.running:
        return f"{name} runs."
    lost = f" It was preempted and lost {seq.lost} computed tokens." if seq.lost else ""
    return f"{name} waits: {why_waiting(view, seq.wait)}.{lost}"
