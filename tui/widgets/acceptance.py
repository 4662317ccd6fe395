"""What drafting brought a request: acceptance by position, tokens per round, what was drafted in vain, and K."""

from __future__ import annotations

from collections.abc import Sequence

from tui.glyphs import share_bar
from tui.model.focus import drafting, focus, why_k
from tui.model.records import RoundRecord
from tui.model.view_state import ViewState
from tui.widgets.panel import Line, Panel, Span
from tui.widgets.wrapped import wrap


class Acceptance(Panel):
    """All rounds of the request, as far as the cursor."""

    def heading(self, view: ViewState) -> tuple[str, str]:
        seq_id = focus(view)
        if seq_id is None:
            return "acceptance", ""
        rounds = view.past.rounds(seq_id)
        count = rounds[-1].rounds if rounds else 0
        return f"all {count} rounds of {view.letter(seq_id)}" if count else "acceptance", f"k={why_k(view, seq_id)[0]}"

    def draw(self, view: ViewState, width: int, height: int) -> Sequence[Line]:
        seq_id = focus(view)
        rounds = view.past.rounds(seq_id) if seq_id is not None else []
        lines: list[Line] = []
        if rounds:
            figures = _figures(view, rounds[-1], max(r.round.drafted for r in rounds), width)
            bars = _bars(view, rounds[-1], width, max(1, height - len(figures) - 1))
            lines = [*bars, *figures]
        off = drafting(view)
        if off is not None:
            lines += _said(off, "warning" if view.state.info.draft != "none" else "muted", width)
        elif seq_id is not None:
            k, why = why_k(view, seq_id)
            failed = (view.past.k(seq_id) or (0, None))[1] == "FAILED"
            lines += _said(f"k={k}: {why}", "bad" if failed else "muted", width)
        elif not lines:
            lines = _said("no request yet", "muted", width)
        return lines


def _said(text: str, style: str, width: int) -> list[Line]:
    return [[Span(line, style)] for line in wrap(text, max(1, width))]


def positions(last: RoundRecord) -> list[tuple[int, int]]:
    """(accepted, judged) by position of the draft, over all rounds so far."""
    accepted = (*last.accepted_at, *(0,) * len(last.judged_at))
    return [(accepted[i], judged) for i, judged in enumerate(last.judged_at)]


def _bars(view: ViewState, last: RoundRecord, cells: int, rows: int) -> list[Line]:
    """A bar per position, column after column."""
    found = positions(last)
    columns = -(-len(found) // max(1, min(rows, -(-len(found) // 2) if cells >= 70 else rows)))
    columns = max(1, min(columns, max(1, cells // 24)))
    per_row = -(-len(found) // columns)
    each = max(1, (cells - 3 * (columns - 1)) // columns)
    name = "position " if each >= 34 else "pos"
    lines: list[Line] = []
    for row in range(per_row):
        line: list[Span] = []
        for i in range(row, len(found), per_row):
            accepted, judged = found[i]
            share = accepted / judged if judged else 0.0
            label, figures = f"{name}{i + 1} ", f" {share:>4.0%} {accepted}/{judged}"
            room = max(0, min(30, each - len(label) - 12))
            bar = share_bar(view.glyphs, ((share, view.glyphs.bar),), room)
            text = [Span(label, "muted"), Span(bar, "good"), Span(figures)]
            used = len(label) + len(bar) + len(figures)
            line += [*text, Span(" " * (max(0, each - used) + 3))]
        lines.append(line)
    return lines


def _figures(view: ViewState, last: RoundRecord, k: int, cells: int) -> list[Line]:
    dropped = last.drafted - last.accepted
    origins = view.past.origins(last.round.seq_id)
    steps = len({o.seq for o in origins if o.source != "unknown"})
    made = sum(1 for o in origins if o.source != "unknown")
    parts = [
        f"kept per round {last.tokens / last.rounds:.1f} of {k + 1}",
        f"drafted but dropped {dropped / max(1, last.drafted):.0%} ({dropped} of {last.drafted})",
        f"1 target step = {made / max(1, steps):.1f} tok",
    ]
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + 3 + len(part) <= cells:
            lines[-1] += "   " + part
        else:
            lines.append(part)
    return [[Span(line)] for line in lines]
