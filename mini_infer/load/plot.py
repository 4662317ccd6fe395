"""Line plots as inline SVG: axes, a legend, points that tell their value. Nothing is fetched from anywhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 460, 260
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 34, 40


@dataclass(frozen=True, slots=True)
class Series:
    """Points in order of x; `color` is one of the page's numbered ones."""

    name: str
    points: Sequence[tuple[float, float]]
    color: int = 1
    dashed: bool = False


def plot(title: str, x_name: str, y_name: str, series: Sequence[Series], *, log_x: bool = False) -> str:
    """An SVG element. Series without points are left out; without any the picture says so."""
    series = [s for s in series if s.points]
    head = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">'
    head += f'<text class="title" x="{LEFT}" y="16">{escape(title)}</text>'
    if not series:
        return head + f'<text class="tick" x="{LEFT}" y="60">nothing measured</text></svg>'
    xs = sorted({x for s in series for x, _ in s.points})
    top = ticks(max(y for s in series for _, y in s.points))
    low, high = xs[0], xs[-1]
    if low == high:
        low, high = (low / 2, high * 2) if log_x and low > 0 else (low - 1, high + 1)

    def scale(x: float) -> float:
        part = math.log(x / low) / math.log(high / low) if log_x else (x - low) / (high - low)
        return LEFT + part * (WIDTH - LEFT - RIGHT)

    def height(y: float) -> float:
        return HEIGHT - BOTTOM - y / top[-1] * (HEIGHT - TOP - BOTTOM)

    parts = [head]
    for y in top:
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{height(y):.1f}" y2="{height(y):.1f}"/>')
        parts.append(f'<text class="tick" text-anchor="end" x="{LEFT - 6}" y="{height(y) + 4:.1f}">{y:g}</text>')
    for x in xs if len(xs) <= 8 else ticks(high, low):
        parts.append(
            f'<text class="tick" text-anchor="middle" x="{scale(x):.1f}" y="{HEIGHT - BOTTOM + 16}">{x:g}</text>'
        )
    parts.append(f'<text class="tick" text-anchor="end" x="{WIDTH - RIGHT}" y="{HEIGHT - 6}">{escape(x_name)}</text>')
    parts.append(f'<text class="tick" x="4" y="{HEIGHT - 6}">{escape(y_name)}</text>')
    at = LEFT
    for s in series:
        line = " ".join(f"{scale(x):.1f},{height(y):.1f}" for x, y in s.points)
        dash = ' stroke-dasharray="5 4"' if s.dashed else ""
        parts.append(f'<polyline class="line c{s.color}"{dash} points="{line}"/>')
        if len(s.points) <= 40:
            for x, y in s.points:
                told = f"<title>{escape(s.name)}: {y:.4g} at {x:g}</title>"
                parts.append(
                    f'<circle class="dot c{s.color}" cx="{scale(x):.1f}" cy="{height(y):.1f}" r="3">{told}</circle>'
                )
        if len(series) > 1:
            parts.append(f'<line class="line c{s.color}"{dash} x1="{at}" x2="{at + 16}" y1="26" y2="26"/>')
            parts.append(f'<text class="tick" x="{at + 20}" y="30">{escape(s.name)}</text>')
            at += 34 + 7 * len(s.name)
    return "".join(parts) + "</svg>"


def ticks(high: float, low: float = 0.0, count: int = 5) -> list[float]:
    """Round numbers from at most `low` to at least `high`."""
    span = high - low
    if span <= 0:
        return [low, low + 1.0]
    step = 10.0 ** math.floor(math.log10(span / count))
    step *= next(m for m in (1, 2, 2.5, 5, 10) if span / (step * m) <= count)
    start = math.floor(low / step)
    return [round(i * step, 10) for i in range(start, math.ceil(high / step - 1e-9) + 1)]
