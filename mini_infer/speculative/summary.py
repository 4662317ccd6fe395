"""What speculation did for one answer, in the figures that people compare."""

from __future__ import annotations

from dataclasses import dataclass

from mini_infer.observe.events import KReason, Usage
from mini_infer.results import Timings
from mini_infer.speculative.proposer import Proposer


@dataclass(frozen=True, slots=True)
class Speculation:
    """Figures of one answer; None where there is nothing to divide by, or nothing measured."""

    proposer: str
    rounds: int
    drafted: int
    accepted: int
    acceptance: float | None  # accepted / drafted
    by_position: tuple[float, ...]  # accepted / judged of the first, second, … draft of a round
    tokens_per_step: float | None
    time_saved_s: float | None
    off_reason: KReason | None  # why most decode steps had no drafts; None where most had some


def summarize(usage: Usage, timings: Timings, proposer: Proposer | None) -> Speculation:
    """The figures of an answer that had the engine to itself.

    `time_saved_s` is an estimate: what its tokens after the first would have taken in steps without drafts, by the
    line fitted through the last steps of different widths, less the time they took. Negative where drafting cost more.
    """
    judged, kept = usage.judged_by_position, usage.accepted_by_position
    saved = None
    if proposer is not None and usage.rounds and timings.tokens_per_s:
        plain = proposer.policy.costs.plain_step_s(1)
        later = usage.completion_tokens - 1
        saved = None if plain is None else later * plain - later / timings.tokens_per_s
    return Speculation(
        proposer="none" if proposer is None else proposer.name,
        rounds=usage.rounds,
        drafted=usage.drafted,
        accepted=usage.accepted,
        acceptance=usage.accepted / usage.drafted if usage.drafted else None,
        by_position=tuple((kept[i] if i < len(kept) else 0) / n for i, n in enumerate(judged)),
        tokens_per_step=usage.completion_tokens / usage.steps if usage.steps else None,
        time_saved_s=saved,
        off_reason="OFF" if proposer is None else usage.off_reason,
    )
