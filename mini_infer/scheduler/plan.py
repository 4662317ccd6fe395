"""What one step will do, as frozen values: ids, numbers and tuples, never live objects.

The scheduler makes a `StepPlan`; the engine adds the tokens and block tables it names and turns it into a `Batch`,
the flat description of one forward pass that a runner executes. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from mini_infer.observe.events import Miss

if TYPE_CHECKING:
    from mini_infer.scheduler.sequence import Sequence

Rows = Literal["last", "all", "none"]
"""Which rows of a slice need logits: its last one (and those of its drafts), every one (prompt logprobs), or none."""


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
    def is_empty(self) -> bool:
        return not (self.slices or self.exhausted)


@dataclass(frozen=True, slots=True)
class Span:
    """One sequence's part of a batch: its rows in the flat token list, and the blocks its attention reads."""

    seq_id: str
    first_row: int
    num_rows: int
    kv_len: int  # rows of KV visible to the last of its rows: start + num_rows
    blocks: tuple[int, ...]  # block table, enough to cover kv_len


@dataclass(frozen=True, slots=True)
class Batch:
    """One forward pass over one flat batch. T = total rows.

    Row r of span s sits at position `positions[r]`, writes its K/V at slot `slots[r]` (block * block_size + offset)
    and attends to the KV rows 0 … positions[r] of its own sequence.
    """

    token_ids: tuple[int, ...]  # [T]
    positions: tuple[int, ...]  # [T]
    slots: tuple[int, ...]  # [T]
    spans: tuple[Span, ...]
    logit_rows: tuple[int, ...]  # rows whose logits are wanted, ascending
    copies: tuple[tuple[int, int], ...] = ()
    block_size: int = 16


def slot_index(blocks: tuple[int, ...], start: int, stop: int, block_size: int) -> list[int]:
    """The KV slots of positions `start … stop - 1`: the one place where a block table becomes addresses."""
    return [blocks[p // block_size] * block_size + p % block_size for p in range(start, stop)]


def make_batch(
    plan: StepPlan,
    sequences: Mapping[str, Sequence],
    drafts: Mapping[str, tuple[int, ...]],
    block_size: int,
) -> Batch:
    """The plan with the tokens and tables it names filled in. `drafts` holds each verify's drafted ids.

    `rows=last` asks for the last known row and every drafted one (1 + K rows), and only where it is the newest token
    of its sequence; the rows of an unfinished chunk are never sampled.
    """
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    spans: list[Span] = []
    logit_rows: list[int] = []
    for s in plan.slices:
        seq = sequences[s.seq_id]
        drafted = drafts.get(s.seq_id, ())[: s.n_draft]
        first, known = len(token_ids), s.start + s.n_new
        stop = known + len(drafted)
        blocks = tuple(seq.table.blocks[: -(-stop // block_size)])
        token_ids += seq.tokens[s.start : known]
        token_ids += drafted
        positions += range(s.start, stop)
        slots += slot_index(blocks, s.start, stop, block_size)
        spans.append(Span(s.seq_id, first, stop - s.start, stop, blocks))
        if s.rows == "last":
            logit_rows += range(first + s.n_new - 1, first + stop - s.start)
        elif s.rows == "all":
            logit_rows += range(first, first + stop - s.start)
    return Batch(
        tuple(token_ids), tuple(positions), tuple(slots), tuple(spans), tuple(logit_rows), plan.copies, block_size
    )
