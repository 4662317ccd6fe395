"""The prefix cache as a tree of chains, and the order in which its idle blocks will be evicted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from mini_infer.observe.state import BlockState
from tui.model.view_state import ViewState


class Chain(NamedTuple):
    """Blocks that follow one another, have the same holders, and do not branch in between."""

    blocks: tuple[int, ...]
    key: str  # of the last one: it stands for the whole prefix
    tokens: tuple[int, ...]
    holders: tuple[str, ...]  # in order of service; none where the chain is idle
    depth: int  # chains above it


class Node(NamedTuple):
    """A chain as a line of the tree. `stems`: for each level above, whether more follows there."""

    chain: Chain | None  # None: the root
    stems: tuple[bool, ...]
    parent: str  # a root's own key
    orphan: bool = False  # a root whose own block is gone


class Idle(NamedTuple):
    """An idle cached block; `place` 1 is evicted next."""

    place: int
    block: int
    state: BlockState
    freed_step: int | None  # None: before anybody looked


def eviction_order(view: ViewState) -> list[Idle]:
    """The cached blocks that nobody holds, in the order in which they will be evicted: as they became idle."""
    idle = {b for b in view.state.blocks if b not in view.holders}
    newest: list[tuple[int, int | None]] = []
    for record in reversed(view.past.steps):
        if not idle:
            break
        for move in reversed(record.moves):
            if move.op == "free" and move.block in idle:
                idle.discard(move.block)
                newest.append((move.block, record.step))
    order = [(block, None) for block in sorted(idle)] + newest[::-1]
    return [Idle(i, block, view.state.blocks[block], step) for i, (block, step) in enumerate(order, 1)]


def tree(view: ViewState) -> list[Node]:
    """All published blocks, folded, a line per chain, children in order of their first block.

    A root is what first blocks have as their parent: one per salt. Blocks whose parent was evicted before them hang on
    a root of their own: no lookup reaches them.
    """
    blocks = view.state.blocks
    keys = {state.key for state in blocks.values()}
    children: dict[str, list[int]] = {}
    for block in sorted(blocks):
        children.setdefault(blocks[block].parent, []).append(block)
    roots = [parent for parent in children if parent not in keys]
    orphans = _orphans(view, [b for r in roots for b in children[r]]) if len(roots) > 1 else set()
    nodes: list[Node] = []
    for root in sorted(roots, key=lambda r: (children[r][0] in orphans, children[r][0])):
        nodes.append(Node(None, (), root, children[root][0] in orphans))
        _grow(view, children, children[root], (), nodes)
    return nodes


def _grow(
    view: ViewState, children: dict[str, list[int]], heads: list[int], stems: tuple[bool, ...], nodes: list[Node]
) -> None:
    """The chains that begin with `heads`, and all below; a stack, because chains can be long."""
    stack = [(block, (*stems, i + 1 < len(heads))) for i, block in enumerate(heads)][::-1]
    while stack:
        block, levels = stack.pop()
        run, holders = [block], view.holders.get(block, [])
        below = children.get(view.state.blocks[block].key, [])
        while len(below) == 1 and view.holders.get(below[0], []) == holders:
            run.append(below[0])
            below = children.get(view.state.blocks[below[0]].key, [])
        last = view.state.blocks[run[-1]]
        tokens = tuple(t for b in run for t in view.state.blocks[b].tokens)
        nodes.append(Node(Chain(tuple(run), last.key, tokens, tuple(holders), len(levels) - 1), levels, last.parent))
        stack += [(b, (*levels, i + 1 < len(below))) for i, b in enumerate(below)][::-1]


def _orphans(view: ViewState, heads: list[int]) -> set[int]:
    """Those that are not the first of their sequence, as far as is known."""
    found, open_ = set(), set(heads)
    for record in reversed(view.past.steps):
        if not open_:
            break
        for move in reversed(record.moves):
            if move.op == "hash" and move.block in open_:
                open_.discard(move.block)
                if move.index > 0:
                    found.add(move.block)
    return found


def ranges(numbers: Iterable[int]) -> str:
    """`0-2 7 9-10`, in the order given."""
    parts: list[list[int]] = []
    for n in numbers:
        if parts and n == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], n]
        else:
            parts.append([n])
    return " ".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[1]}" for p in parts)
