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
from mini_infer.scheduler.sequence import Sequence

MOST = 8
"""The largest K that is ever chosen."""

PRIOR, PRIOR_WEIGHT = 0.7, 8.0
"""Acceptance is taken for 0.7 until there are judgements, with the weight of 8 of them."""

KEPT_STEPS = 64
"""How many steps the fits of times look back."""

RETRY_TOKENS, RETRY_K = 64, 2
"""A sequence that drafts nothing tries K = 2 again after so many tokens."""


class Policy(Protocol):
    def choose(self, seq: Sequence) -> tuple[int, KReason | None]: ...

    def observe_step(self, times: StepTimes) -> None: ...


@dataclass(frozen=True, slots=True)
class StepTimes:
    """What one step cost, in seconds. `rows`: of the target's batch; `draft_rows`: of all draft forwards together."""

    sequences: int
    rows: int
    verify_s: float  # the target's forward and the sampler
    draft_forwards: int = 0
    draft_rows: int = 0
    draft_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always K drafts."""

    k: int

    def choose(self, seq: Sequence) -> tuple[int, KReason | None]:
        return (self.k, None) if self.k else (0, "OFF")

    def observe_step(self, times: StepTimes) -> None:
        """Times do not matter."""


@dataclass(slots=True)
class Fit:
    """Least squares a + b · x over the last `KEPT_STEPS` points; the mean where x does not vary."""

    points: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=KEPT_STEPS))
    _line: tuple[float, float] | None = None  # (a, b)

    def add(self, x: float, y: float) -> None:
        self.points.append((x, y))
        n = len(self.points)
        mean_x, mean_y = sum(p[0] for p in self.points) / n, sum(p[1] for p in self.points) / n
        spread = sum((px - mean_x) ** 2 for px, _ in self.points)
        b = 0.0
        if spread > 0.0:  # more rows never cost less: a falling line is noise
            b = max(0.0, sum((px - mean_x) * (py - mean_y) for px, py in self.points) / spread)
        self._line = mean_y - b * mean_x, b

    def at(self, x: float) -> float | None:
        """The fitted time, or None without a point."""
        return None if self._line is None else max(0.0, self._line[0] + self._line[1] * x)


@dataclass(slots=True)
class Adaptive:
    """K per sequence by its own acceptance and the shared cost of a step. Until both costs are known, K = 4."""

    most: int = MOST
    verify: Fit = field(default_factory=Fit)  # seconds by rows of the target's batch
    draft: Fit = field(default_factory=Fit)  # seconds of one draft forward by its rows
    drafts_free: bool = False  # a proposer without a model
    _batch: int = 1  # sequences of the last step

    def choose(self, seq: Sequence) -> tuple[int, KReason | None]:
        k = self.best(acceptance(seq), self._batch)
        if k == 0:
            if seq.num_tokens - seq.last_drafted >= RETRY_TOKENS:
                return min(RETRY_K, self.most), None
            return 0, "ADAPTIVE"
        return k, None

    def best(self, alpha: float, batch: int) -> int:
        """The K with the most expected tokens per second for one of `batch` sequences that all choose alike."""
        draft_s = 0.0 if self.drafts_free else self.draft.at(batch)
        if self.verify.at(batch) is None or draft_s is None:
            return min(4, self.most)

        def rate(k: int) -> float:
            cost = k * (draft_s or 0.0) + (self.verify.at(batch * (1 + k)) or 0.0)
            return expected_tokens(alpha, k) / max(cost, 1e-9)

        return max(range(self.most + 1), key=lambda k: (rate(k), -k))

    def observe_step(self, times: StepTimes) -> None:
        self._batch = max(1, times.sequences)
        self.verify.add(times.rows, times.verify_s)
        if times.draft_forwards:
            self.draft.add(times.draft_rows / times.draft_forwards, times.draft_s / times.draft_forwards)


def acceptance(seq: Sequence) -> float:
    """α of a sequence: accepted by judged, beginning with the prior."""
    judged = sum(seq.judged_by_position)
    return (PRIOR * PRIOR_WEIGHT + seq.accepted) / (PRIOR_WEIGHT + judged)


def expected_tokens(alpha: float, k: int) -> float:
    """Tokens of a round with K drafts, the target's own included."""
    if alpha >= 1.0:
        return k + 1.0
    return float((1.0 - alpha ** (k + 1)) / (1.0 - alpha))
