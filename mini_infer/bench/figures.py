"""A measured figure and the limits it is held against: plain values, no torch."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Kind = Literal["rate", "time", "part"]


class Ratio(Struct, frozen=True):
    """Both sides of one ratio. The limit was measured right before the figure and right after it.

    `kind`: a "rate" should come near its limit from below, a "time" from above; a "part" is a share of the limit,
    which is then the whole.
    """

    what: str
    kind: Kind
    ours: float
    before: float
    after: float
    unit: str

    @property
    def limit(self) -> float:
        return (self.before + self.after) / 2

    @property
    def fraction(self) -> float:
        """Of the limit's speed, or of the whole."""
        return self.limit / self.ours if self.kind == "time" else self.ours / self.limit


class Figure(Struct, frozen=True):
    """One line of the report: what was measured, by how many repetitions, and each ratio it gives."""

    name: str
    value: float
    unit: str
    samples: int = 1
    ratios: tuple[Ratio, ...] = ()
    note: str = ""
