"""How many may wait: a bound that a server puts before the engine, so that a crowd is refused at once and not late."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mini_infer.scheduler.continuous import ContinuousScheduler


class QueueFull(RuntimeError):
    """As many sequences wait as may; trying again later can help."""


def check_room(scheduler: ContinuousScheduler, sequences: int, max_waiting: int | None) -> None:
    """Raises QueueFull where, with so many more, over `max_waiting` sequences would wait; None is no bound.

    Free seats count as room while nobody was left waiting by the last step: newcomers take them in the next.
    """
    if max_waiting is None:
        return
    queue = scheduler.queue
    crowded = len(queue) > 0 and queue[0].wait is not None
    room = max_waiting + (0 if crowded else scheduler.max_running - scheduler.seats)
    waiting = sum(s.n for s in queue)
    if waiting + sequences > room:
        told = f"{waiting} wait and {sequences} more would be too many (--max-waiting {max_waiting}): try again later"
        raise QueueFull(told)
