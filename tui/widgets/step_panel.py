"""One step: whose tokens filled its budget, how long its phases took, which blocks moved."""

from __future__ import annotations

from collections.abc import Sequence

from mini_infer.observe.events import Durations, Scheduled, StepReport
from tui.model.pool_facts import tone
from tui.model.view_state import ViewState
from tui.text import clip
from tui.widgets.panel import Line, Panel, Span, Target, empty

PHASES = ("schedule", "draft", "forward", "sample", "commit")


class StepPanel(Panel):
    def heading(self, view: ViewState) -> tuple[str, str]:
        report = view.report
        left = f"step {view.state.step}"
        if report is not None and report.durations is not None:
            left += f"  {total_ms(report.durations):.3g} ms"
        budget = report.budget if report is not None and report.stepped else None
        return left, f"seqs {budget.seqs}/{budget.max_seqs}" if budget is not None else ""

    def draw(self, view: ViewState, width: int, height: int) -> Sequence[Line]:
        report = view.report
        if report is None:
            return empty("no step yet")
        if not report.stepped:
            return [[Span(clip(_news(report), width, view.glyphs.ellipsis), "muted")]]
        lines: list[Line] = [budget_line(view, report, width)]
        lines.append(time_line(view, report, width))
        lines.append(self._blocks(view, report, width))
        if height > 3:
            lines.append(self._output(view, report, width))
        return lines[:height]

    def _blocks(self, view: ViewState, report: StepReport, width: int) -> Line:
        """Taken with their owners, shared, evicted, freed: what does not fit is counted."""
        moves = report.blocks
        spans: list[Span] = [Span("blocks ", "muted")]
        taken = [m for m in moves if m.op in ("alloc", "cow")]
        most = max(1, (width - 40) // 7)
        for m in taken[:most]:
            text = f"+{m.block}{view.glyphs.arrow}{view.letter(m.seq_id)} "
            spans.append(Span(text, view.owner(m.seq_id), Target("block", "", m.block)))
        if len(taken) > most:
            spans.append(Span(f"and {len(taken) - most} more "))
        evicted = [m.block for m in moves if m.op == "evict"]
        if evicted:
            shown = " ".join(map(str, evicted[:4])) + (f" and {len(evicted) - 4} more" if len(evicted) > 4 else "")
            spans.append(Span(f"  evicted {shown}", "own"))
        for op, word in (("share", "hit"), ("free", "left"), ("hash", "published")):
            count = sum(m.op == op for m in moves)
            if count:
                spans.append(Span(f"  {word} {count}", "good" if op == "share" else "muted"))
        copied = sum(m.op == "cow" for m in moves)
        if copied:
            spans.append(Span(f"  copied on write {copied}", "own"))
        return spans if len(spans) > 1 else [*spans, Span("none moved", "muted")]

    def _output(self, view: ViewState, report: StepReport, width: int) -> Line:
        spans: list[Span] = [Span("output ", "muted")]
        for out in report.outputs:
            if out.token_ids:
                spans.append(Span(f"{view.letter(out.seq_id)} {len(out.token_ids)}  ", view.owner(out.seq_id),
                                  Target("request", out.seq_id)))  # fmt: skip
        total = sum(len(out.token_ids) for out in report.outputs)
        return [*spans, Span(f"{total} tok in all", "muted")]


def budget_line(view: ViewState, report: StepReport, width: int) -> Line:
    """`tokens DDDDAAB···  7/12`: a cell per token of the budget, scaled where it is wider than the screen."""
    budget = report.budget
    if budget is None:
        return [Span("tokens ", "muted"), Span("not told", "muted")]
    head = "tokens " if width >= 24 else ""
    tail = f" {budget.tokens}/{budget.max_tokens}" if width >= 12 else ""
    room = max(1, width - len(head) - len(tail))
    cells = min(room, budget.max_tokens)
    spans = [Span(head, "muted")]
    used = 0
    for part, count in zip(report.sched, scaled([s.n_new + s.n_draft for s in report.sched],
                                                budget.max_tokens, cells), strict=True):  # fmt: skip
        spans += _part(view, part, min(count, cells - used))
        used += min(count, cells - used)
    spans.append(Span(view.glyphs.bar_empty * (cells - used), "faint"))
    return [*spans, Span(tail + (" tok" if room - cells >= 4 else ""))]


def _part(view: ViewState, part: Scheduled, cells: int) -> list[Span]:
    """Drafts are underlined."""
    letter, style = view.letter(part.seq_id), view.owner(part.seq_id) + tone(view, [part.seq_id]).replace(" bold", "")
    drafts = round(cells * part.n_draft / max(1, part.n_new + part.n_draft))
    target = Target("request", part.seq_id)
    return [
        Span(letter * (cells - drafts), style, target),
        Span(letter * drafts, f"{style} underline", target),
    ]


def scaled(counts: Sequence[int], total: int, cells: int) -> list[int]:
    """Each count in cells of `total / cells` each, at least one where it is not 0."""
    if total <= cells:
        return list(counts)
    ends, done, result = 0.0, 0, []
    for count in counts:
        ends += count * cells / total
        size = max(1 if count else 0, round(ends) - done)
        result.append(size)
        done += size
    return result


def time_line(view: ViewState, report: StepReport, width: int) -> Line:
    if report.durations is None:
        return [Span("time   ", "muted"), Span("not measured", "muted")]
    spans = [Span("time   ", "muted")]
    short = width < 72
    for i, phase in enumerate(PHASES):
        value = f"{getattr(report.durations, phase):.1f}"
        if i:
            spans.append(Span(f" {view.glyphs.separator} ", "frame"))
        spans.append(Span(f"{phase[:5] if short else phase} {value}"))
    return [*spans, Span(" ms", "muted")]


def total_ms(durations: Durations) -> float:
    return float(sum(getattr(durations, phase) for phase in PHASES))


def _news(report: StepReport) -> str:
    """What a report without a step brought."""
    news = [c.action.replace("_", " ") + (f" {c.detail}" if c.detail else "") for c in report.control]
    news += [f"{len(report.arrived)} arrived"] if report.arrived else []
    news += [f"{len(report.aborted)} aborted"] if report.aborted else []
    return f"no step: {', '.join(news) or 'news between steps'}"
