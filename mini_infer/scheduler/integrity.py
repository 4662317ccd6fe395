"""The cheap part of what must always hold, checked whenever the engine is idle. The whole of it stands in the tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mini_infer.scheduler.continuous import ContinuousScheduler


class IntegrityError(RuntimeError):
    """An invariant is broken; the message says which and where."""


def check_idle(scheduler: ContinuousScheduler) -> None:
    """Without sequences, no block is in use. O(1). Raises `IntegrityError`."""
    pool = scheduler.pool
    if not scheduler.sequences and pool.num_free != pool.num_blocks:
        raise IntegrityError(f"idle, but {pool.num_used} of {pool.num_blocks} blocks are in use")
