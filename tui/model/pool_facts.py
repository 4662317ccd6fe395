"""What the pool's blocks are at the cursor: who holds them, how full they are, what the last report did to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from mini_infer.observe.state import SequenceState
from tui.model.view_state import ViewState

Kind = Literal["owned", "shared", "cached", "free"]


class PoolFacts(NamedTuple):
    """Of all blocks. `filled`: token rows computed in each held block, at most a block's size."""

    holders: dict[int, list[str]]
    filled: dict[int, int]
    new: frozenset[int]  # taken by the last report and still held
    freed: frozenset[int]  # left by its last holder in the last report
    wasted: int  # rows of held blocks without a token


def pool_facts(view: ViewState) -> PoolFacts:
    size, holders = view.state.info.block_size, view.holders
    filled: dict[int, int] = {}
    for seq in view.state.sequences.values():
        for index, block in enumerate(seq.table):
            rows = max(0, min(size, seq.num_computed - index * size))
            filled[block] = max(rows, filled.get(block, 0))
    moves = view.report.blocks if view.report is not None else ()
    new = frozenset(m.block for m in moves if m.op in ("alloc", "cow") and m.block in holders)
    freed = frozenset(m.block for m in moves if m.op == "free" and m.block not in holders)
    return PoolFacts(holders, filled, new, freed, size * len(filled) - sum(filled.values()))


def kind_of(view: ViewState, block: int) -> Kind:
    held = view.holders.get(block)
    if held:
        return "shared" if len(held) > 1 else "owned"
    return "cached" if block in view.state.blocks else "free"


def rows_filled(view: ViewState, block: int) -> int:
    """Token rows with something in them: computed ones of a held block, all of a cached one."""
    size = view.state.info.block_size
    rows = [
        max(0, min(size, seq.num_computed - seq.table.index(block) * size))
        for seq in (view.state.sequences[s] for s in view.holders.get(block, ()))
    ]
    return max(rows) if rows else size if block in view.state.blocks else 0


def first_token(view: ViewState, block: int) -> int | None:
    """The position of a block's first token in its sequence; None where that is not known."""
    held = view.holders.get(block)
    size = view.state.info.block_size
    if held:
        return view.state.sequences[held[0]].table.index(block) * size
    depth, state = 0, view.state.blocks.get(block)
    if state is None:
        return None
    parents = {b.key: b.parent for b in view.state.blocks.values()}
    key = state.parent
    while key in parents and depth < len(parents):
        depth, key = depth + 1, parents[key]
    return depth * size


def tokens_of(view: ViewState, block: int) -> tuple[int, ...]:
    """What stands in a block, as far as it is computed."""
    published = view.state.blocks.get(block)
    if published is not None:
        return published.tokens
    held = view.holders.get(block)
    if not held:
        return ()
    seq = view.state.sequences[held[0]]
    size = view.state.info.block_size
    first = seq.table.index(block) * size
    return known(seq, first, max(first, min(first + size, seq.num_computed)))


def known(seq: SequenceState, first: int, end: int) -> tuple[int, ...]:
    """The tokens at positions `first` to `end` (not included) of prompt and output."""
    past = len(seq.prompt)
    return seq.prompt[first:end] + seq.output[max(first - past, 0) : max(end - past, 0)]


def find_blocks(view: ViewState, text: str) -> list[int]:
    """The blocks whose own tokens contain `text`, whatever its case; no text finds none."""
    sought = text.casefold()
    if not sought:
        return []
    blocks = sorted(view.holders.keys() | view.state.blocks.keys())
    return [b for b in blocks if sought in view.decode(tokens_of(view, b)).casefold()]


def still_cached(view: ViewState, seq: SequenceState, index: dict[tuple[str, tuple[int, ...]], int]) -> list[int]:
    """The blocks a waiting sequence would hit now, in logical order; `index` is that of `published_index`.

    Always one token is left to be computed, as a hit of everything would give no logits.
    """
    size = view.state.info.block_size
    total = len(seq.prompt) + len(seq.output)
    keys = {b.key for b in view.state.blocks.values()}
    first = known(seq, 0, size)
    for root in {parent for parent, tokens in index if tokens == first and parent not in keys}:
        found: list[int] = []
        while (len(found) + 1) * size < total:
            start = len(found) * size
            block = index.get((root, known(seq, start, start + size)))
            if block is None:
                break
            found.append(block)
            root = view.state.blocks[block].key
        return found
    return []


def published_index(view: ViewState) -> dict[tuple[str, tuple[int, ...]], int]:
    """(parent key, tokens) -> block."""
    return {(state.parent, state.tokens): block for block, state in view.state.blocks.items()}


def tone(view: ViewState, seq_ids: Sequence[str]) -> str:
    """Bold for what is the selected sequence's, dim for the rest, nothing where none that is alive is selected."""
    if view.selected is None or view.selected not in view.state.sequences:
        return ""
    return " bold" if view.selected in seq_ids else " dim"
