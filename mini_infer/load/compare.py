"""Whether one run is worse than another: medians with bootstrap intervals, not two numbers side by side.

Requests are resampled within each run. Where both runs have repeats, the repeats are paired (first with first) and
drawn first, so that what moves between runs (neighbours, heat) is in the interval; with one repeat it is not.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from mini_infer.errors import UserError
from mini_infer.load.markdown import number, table
from mini_infer.load.report import LevelReport, Report, Sample
from mini_infer.load.statistics import bootstrap

DRAWS = 1000

Samples = Sequence[Sample]


@dataclass(frozen=True, slots=True)
class Quantity:
    """One figure of a set of requests; None where they do not have it."""

    name: str
    of: Callable[[Samples, LevelReport], float | None]
    more_is_better: bool = False
    relative: bool = True


@dataclass(frozen=True, slots=True)
class Verdict:
    """`change` is B against A, as a share of A (for failures: a difference); `low` and `high` bound it at 95 %."""

    level: str
    quantity: str
    a: float | None
    b: float | None
    change: float | None
    low: float | None
    high: float | None
    verdict: Literal["worse", "better", "same", "unknown"]
    repeats: int


def _median(name: str) -> Callable[[Samples, LevelReport], float | None]:
    def of(samples: Samples, _: LevelReport) -> float | None:
        values = [value for s in samples if (value := getattr(s, name)) is not None]
        return median(values) if values else None

    return of


def _throughput(samples: Samples, level: LevelReport) -> float | None:
    """Of a closed loop, by Little's law: streams × tokens / time in the system."""
    spent = sum(s.e2e_ms or 0.0 for s in samples) / 1e3
    tokens = sum(s.tokens for s in samples if s.e2e_ms is not None)
    return level.concurrency * tokens / spent if level.concurrency and spent > 0 else None


def _failures(samples: Samples, _: LevelReport) -> float | None:
    return sum(s.outcome == "failed" for s in samples) / len(samples) if samples else None


QUANTITIES = (
    Quantity("TTFT p50 ms", _median("ttft_ms")),
    Quantity("TPOT p50 ms", _median("tpot_ms")),
    Quantity("E2E p50 ms", _median("e2e_ms")),
    Quantity("tok/s", _throughput, more_is_better=True),
    Quantity("failed share", _failures, relative=False),
)


def compare_reports(a: Report, b: Report, threshold: float = 0.05, draws: int = DRAWS) -> list[Verdict]:
    """A verdict for each quantity of each level that both have. Differences below `threshold` are none.

    Raises UserError where there is nothing in common.
    """
    found = []
    for name in dict.fromkeys(level.level for level in a.levels):
        ours = [level for level in a.levels if level.level == name]
        theirs = [level for level in b.levels if level.level == name]
        if theirs:
            found += [_verdict(quantity, ours, theirs, threshold, draws) for quantity in QUANTITIES]
    if not found:
        names = " and ".join(", ".join(dict.fromkeys(level.level for level in r.levels)) or "none" for r in (a, b))
        raise UserError(f"the two reports have no level in common ({names}): measure both at the same ones")
    return found


def _verdict(
    quantity: Quantity, a: Sequence[LevelReport], b: Sequence[LevelReport], threshold: float, draws: int
) -> Verdict:
    pairs = list(zip(a, b, strict=False))

    def of(levels: Sequence[LevelReport], pick: Callable[[Samples], Samples]) -> float | None:
        return quantity.of([s for level in levels for s in pick(_counted(level))], levels[0])

    def change(old: float | None, new: float | None) -> float | None:
        if old is None or new is None or (quantity.relative and not old):
            return None
        return new / old - 1 if quantity.relative else new - old

    def resampled(rng: random.Random) -> float | None:
        drawn = rng.choices(pairs, k=len(pairs))

        def pick(samples: Samples) -> Samples:
            return rng.choices(samples, k=len(samples)) if samples else samples

        return change(of([x for x, _ in drawn], pick), of([y for _, y in drawn], pick))

    def whole(samples: Samples) -> Samples:
        return samples

    old, new = of([x for x, _ in pairs], whole), of([y for _, y in pairs], whole)
    moved = change(old, new)
    interval = bootstrap(resampled, draws) if moved is not None else None
    low, high = interval if interval is not None else (None, None)
    verdict: Literal["worse", "better", "same", "unknown"] = "unknown"
    if moved is not None and low is not None and high is not None:
        is_clear = (low > 0 or high < 0) and abs(moved) > threshold
        verdict = "same" if not is_clear else "better" if (moved > 0) == quantity.more_is_better else "worse"
    return Verdict(a[0].level, quantity.name, old, new, moved, low, high, verdict, len(pairs))


def _counted(level: LevelReport) -> Samples:
    return [s for s in level.samples if s.outcome in ("ok", "failed")]


def to_text(verdicts: Sequence[Verdict]) -> str:
    """A table, and the verdict in one line."""
    rows = []
    for v in verdicts:
        digits = 3 if v.quantity == "failed share" else 1
        interval = "n/a" if v.low is None or v.high is None else f"{v.low:+.1%} … {v.high:+.1%}"
        moved = "n/a" if v.change is None else f"{v.change:+.1%}"
        rows.append([v.level, v.quantity, number(v.a, digits), number(v.b, digits), moved, interval, v.verdict])
    text = table(("level", "quantity", "A", "B", "change", "95 % interval", "verdict"), rows)
    worse = [f"{v.quantity} at {v.level}" for v in verdicts if v.verdict == "worse"]
    text += f"\n\nB is worse in: {', '.join(worse)}." if worse else "\n\nB is not worse than A."
    if all(v.repeats == 1 for v in verdicts):
        text += " One repeat each: what moves from run to run is not in the intervals (--repeats 5 shows it)."
    return text + "\n"
