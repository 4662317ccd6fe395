"""When requests arrive, for loads that do not wait for answers."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mini_infer.errors import UserError


@dataclass(frozen=True, slots=True)
class Level:
    """One load: so many at once, or so many a second, or at recorded times (seconds from the start).

    `burstiness` is the coefficient of variation squared of the gaps: 1 is a Poisson process, 0 an even beat, above 1
    bursts (gamma-distributed gaps of shape 1 / burstiness). `cap` bounds how many run at once in the latter two; who
    waits for it waits on its own clock. Raises UserError.
    """

    concurrency: int | None = None
    rate: float | None = None
    times: tuple[float, ...] = ()
    burstiness: float = 1.0
    cap: int | None = None

    def __post_init__(self) -> None:
        if (self.concurrency is None) + (self.rate is None) + (not self.times) != 2:
            raise UserError("give one of --concurrency, --rate and --replay")
        if self.concurrency is not None and self.concurrency < 1:
            raise UserError(f"--concurrency is {self.concurrency}: it must be at least 1")
        if self.rate is not None and not 0 < self.rate < 1e6:
            raise UserError(f"--rate is {self.rate:g}: it must be above 0 requests per second")
        if not 0 <= self.burstiness <= 1000:
            raise UserError(f"--burstiness is {self.burstiness:g}: 0 is an even beat, 1 a Poisson process, more bursts")
        if self.cap is not None and self.cap < 1:
            raise UserError(f"--max-concurrency is {self.cap}: it must be at least 1")

    @property
    def name(self) -> str:
        if self.concurrency is not None:
            return str(self.concurrency)
        return f"{self.rate:g}/s" if self.rate is not None else "replay"

    @property
    def is_open(self) -> bool:
        """Whether requests are sent on time, whatever becomes of the others."""
        return self.concurrency is None

    def arrivals(self, seed: str) -> Iterator[float]:
        """Seconds from the start, for an open load; endless but for recorded ones."""
        return iter(self.times) if self.times else _gaps(self.rate or 1.0, self.burstiness, random.Random(seed))


def _gaps(rate: float, burstiness: float, rng: random.Random) -> Iterator[float]:
    at = 0.0
    while True:
        yield at
        at += rng.gammavariate(1 / burstiness, burstiness / rate) if burstiness else 1 / rate


def sped_up(times: Sequence[float], factor: float) -> tuple[float, ...]:
    """Recorded times, played `factor` times as fast. Raises UserError."""
    if not 0 < factor < 1e6:
        raise UserError(f"--replay-speed is {factor:g}: it must be above 0")
    return tuple(time / factor for time in times)
