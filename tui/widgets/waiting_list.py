"""The queue in order, with the scheduler's reason for each, and who was preempted by whom."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mini_infer.observe.state import SequenceState
from tui.model.explain import why_waiting
from tui.model.records import PreemptionRecord
from tui.model.view_state import ViewState
from tui.widgets.panel import Line, Span, Target
from tui.widgets.picking import RequestRows
from tui.widgets.wrapped import wrap


class Preemption(NamedTuple):
    seq_id: str
    record: PreemptionRecord


class WaitingList(RequestRows):
    def ids(self, view: ViewState) -> Sequence[str]:
        return [s.seq_id for s in view.state.waiting]

    def heading(self, view: ViewState) -> tuple[str, str]:
        return f"waiting {len(view.state.waiting)}", f"preempted so far: {view.state.totals.preemptions}"

    def draw(self, view: ViewState, width: int, height: int) -> Sequence[Line]:
        lines = self._queue(view, width)
        found = preemptions(view)
        now = [p for p in found if view.report is not None and p.record.seq == view.report.seq]
        older = [p for p in found if p not in now]
        if lines and now and height > len(lines) + 2:
            lines.append([])
        for p in now:
            lines += self._told(view, p, width, "bad")
        for p in older:
            told = self._told(view, p, width, "muted")
            if len(lines) + len(told) > height:
                break
            lines += told
        return lines

    def _queue(self, view: ViewState, width: int) -> list[Line]:
        waiting = view.state.waiting
        if not waiting:
            return [[Span("nobody waits", "muted")]]
        wide = width >= 44
        title = (
            f"{'place':<7}{'size':<9}why not in step {view.state.step}"
            if wide
            else f"why not in step {view.state.step}"
        )
        lines: list[Line] = [[Span(title, "muted")]]
        for place, seq in enumerate(waiting, 1):
            lines += self._waits(view, place, seq, width, wide)
        return lines

    def _waits(self, view: ViewState, place: int, seq: SequenceState, width: int, wide: bool) -> list[Line]:
        target = Target("request", seq.seq_id)
        size = -(-(len(seq.prompt) + len(seq.output)) // view.state.info.block_size)
        name = f"{place} {view.letter(seq.seq_id)}{view.glyphs.selected if seq.seq_id == view.selected else ' '}"
        kind = seq.wait.kind if seq.wait is not None else "NEXT"
        head = [Span(f"{name:<7}" if wide else f"{name} ", view.owner(seq.seq_id), target)]
        if wide:
            head.append(Span(f"{size} blk".ljust(9), "", target))
        head.append(Span(f"{kind:<9}" if wide else f"{kind} ", "warning bold", target))
        used = sum(len(s.text) for s in head)
        why = why_waiting(view, seq.wait)
        if seq.lost:
            why += f" (lost {seq.lost} tok)"
        first, *rest = wrap(why, max(1, width - used))
        return [[*head, Span(first, "", target)], *([Span(" " * used), Span(line, "", target)] for line in rest)]

    def _told(self, view: ViewState, p: Preemption, width: int, style: str) -> list[Line]:
        text = f"{view.letter(p.seq_id)} preempted @{p.record.step}: {cause(view, p)}"
        return [[Span(line, style, Target("step", "", p.record.step))] for line in wrap(text, width)]


def preemptions(view: ViewState) -> list[Preemption]:
    """All that is remembered, newest first."""
    found = [
        Preemption(r.seq_id, p) for r in view.past.requests for p in r.preemptions if p.seq <= view.past.seq
    ]  # fmt: skip
    return sorted(found, key=lambda p: -p.record.seq)


def cause(view: ViewState, p: Preemption) -> str:
    """Who needed blocks when there were none, and why it hit this one."""
    name, who, record = view.letter(p.seq_id), p.record.cause, p.record
    if who == p.seq_id:
        needed = "it needed a block itself, none was free"
    elif who:
        needed = f"{view.letter(who)} needed a block, none was free"
    else:
        needed = "a block was needed, none was free"
    taken = ", ".join(f"{view.letter(seq_id)} {count}" for seq_id, count in record.needs)
    took = f" (taken in that step: {taken})" if taken else ""
    return f"{needed}{took}; {name} was last in the order of service. {record.freed} blk freed, {record.lost} tok lost"
