"""Requests by steps: what each did in each of the last steps, and where it stands now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType

from mini_infer.observe.state import SequenceState
from tui.glyphs import Glyphs
from tui.messages import CursorMoved, ViewOpened
from tui.model.lookback import Column
from tui.model.view_state import ViewState
from tui.text import clip, fit
from tui.widgets.panel import Line, Span, Target, empty
from tui.widgets.picking import RequestRows

STATUS_CELLS, SHORT_CELLS, WHY_CELLS = 26, 17, 30
NAME_CELLS = 4


class Timeline(RequestRows):
    """The last column is the step at the cursor. A click on a column goes there."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "step(-1)", "Step back", show=False, id="timeline-left"),
        Binding("right", "step(1)", "Step on", show=False, id="timeline-right"),
        Binding("enter", "open", "Open in chat", show=True, id="timeline-open"),
    ]

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._columns = 60  # as drawn last

    def heading(self, view: ViewState) -> tuple[str, str]:
        g = view.glyphs
        signs = f"{g.prefill} prefill  {g.decode} decode  2 kept 2 drafts  {g.preempted} preempt"
        if self.size.width >= 110:
            signs += f"  {g.waiting} wait  {g.finished} finished  {g.aborted} aborted"
        return "requests x steps", signs

    def ids(self, view: ViewState) -> list[str]:
        """Those alive or seen in the steps shown, in order of arrival."""
        seen = {seq_id for column in view.past.columns(self._columns) for seq_id in column.marks}
        seen |= view.state.sequences.keys()
        return [r.seq_id for r in view.past.requests if r.seq_id in seen]

    def draw(self, view: ViewState, width: int, height: int) -> Sequence[Line]:
        status = STATUS_CELLS if width >= 56 else SHORT_CELLS if width >= 34 else 0
        why = WHY_CELLS if width - status >= 70 else 0
        cells = self._columns = max(1, width - NAME_CELLS - (status + 1 + why if status else 0))
        columns = view.past.columns(cells)
        ids = self.ids(view)
        if not ids:
            return empty("no request yet")
        head = [self._ruler(view, columns, cells, status, why)] if height > 1 else []
        room = max(1, height - len(head))
        if len(ids) > room:  # those that ended go first
            gone = [i for i in ids if i not in view.state.sequences and i != view.selected][: len(ids) - room]
            ids = [i for i in ids if i not in gone]
        rows = [self._row(view, seq_id, columns, cells, status, why) for seq_id in ids]
        return [*head, *rows]

    def _ruler(self, view: ViewState, columns: list[Column], cells: int, status: int, why: int) -> Line:
        ruler = [" "] * cells
        first = cells - len(columns)
        for i, column in enumerate(columns):
            text = str(column.step)
            if column.step % 10 == 0 and first + i + len(text) <= cells:
                ruler[first + i : first + i + len(text)] = text
        spans = [Span(" " * NAME_CELLS + "".join(ruler), "faint")]
        if status:
            spans.append(Span(view.glyphs.now, "muted"))
            title = f" {'state':<6}{'prompt+out':>10}" + (f"{'blk':>4}{'prio':>5}" if status == STATUS_CELLS else "")
            spans.append(Span(fit(title, status), "muted"))
        if why:
            spans.append(Span(" waiting because", "muted"))
        return spans

    def _row(self, view: ViewState, seq_id: str, columns: list[Column], cells: int, status: int, why: int) -> Line:
        selected = seq_id == view.selected
        dim = " dim" if view.selected is not None and not selected else ""
        name = f"{view.letter(seq_id)} {view.glyphs.selected if selected else ' '} "
        spans = [
            Span(name, view.owner(seq_id), Target("request", seq_id)),
            Span(view.glyphs.absent * (cells - len(columns)), "faint"),
        ]
        owner = view.owner(seq_id) + dim
        for column in columns:
            mark = view.past.mark(seq_id, column)
            style = {"!": "bad bold", "-": "faint", "W": "muted" + dim, "A": "bad"}.get(mark, owner)
            spans.append(Span(sign(view.glyphs, mark), style, Target("step", "", column.step)))
        if status:
            spans.append(Span(view.glyphs.now, "muted"))
            target = Target("request", seq_id)
            spans.append(Span(fit(self._status(view, seq_id, status), status), dim.strip(), target))
            seq = view.state.sequences.get(seq_id)
            if why and seq is not None and not seq.running:
                spans.append(Span(clip(" " + short_reason(view, seq), why, view.glyphs.ellipsis), "", target))
        return spans

    def _status(self, view: ViewState, seq_id: str, cells: int) -> str:
        seq = view.state.sequences.get(seq_id)
        record = view.past.request(seq_id)
        priority = record.priority if record is not None else 0
        blocks = len(seq.table) if seq is not None else 0
        text = f" {fit(standing(view, seq_id), 16)}"
        return text + f"{blocks:>4}{priority:>5}" if cells == STATUS_CELLS else text

    def action_step(self, by: int) -> None:
        if self.view is not None:
            step = self.view.state.step + by
            self.post_message(CursorMoved(None if by > 0 and self.view.behind <= by else max(0, step)))

    def action_open(self) -> None:
        if self.view is not None and self.view.selected is not None:
            self.post_message(ViewOpened("chat"))


def sign(g: Glyphs, mark: str) -> str:
    """The glyph of a mark of `Lookback.mark`; digits stand for themselves."""
    glyphs = {"P": g.prefill, "D": g.decode, "!": g.preempted, "F": g.finished, "A": g.aborted, "W": g.waiting}
    return g.absent if mark == "-" else glyphs.get(mark, mark)


def standing(view: ViewState, seq_id: str) -> str:
    """`dec   164+ 29`, `pre  160/240`, `wait 300`, `preempted @412`, or how it ended, in 16 cells."""
    seq, record = view.state.sequences.get(seq_id), view.past.request(seq_id)
    if seq is None:
        if record is None or record.finished is None:
            return "gone"
        word = {"abort": "aborted", "error": "failed"}.get(record.finished.reason, "done")
        return f"{word:<8}{view.past.num_output(seq_id):>4} out"
    total = len(seq.prompt) + len(seq.output)
    if not seq.running:
        steps = [p.step for p in record.preemptions if p.seq <= view.past.seq] if record is not None else []
        return f"preempted @{steps[-1]}" if seq.lost and steps else f"{'wait':<6}{total:>6}"
    if seq.num_computed < total - 1:
        return f"{'pre':<6}" + f"{seq.num_computed}/{total}".rjust(10)
    return f"{'dec':<6}{len(seq.prompt):>6}+{len(seq.output):>3}"


def short_reason(view: ViewState, seq: SequenceState) -> str:
    """The reason's own word and figures."""
    wait = seq.wait
    if wait is None:
        return "next in line"
    match wait.kind:
        case "BLOCKS":
            return f"BLOCKS {wait.need} > {wait.have} available"
        case "ORDER":
            return f"ORDER  behind {view.letter(wait.behind)}"
        case "TOKENS":
            return f"TOKENS {wait.have} left in the budget"
        case "SEQS":
            return f"SEQS   all {wait.have or view.state.info.max_running} seats taken"
        case "COOLDOWN":
            return "COOLDOWN after a preemption"
    return f"{wait.kind} engine stands"
