"""The live dashboard of a run, drawn with rich from a `Progress`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from mini_infer.load.live import Clock, Progress
from mini_infer.load.markdown import MAIN, NA, main_row, number, share
from mini_infer.load.words import causes

SWITCH_S = 0.0005
"""How long the drawing thread may keep the event loop from stamping what arrives; the default is ten times that."""

_BARS = " ▁▂▃▄▅▆▇█"
_ASCII = " .:-=+*#%"


def sparkline(values: Sequence[float], width: int, bars: str = _BARS) -> str:
    """The last `width` values as bars from 0 to the greatest of them."""
    shown = list(values)[-width:]
    top = max(shown, default=0.0)
    steps = len(bars) - 1
    return "".join(bars[0 if top <= 0 else max(1 if v > 0 else 0, round(steps * v / top))] for v in shown).rjust(width)


def dashboard(progress: Progress, title: str, *, width: int = 100, plain: bool = False) -> RenderableType:
    """The whole picture: what runs now, its sparklines, and the levels that are done. `plain` keeps to ASCII."""
    bars = _ASCII if plain else _BARS
    level = progress.level
    what = Text(progress.what, style="bold")
    if level is not None:
        what.append(f"  {level.name} {'at once' if level.concurrency else ''}".rstrip(), style="cyan")
    what.append(f"   {progress.elapsed:.1f} s", style="dim")
    length = width - 4
    full = round((progress.share or 0.0) * length)
    bar = Text(("#" if plain else "━") * full, style="green").append(("-" if plain else "━") * (length - full), "dim")
    counts = Text()
    counts.append(f"{progress.running} running", style="cyan")
    counts.append(f"   {progress.ended_ok} ok", style="green")
    counts.append(f"   {progress.failed} failed", style="red" if progress.failed else "dim")
    if progress.causes:
        counts.append(f"   {causes(progress.causes)}", style="red")
    room = max(10, min(60, width - 32))
    lines = Table.grid(padding=(0, 2))
    lines.add_column(style="dim", width=8)
    lines.add_column(width=room)
    lines.add_column(justify="right", width=10)
    rate = progress.rates()
    now = rate[-2] if len(rate) > 1 else (rate[-1] if rate else 0.0)
    lines.add_row("pieces/s", Text(sparkline(rate, room, bars), style="green"), f"{now:,.0f}")
    first = list(progress.first)
    last = f"{first[-1]:,.0f} ms" if first else "n/a"
    lines.add_row("TTFT", Text(sparkline(first, room, bars), style="yellow"), last)
    now_panel = Panel(Group(what, bar, counts, Text(), lines), title=title, title_align="left", border_style="dim")
    return Group(now_panel, done_table(progress)) if progress.done else now_panel


def done_table(progress: Progress) -> Table:
    """The levels that are measured; columns that nobody can fill are left out."""
    repeats = any(level.repeat for level in progress.done)
    rows = [
        [*main_row(level, repeats), share(level.figures.attainment), share(level.figures.acceptance)]
        for level in progress.done
    ]
    known = [any(row[i] != NA for row in rows) for i in range(len(rows[0]))]
    found = Table(border_style="dim", header_style="bold", expand=True)
    for column, is_known in zip((*MAIN, "SLO met", "accepted"), known, strict=True):
        if is_known:
            found.add_column(column, justify="right")
    for level, row in zip(progress.done, rows, strict=True):
        style = "red" if level.figures.failed else ""
        found.add_row(*(cell for cell, is_known in zip(row, known, strict=True) if is_known), style=style)
    best = max((level.figures.output_tok_s or 0.0 for level in progress.done), default=0.0)
    found.caption = f"best {number(best)} tok/s"
    return found


class Dashboard(Progress):
    """Draws itself on a terminal while it is entered, four times a second, from rich's own thread."""

    def __init__(self, clock: Clock, title: str, console: Console) -> None:
        super().__init__(clock)
        plain = not (console.encoding or "").lower().startswith("utf")
        width = min(console.width, 110)
        self._live = Live(
            get_renderable=lambda: dashboard(self, title, width=width, plain=plain),
            console=console,
            refresh_per_second=4,
            transient=True,
        )

    def __enter__(self) -> Dashboard:
        self._interval = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_S)
        self._live.__enter__()
        return self

    def __exit__(self, *about: object) -> None:
        self._live.__exit__(None, None, None)
        sys.setswitchinterval(self._interval)
