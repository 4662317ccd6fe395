"""The waiting queue, in order of service, and the reason why each of its sequences waits.

A step examines only the front of the queue; everybody else waits for the one directly ahead (`ORDER behind`). So the
work per step does not grow with the queue, and a reason changes only when it really does.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from mini_infer.observe.events import Wait
from mini_infer.scheduler.sequence import Sequence, Status


class WaitingQueue:
    def __init__(self) -> None:
        self._items: list[Sequence] = []
        self._examined: list[Sequence] = []  # those the last plan gave a reason of their own
        self._before: list[Sequence] = []  # those of the plan before
        self.changed: dict[str, Wait | None] | None = None  # filled only while somebody listens

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> Sequence:
        return self._items[index]

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._items)

    def add(self, seq: Sequence) -> None:
        """Put a new, preempted or rolled-back sequence in its place."""
        seq.status = Status.WAITING
        insort(self._items, seq, key=lambda s: s.order)
        index = self._index(seq)
        self._stand_behind(index)
        self._stand_behind(index + 1)

    def remove(self, seq: Sequence) -> None:
        index = self._index(seq)
        del self._items[index]
        seq.wait = None
        if self.changed is not None:
            self.changed.pop(seq.seq_id, None)
        self._stand_behind(index)

    def begin(self) -> None:
        """A new round of reasons; `settle` ends it."""
        self._before, self._examined = self._examined, []

    def explain(self, seq: Sequence, wait: Wait) -> None:
        """State the reason of a sequence this plan examined."""
        self._examined.append(seq)
        self._set(seq, wait)

    def settle(self) -> None:
        """Whoever was examined in an earlier plan but not in this one now waits for the one ahead."""
        examined = {s.seq_id for s in self._examined}
        for seq in self._before:
            if seq.status is Status.WAITING and seq.seq_id not in examined:
                seq.wait = None
                self._stand_behind(self._index(seq))

    def pause(self) -> None:
        for seq in self._items:
            self._set(seq, Wait("PAUSED"))

    def pause_one(self, seq: Sequence) -> None:
        self._set(seq, Wait("PAUSED"))

    def resume(self) -> None:
        """Everybody stands in line again; the next plan examines the front."""
        for index, seq in enumerate(self._items):
            seq.wait = None
            self._stand_behind(index)

    def _stand_behind(self, index: int) -> None:
        """Refresh the reason of the sequence at `index` where it is its place; the head's comes with the next plan."""
        if index >= len(self._items):
            return
        seq = self._items[index]
        if seq.wait is None or seq.wait.kind == "ORDER":
            self._set(seq, Wait("ORDER", behind=self._items[index - 1].seq_id) if index else None)

    def _set(self, seq: Sequence, wait: Wait | None) -> None:
        if self.changed is not None:
            self.changed[seq.seq_id] = wait  # the report drops those that ended where they began
        seq.wait = wait

    def _index(self, seq: Sequence) -> int:
        index = bisect_left(self._items, seq.order, key=lambda s: s.order)
        if index == len(self._items) or self._items[index] is not seq:
            raise ValueError(f"sequence {seq.seq_id} is not in the queue")
        return index
