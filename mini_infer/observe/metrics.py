"""What the figures mean, once: times of a request from its reports, and rates of speculation.

All times are seconds on the engine's clock. TTFT: from arrival to the end of the step that gave the first token. TPOT:
(last - first) / (tokens - 1), over tokens. ITL: the gaps between the steps that gave tokens, so one per emitted chunk,
however many tokens speculation put into it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from mini_infer.observe.events import Finished, StepReport, Usage
from mini_infer.observe.state import Totals


@dataclass(slots=True)
class RequestTiming:
    """One sequence. It grows until `finished` is set; figures that do not exist (yet) are None."""

    seq_id: str
    arrival: float
    admitted: float | None = None
    first: float | None = None
    last: float | None = None
    end: float | None = None
    tokens: int = 0
    itl: list[float] = field(default_factory=list)
    finished: Finished | None = None

    @property
    def queued(self) -> float | None:
        """From arrival to the start of the step that first took it in."""
        return None if self.admitted is None else self.admitted - self.arrival

    @property
    def ttft(self) -> float | None:
        return None if self.first is None else self.first - self.arrival

    @property
    def tpot(self) -> float | None:
        if self.first is None or self.last is None or self.tokens < 2:
            return None
        return (self.last - self.first) / (self.tokens - 1)

    @property
    def e2e(self) -> float | None:
        return None if self.end is None else self.end - self.arrival


class RequestTimes:
    """Follows the reports and gives each sequence's times when it ends. Those that arrived earlier are left out."""

    def __init__(self) -> None:
        self.live: dict[str, RequestTiming] = {}

    def add(self, report: StepReport) -> list[RequestTiming]:
        """Takes the next report in; returns the sequences that ended in it."""
        start = step_start(report)
        for a in report.arrived:
            self.live[a.seq_id] = RequestTiming(a.seq_id, start if a.t is None else a.t)
        for admitted in report.admitted:
            if admitted.first and (timing := self.live.get(admitted.seq_id)):
                timing.admitted = max(start, timing.arrival)
        for fork in report.forked:
            if parent := self.live.get(fork.parent):
                self.live[fork.child] = replace(parent, seq_id=fork.child, itl=[])
        for output in report.outputs:
            if output.token_ids and (timing := self.live.get(output.seq_id)):
                if timing.last is None:
                    timing.first = report.t
                else:
                    timing.itl.append(report.t - timing.last)
                timing.last = report.t
                timing.tokens += len(output.token_ids)
        ended = []
        for finished in report.finished:
            if timing := self.live.pop(finished.seq_id, None):
                timing.end, timing.finished = report.t, finished
                ended.append(timing)
        return ended


def step_start(report: StepReport) -> float:
    """When a step began: its end less its phases. A report without a step, or without times, has only its end."""
    d = report.durations
    if d is None or not report.stepped:
        return report.t
    return report.t - (d.schedule + d.draft + d.forward + d.sample + d.commit) / 1e3


def acceptance(counts: Usage | Totals) -> float | None:
    """Accepted / drafted; None before anything was drafted."""
    return counts.accepted / counts.drafted if counts.drafted else None


def mean_acceptance_length(counts: Usage | Totals) -> float | None:
    """Tokens per round: 1 + accepted / rounds; None before the first round."""
    return 1 + counts.accepted / counts.rounds if counts.rounds else None


def acceptance_by_position(usage: Usage) -> tuple[float | None, ...]:
    """Of the drafts judged at each position, the share that was accepted."""
    pairs = zip(usage.accepted_by_position, usage.judged_by_position, strict=True)
    return tuple(a / judged if judged else None for a, judged in pairs)


def hit_rate(totals: Totals) -> float | None:
    """Share of the prompt tokens of first admissions that came from the prefix cache."""
    return totals.cached_tokens / totals.prompt_tokens if totals.prompt_tokens else None
