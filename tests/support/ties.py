"""Comparing answers where bit equality is not promised: they may part only where the reference all but tied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

GAP = {"float32": 5e-3, "bfloat16": 0.25}
"""The largest difference of the reference's two logits at which an answer may take the other token."""

TIES_ALLOWED = 1 / 20
"""The share of answers that may end in a tie in float32."""


def first_difference(ids: Sequence[int], reference: Sequence[int]) -> int | None:
    """The first index at which two answers differ; one ending before the other differs there. None if equal."""
    for index, (a, b) in enumerate(zip(ids, reference, strict=False)):
        if a != b:
            return index
    return None if len(ids) == len(reference) else min(len(ids), len(reference))


def compare(
    ids: Sequence[int],
    reference_ids: Sequence[int],
    gap_at: Callable[[int, int, int], float],
    dtype: str = "float32",
) -> int | None:
    """Compare up to the first difference and return its index (a tie), or None where the answers are equal.

    `gap_at(index, reference_token, token)` is the reference's logit of its own token less that of the other, given
    the reference's tokens before `index`. Raises `AssertionError` where that is no tie.
    """
    index = first_difference(ids, reference_ids)
    if index is None:
        return None
    if index >= min(len(ids), len(reference_ids)):
        raise AssertionError(
            f"equal up to {index}, then {len(ids)} tokens against the reference's {len(reference_ids)}"
        )
    gap = gap_at(index, reference_ids[index], ids[index])
    if not gap < GAP[dtype]:
        raise AssertionError(
            f"token {index}: {ids[index]} in place of {reference_ids[index]}, which the reference prefers by "
            f"{gap:.4g} (a tie is below {GAP[dtype]:g} in {dtype}); before it {list(reference_ids[:index])}"
        )
    return index


@dataclass
class TieCounter:
    """Compares many answers and bounds how many may end in a tie."""

    dtype: str = "float32"
    answers: int = 0
    ties: list[str] = field(default_factory=list)

    def compare(
        self,
        ids: Sequence[int],
        reference_ids: Sequence[int],
        gap_at: Callable[[int, int, int], float],
        name: str = "",
    ) -> int | None:
        index = compare(ids, reference_ids, gap_at, self.dtype)
        self.answers += 1
        if index is not None:
            self.ties.append(f"{name} at token {index}")
        return index

    def check(self) -> None:
        """At most 1 in 20 in float32 (at least one is allowed); in bfloat16 ties are not counted."""
        if self.dtype == "float32" and len(self.ties) > max(1, self.answers * TIES_ALLOWED):
            raise AssertionError(f"{len(self.ties)} of {self.answers} answers end in a tie: {'; '.join(self.ties)}")
