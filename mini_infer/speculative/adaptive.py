"""How many drafts pay: the K that gives the most tokens per second, from measured acceptance and measured times.

With acceptance α of each draft, a round of K gives (1 - α^(K+1)) / (1 - α) tokens (Leviathan et al. 2023, equation 1)
and costs K draft forwards and one verify of K more rows per sequence. Times are fits a + b · rows over the last steps,
vocabulary passes included; they are handed in, never measured here.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from mini_infer.observe.events import KReason
from mini_infer.scheduler.plan import StepPlan
from mini_infer.scheduler.sequence import Sequence

MOST = 8
"""The largest K that is ever chosen."""

PRIOR, PRIOR_WEIGHT = 0.7, 8.0
"""Acceptance is taken for 0.7 until there are judgements, with the weight of 8 of them."""

KEPT_STEPS = 64
"""How many steps the fits of times look back."""

UNMEASURED_K = 4
"""K until both costs are known."""

RETRY_TOKENS, RETRY_K = 64, 2
"""A sequence that drafts nothing tries K = 2 again after so many tokens."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """What one step of decodes and verifies cost, in seconds.

    `rows`: of the target's batch; `draft_rows`: of all draft forwards together.
    """

    sequences: int
    rows: int
    verify_s: float  # the target's forward and the sampler
    draft_forwards: int = 0
    draft_rows: int = 0
    draft_s: float = 0.0


def is_measured(plan: StepPlan) -> bool:
    """Steps that read prompts are left out: the rows of a chunk pass no vocabulary."""
    return all(s.n_new == 1 for s in plan.slices)


class Fit:
    """Least squares a + b · x over the last `KEPT_STEPS` points; the mean where x does not vary."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, float]] = deque(maxlen=KEPT_STEPS)
        self._line: tuple[float, float] | None = None  # (a, b) of these points, once asked for
        self.varies = False  # there are two different x, so that b is measured

    def add(self, x: float, y: float) -> None:
        self._points.append((x, y))
        self._line = None

    def at(self, x: float) -> float | None:
        """The fitted time, or None without a point."""
        if self._line is None:
            if not self._points:
                return None
            self._line = self._solve()
        return max(0.0, self._line[0] + self._line[1] * x)

    def _solve(self) -> tuple[float, float]:
        n = len(self._points)
        mean_x, mean_y = sum(x for x, _ in self._points) / n, sum(y for _, y in self._points) / n
        spread = sum((x - mean_x) ** 2 for x, _ in self._points)
        self.varies = spread > 0.0
        b = 0.0
        if self.varies:  # more rows never cost less: a falling line is noise
            b = max(0.0, sum((x - mean_x) * (y - mean_y) for x, y in self._points) / spread)
        return mean_y - b * mean_x, b


@dataclass(slots=True)
class Costs:
    """What the steps of this engine take, from the steps it took. One per proposer; policies read it."""

    verify: Fit = field(default_factory=Fit)  # seconds by rows of the target's batch
    draft: Fit = field(default_factory=Fit)  # seconds of one draft forward by its rows
    sequences: int = 1  # of the last step
    steps: int = 0

    def add(self, times: StepTimes) -> None:
        self.sequences = max(1, times.sequences)
        self.steps += 1
        self.verify.add(times.rows, times.verify_s)
        if times.draft_forwards:
            self.draft.add(times.draft_rows / times.draft_forwards, times.draft_s / times.draft_forwards)

    def plain_step_s(self, sequences: int) -> float | None:
        """Seconds of a step of so many sequences without drafts. None while all steps had the same number of rows."""
        seconds = self.verify.at(sequences)
        return seconds if self.verify.varies else None


class Policy(Protocol):
    """How many drafts a sequence should have now, and why none where that is 0."""

    costs: Costs

    def choose(self, seq: Sequence) -> tuple[int, KReason | None]: ...


@dataclass(slots=True)
class Fixed:
    """Always K drafts."""

    k: int
    costs: Costs = field(default_factory=Costs)

    def choose(self, seq: Sequence) -> tuple[int, KReason | None]:
        return (self.k, None) if self.k else (0, "OFF")


@dataclass(slots=True)
class Adaptive:
    """K per sequence by its own acceptance and the shared cost of a step. `drafts_free`: a proposer without a model."""

    most: int = MOST
    drafts_free: bool = False
    costs: Costs = field(default_factory=Costs)
    _seconds: list[float] | None = None  # of a round by K, at the costs of `_as_of`
    _as_of: int = -1

    def choose(self, seq: Sequence) -> tuple[int, KReason | None]:
        k = self.best(acceptance(seq))
        if k:
            return k, None
        if seq.num_tokens - seq.last_drafted >= RETRY_TOKENS:
            return min(RETRY_K, self.most), None
        return 0, "ADAPTIVE"

    def best(self, alpha: float) -> int:
        """The K with the most expected tokens per second for a sequence of a batch that chooses alike; the least of
        equals."""
        if self._as_of != self.costs.steps:  # once per step, not per sequence
            self._as_of, self._seconds = self.costs.steps, self._round_seconds()
        if self._seconds is None:
            return min(UNMEASURED_K, self.most)
        best, best_rate, tokens, power = 0, 0.0, 0.0, 1.0
        for k, seconds in enumerate(self._seconds):
            tokens += power  # 1 + α + … + α^k
            power *= alpha
            if tokens / seconds > best_rate:
                best, best_rate = k, tokens / seconds
        return best

    def _round_seconds(self) -> list[float] | None:
        """What a round takes with each K from 0 on; None while that is not known."""
        n = self.costs.sequences
        draft_s = 0.0 if self.drafts_free else self.costs.draft.at(n)
        verify_s = [self.costs.verify.at(n * (1 + k)) for k in range(self.most + 1)]
        if draft_s is None or None in verify_s:
            return None
        return [max(k * draft_s + (seconds or 0.0), 1e-9) for k, seconds in enumerate(verify_s)]


def policy_of(k: int | None, costs: Costs, *, drafts_free: bool) -> Policy:
    """Always K drafts, or as many as pay with None. Raises ValueError for a K that is not 0 to `MOST`."""
    if k is not None and not 0 <= k <= MOST:
        raise ValueError(f"a round has 0 to {MOST} drafts, not {k}")
    return Adaptive(drafts_free=drafts_free, costs=costs) if k is None else Fixed(k, costs)


def acceptance(seq: Sequence) -> float:
    """α of a sequence: accepted by judged, beginning with the prior."""
    judged = sum(seq.judged_by_position)
    return (PRIOR * PRIOR_WEIGHT + seq.accepted) / (PRIOR_WEIGHT + judged)
