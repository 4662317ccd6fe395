"""Where one looks: a step, a request, a block. Pure functions; every view shows the same place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum


class Mode(Enum):
    """LIVE follows the engine; HISTORY looks back while it may run on; PAUSED: the engine itself stands."""

    LIVE = "LIVE"
    HISTORY = "HISTORY"
    PAUSED = "PAUSED"


@dataclass(frozen=True, slots=True)
class Cursor:
    """`step`: the step looked at, None follows the newest. `selected`: a sequence. `pinned`: a block."""

    step: int | None = None
    selected: str | None = None
    pinned: int | None = None


def mode_of(cursor: Cursor, paused: bool) -> Mode:
    if cursor.step is not None:
        return Mode.HISTORY
    return Mode.PAUSED if paused else Mode.LIVE


def move(cursor: Cursor, by: int, oldest: int, newest: int) -> Cursor:
    """`by` steps on (back where negative). Whoever arrives at the newest step follows again."""
    return go(cursor, (newest if cursor.step is None else cursor.step) + by, oldest, newest)


def go(cursor: Cursor, step: int | None, oldest: int, newest: int) -> Cursor:
    """To a step, or to the newest with None."""
    if step is None or step >= newest:
        return replace(cursor, step=None)
    return replace(cursor, step=max(oldest, step))


def select_next(cursor: Cursor, seq_ids: Sequence[str], by: int = 1) -> Cursor:
    """The next sequence in the list, round and round; the first (last) where none of them is selected."""
    if not seq_ids:
        return replace(cursor, selected=None)
    if cursor.selected in seq_ids:
        index = (seq_ids.index(cursor.selected) + by) % len(seq_ids)
    else:
        index = 0 if by > 0 else len(seq_ids) - 1
    return replace(cursor, selected=seq_ids[index])
