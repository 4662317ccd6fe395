"""One forward pass as flat lists: a plan with its tokens filled in and its block tables turned into addresses.

The one place where a block table becomes slots, for every device and for the draft model too. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mini_infer.scheduler.plan import StepPlan
from mini_infer.scheduler.sequence import Sequence


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

    `rows=last` asks for the last known row and every drafted one (1 + K rows).
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
