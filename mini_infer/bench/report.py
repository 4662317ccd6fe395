"""The figures as a table, and as JSON that holds both sides of every ratio."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from mini_infer.bench.figures import Figure, Ratio


class Report(Struct, frozen=True, kw_only=True):
    """One run: where it ran, and what it found."""

    version: str
    torch: str
    machine: str
    threads: int
    model: str
    dtype: str
    weight_bytes: int
    max_batch_tokens: int
    max_chunk: int
    figures: tuple[Figure, ...]


def to_json(report: Report) -> str:
    """One object; each ratio also as the number it comes to."""
    plain = msgspec.to_builtins(report)
    for figure, held in zip(plain["figures"], report.figures, strict=True):
        for ratio, of in zip(figure["ratios"], held.ratios, strict=True):
            ratio["fraction"] = of.fraction
    return msgspec.json.encode(plain).decode() + "\n"


def heading(report: Report) -> str:
    size = report.weight_bytes / 1e9
    return (
        f"mini-infer {report.version}, torch {report.torch}, {report.threads} threads, {report.machine}\n"
        f"{report.model}: {size:.2f} GB of weights in {report.dtype}; up to {report.max_batch_tokens} tokens a step, "
        f"{report.max_chunk} of one prompt\n"
    )


def table(figures: Sequence[Figure]) -> str:
    """One line for each figure; under it, what it is held against."""
    width = max((len(figure.name) for figure in figures), default=0)
    lines = []
    for figure in figures:
        lines.append(f"{figure.name:<{width}}  {_number(figure.value):>8} {figure.unit}")
        lines += [f"{'':<{width}}  {_sentence(ratio)}" for ratio in figure.ratios]
    return "".join(line + "\n" for line in lines)


def _sentence(ratio: Ratio) -> str:
    limit = _number(ratio.limit)
    if abs(ratio.before - ratio.after) > 0.02 * ratio.limit:
        limit = f"{_number(ratio.before)} … {_number(ratio.after)}"
    sides = f"    {_number(ratio.ours)} {ratio.unit}, {ratio.what} {limit}"
    if ratio.kind == "time":
        return f"{sides}: {ratio.ours / ratio.limit:.2f} times, {max(0.0, 1 - ratio.fraction):.0%} outside"
    return f"{sides}: " + (f"{ratio.fraction:.1f} times" if ratio.fraction > 2 else f"{ratio.fraction:.1%}")


def _number(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.3g}"
