"""What one step will do, as frozen values: ids, numbers and tuples, never live objects.

The scheduler makes a `StepPlan`; `batch.make_batch` fills in the tokens and block tables it names. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from mini_infer.observe.events import Miss

Rows = Literal["last", "all", "none"]
"""Which rows of a slice are looked at: its last one (and those of its drafts), every one (prompt logprobs), or none
(a draft model that catches up). Of an unfinished chunk the last is held to be finite, and has no logits computed."""


@dataclass(frozen=True, slots=True)
class Slice:
    """`n_new` known tokens of one sequence from position `start` on, and after them `n_draft` drafted ones.

    A decode has `n_new` 1, a verify 1 and `n_draft` K, a prefill chunk n, a resume after a preemption is a chunk.
    """

    seq_id: str
    start: int
    n_new: int
    n_draft: int
    rows: Rows


@dataclass(frozen=True, slots=True)
class Admission:
    """A sequence left the queue with `cached` tokens of its prefix served from the pool."""

    seq_id: str
    cached: int
    first: bool  # its first admission: the hit that is counted
    miss: Miss | None  # why the hit ended, stated once


@dataclass(frozen=True, slots=True)
class Preemption:
    """A running sequence went back to the queue and lost its `lost` computed rows in `freed` blocks."""

    seq_id: str
    lost: int
    freed: int
    cause: str  # the sequence that needed a block


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Everything a step decided. The reservations behind it (blocks, seats) are already made."""

    step: int
    slices: tuple[Slice, ...]
    draft_slices: tuple[Slice, ...] = ()  # the draft model's first forward: rows to catch up on, `last` where it drafts
    copies: tuple[tuple[int, int], ...] = ()  # (from, to) blocks, copied before any write of the step
    reserved: tuple[tuple[str, int], ...] = ()  # (sequence, table length before), what a rollback trims to
    replaced: tuple[tuple[str, int, int], ...] = ()  # (sequence, index, shared block) of each copy, likewise
    admitted: tuple[Admission, ...] = ()
    preempted: tuple[Preemption, ...] = ()
    exhausted: tuple[str, ...] = ()  # the pool has no block left for them even alone: these end with `length`

    @property
    def num_tokens(self) -> int:
        return sum(s.n_new + s.n_draft for s in self.slices)

    @property
    def has_drafts(self) -> bool:
        return bool(self.draft_slices) or any(s.n_draft for s in self.slices)

    def with_drafts(self, drafts: Mapping[str, tuple[int, ...]]) -> StepPlan:
        """The plan with the number of tokens that were really drafted for each slice: at most what it planned."""
        if all(s.n_draft == len(drafts.get(s.seq_id, ())) for s in self.slices):
            return self
        slices = tuple(
            replace(s, n_draft=min(s.n_draft, len(drafts.get(s.seq_id, ())))) if s.n_draft else s for s in self.slices
        )
        return replace(self, slices=slices)

    @property
    def is_empty(self) -> bool:
        return not (self.slices or self.exhausted)
