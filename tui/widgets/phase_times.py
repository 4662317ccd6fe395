"""Where the time goes: each phase of a step, the lengths of steps, and tokens per second."""

from __future__ import annotations

from collections.abc import Sequence

from mini_infer.observe.events import Durations
from tui.glyphs import share_bar, spark
from tui.model.view_state import ViewState
from tui.widgets.panel import Line, Panel, Span, empty

PHASES = ("schedule", "draft", "forward", "sample", "commit")
STYLES = ("paused", "good", "history", "bonus", "muted")
SIGNS = ("s", "D", "F", "m", "c")
OVER = 100


def phases(durations: Durations) -> tuple[float, ...]:
    """Milliseconds, in the order of `PHASES`."""
    return tuple(getattr(durations, name) for name in PHASES)


class PhaseTimes(Panel):
    """Means of the last 100 steps beside the step at the cursor, then two curves."""

    def heading(self, view: ViewState) -> tuple[str, str]:
        speed = view.past.tokens_per_second(OVER)
        count = sum(1 for s in view.past.steps[-OVER - 1 :] if s.stepped) - 1
        right = "" if speed is None else f"{speed:.0f} tok/s over {count} steps"
        return "time per phase", right

    def draw(self, view: ViewState, width: int, height: int) -> Sequence[Line]:
        timed = view.past.durations(OVER)
        if not timed:
            return empty("no step yet")
        means = [sum(phases(d)[i] for _, d in timed) / len(timed) for i in range(len(PHASES))]
        last = phases(timed[-1][1])
        lines: list[Line] = []
        if height >= 9:
            lines.append([Span(_head(timed[-1][0], len(timed), width), "muted")])
        for i, name in enumerate(PHASES):
            lines.append(_phase(view, i, name, last[i], means[i], sum(means), width))
        return [*lines, _total(last, means, width), *_curves(view, width)]


def _head(step: int, count: int, width: int) -> str:
    if width >= 44:
        return f"{'':<10}{f'step {step}':>10} {f'mean of {count}':>12}  share of the mean"
    return f"{'ms':<9}{f'@{step}':>7} {f'x{count}':>7}"


def _phase(view: ViewState, i: int, name: str, last: float, mean: float, total: float, width: int) -> Line:
    share = mean / total if total > 0 else 0.0
    if width >= 44:
        figures = f"{SIGNS[i]} {name:<8}{last:>7.1f} ms {mean:>9.1f} ms  "
    else:
        figures = f"{name:<9}{last:>7.1f} {mean:>7.1f} "
    room = max(0, width - len(figures) - 5)
    bar = share_bar(view.glyphs, ((share, view.glyphs.bar),), room).rstrip(view.glyphs.bar_empty)
    return [Span(figures), Span(bar, STYLES[i]), Span(f" {share:.0%}", "muted")]


def _total(last: Sequence[float], means: Sequence[float], width: int) -> Line:
    if width >= 44:
        return [Span(f"  {'step':<8}{sum(last):>7.1f} ms {sum(means):>9.1f} ms", "bold")]
    return [Span(f"{'step':<9}{sum(last):>7.1f} {sum(means):>7.1f}", "bold")]


def _curves(view: ViewState, width: int) -> list[Line]:
    cells = max(0, min(width - 22, 120))
    lengths = [sum(phases(d)) for _, d in view.past.durations(cells)]
    rates = view.past.rates(cells)
    lines: list[Line] = []
    for name, values, unit, style in (("ms/step", lengths, "ms", "history"), ("tok/s", rates, "", "good")):
        top = f"top {max(values):.0f}{' ' + unit if unit else ''}" if values else ""
        lines.append([Span(f"{name:<8}", "muted"), Span(spark(view.glyphs, values, cells), style), Span(f" {top}")])
    return lines
