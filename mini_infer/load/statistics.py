"""The arithmetic of the report: percentiles, spreads, bootstrap."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Sequence

from msgspec import Struct


class Spread(Struct, frozen=True):
    """Of one quantity over many requests. All but `count` are None where there are no values."""

    count: int = 0
    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    max: float | None = None


def percentile(values: Sequence[float], share: float) -> float:
    """Of sorted values, by linear interpolation between the two nearest. `share` is 0 to 1. Raises ValueError."""
    if not values:
        raise ValueError("no values")
    place = share * (len(values) - 1)
    low = int(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (place - low) * (values[high] - values[low])


def spread(values: Sequence[float]) -> Spread:
    if not values:
        return Spread()
    ordered = sorted(values)
    p50, p90, p99 = (percentile(ordered, share) for share in (0.5, 0.9, 0.99))
    return Spread(len(ordered), sum(ordered) / len(ordered), p50, p90, p99, ordered[-1])


def histogram(values: Sequence[float], edges: Sequence[float]) -> list[int]:
    """Counts below, between and above ascending edges: one more than there are edges."""
    counts = [0] * (len(edges) + 1)
    for value in values:
        counts[bisect_right(edges, value)] += 1
    return counts


def bootstrap(
    statistic: Callable[[random.Random], float | None], draws: int = 1000, confidence: float = 0.95, seed: int = 0
) -> tuple[float, float] | None:
    """The percentile interval of a statistic over resamples (Efron, 1979). `statistic` draws its own resample.

    Draws without a value are left out; None where there are none at all.
    """
    rng = random.Random(seed)
    found = sorted(value for _ in range(draws) if (value := statistic(rng)) is not None)
    if not found:
        return None
    tail = (1 - confidence) / 2
    return percentile(found, tail), percentile(found, 1 - tail)
