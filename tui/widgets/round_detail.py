"""One round, token by token: the rule by which each draft was kept or not, with its numbers."""

from __future__ import annotations

from collections.abc import Sequence

from mini_infer.observe.events import Round
from tui.model.focus import drafting, focus
from tui.model.records import RoundRecord
from tui.model.view_state import ViewState
from tui.text import clip, fit
from tui.text import width as cells_of
from tui.widgets.panel import Line, Panel, Span, empty
from tui.widgets.rounds import verdicts

WORDS = 26
"""Cells kept for the verdict in words."""


class RoundDetail(Panel):
    """`at` is the report of the round to show; None is the newest."""

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.at: int | None = None

    def record(self, view: ViewState) -> RoundRecord | None:
        seq_id = focus(view)
        rounds = view.past.rounds(seq_id) if seq_id is not None else []
        return next((r for r in rounds if r.seq == self.at), rounds[-1] if rounds else None)

    def heading(self, view: ViewState) -> tuple[str, str]:
        record = self.record(view)
        if record is None:
            return "round", ""
        made, wide = record.round, self.size.width >= 76
        if made.gap is not None:
            rule = ": greedy, a draft is kept when it is the target's best" if wide else ": greedy"
        else:
            rule = ": a draft token is kept when u < min(1, p/q)" if wide else ""
        return f"round of {view.letter(made.seq_id)} in step {record.step}{rule}", f"kept {made.kept} of {made.drafted}"

    def draw(self, view: ViewState, width: int, height: int) -> Sequence[Line]:
        record = self.record(view)
        if record is None:
            return empty("no round yet" if drafting(view) is None else "no drafts, no rounds")
        made = record.round
        head, columns = _table(made)
        room = max(3, min(width - sum(c + 1 for c in columns) - WORDS, 30))
        lines: list[Line] = []
        if height > made.drafted + 1:
            titles = "".join(f" {h:>{c}}" for h, c in zip(head, columns, strict=True))
            lines.append([Span(f"{fit('token', room)}{titles}  verdict", "muted")])
        for i, (sign, style, word) in enumerate(verdicts(view, made)):
            lines.append(_token(view, made, i, room, columns, (sign, style, word)))
        lines.append(_last(view, made, room, sum(c + 1 for c in columns)))
        return lines


def _table(made: Round) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Names and widths of the columns of figures."""
    if made.gap is not None:
        return ("gap to best logit",), (17,)
    if made.p is None:
        return (), ()
    return ("p(target)", "q(draft)", "min(1,p/q)", "u"), (9, 8, 10, 6)


def figures(made: Round, i: int) -> tuple[str, ...]:
    """The figures of a draft, as text; dashes where the round does not have them."""
    if made.gap is not None:
        return (f"{made.gap[i]:.2f}" if i < len(made.gap) else "-",)
    if made.p is None:
        return ()
    p, q, u = ((v[i] if v is not None and i < len(v) else None) for v in (made.p, made.q, made.u))
    ratio = None if p is None or q is None else min(1.0, p / q) if q > 0 else 1.0
    return tuple("-" if v is None else f"{v:.{digits}f}" for v, digits in ((p, 3), (q, 3), (ratio, 2), (u, 3)))


def _token(
    view: ViewState, made: Round, i: int, room: int, columns: tuple[int, ...], verdict: tuple[str, str, str]
) -> Line:
    g, (sign, style, word) = view.glyphs, verdict
    known = i < len(made.draft)
    text = clip(view.piece(made.draft[i]), room - 2, g.ellipsis) if known else g.ellipsis
    if word == "rejected":
        word = "rejected, not the best" if made.gap is not None else "redrawn, max(0,p-q)"
    shown = figures(made, i) if known else ("-",) * len(columns)
    numbers = "".join(f" {value:>{c}}" for value, c in zip(shown, columns, strict=True))
    return [
        Span("|", "faint"), Span(text, f"{style} strike" if sign == g.rejected else style), Span("|", "faint"),
        Span(" " * max(0, room - 2 - cells_of(text))), Span(numbers), Span(f"  {sign} {word}", style),
    ]  # fmt: skip


def _last(view: ViewState, made: Round, room: int, figures_cells: int) -> Line:
    """What the target added."""
    g = view.glyphs
    if made.token is None:
        return [Span("the answer ended before the target's own token", "muted")]
    sign, style, word = (
        (g.bonus, "bonus bold", "bonus: all were kept") if made.bonus else (g.own, "own", "the target's own")
    )
    text = clip(view.piece(made.token), room - 2, g.ellipsis)
    return [
        Span("|", "faint"), Span(text, style), Span("|", "faint"), Span(" " * max(0, room - 2 - cells_of(text))),
        Span(" " * figures_cells), Span(f"  {sign} {word}", style),
    ]  # fmt: skip
