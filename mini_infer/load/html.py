"""The report as one HTML file that needs nothing else: tables, plots, light and dark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from itertools import accumulate

from mini_infer.load.markdown import MAIN, MORE, check_lines, main_row, maximum_line, more_row, name, slo_words
from mini_infer.load.plot import Series, plot
from mini_infer.load.report import LevelReport, Report

STYLE = """
:root { --bg: #fff; --fg: #1d2433; --dim: #667085; --line: #dfe3ea; --bad: #b42318;
  --c1: #2563eb; --c2: #d97706; --c3: #059669; --c4: #9333ea; --c5: #dc2626; --c6: #0891b2; }
@media (prefers-color-scheme: dark) { :root { --bg: #12161f; --fg: #e6e9ef; --dim: #98a2b3; --line: #2b3342;
  --bad: #f97066; --c1: #6ea8fe; --c2: #f5b14c; --c3: #4ade80; --c4: #c084fc; --c5: #f87171; --c6: #67e8f9; } }
* { box-sizing: border-box }
body { background: var(--bg); color: var(--fg); font: 15px/1.5 system-ui, sans-serif; margin: 0 auto;
  max-width: 1000px; padding: 24px 16px }
h1 { font-size: 22px; margin: 0 0 4px } h2 { font-size: 16px; margin: 28px 0 8px }
p, li { margin: 2px 0 } .dim { color: var(--dim) } .bad { color: var(--bad); font-weight: 600 }
.wide { overflow-x: auto } table { border-collapse: collapse; font-variant-numeric: tabular-nums; width: 100% }
th, td { border-bottom: 1px solid var(--line); padding: 5px 10px; text-align: right; white-space: nowrap }
th { color: var(--dim); font-weight: 500 } th:first-child, td:first-child { text-align: left }
.plots { display: grid; gap: 16px; grid-template-columns: repeat(auto-fit, minmax(380px, 1fr)) }
svg { border: 1px solid var(--line); border-radius: 8px; width: 100% }
svg text { fill: var(--fg); font: 11px system-ui, sans-serif } svg .title { font-size: 13px; font-weight: 600 }
svg .tick { fill: var(--dim) } .grid { stroke: var(--line) } .line { fill: none; stroke-width: 2 }
"""
STYLE += "".join(f".line.c{i} {{ stroke: var(--c{i}) }} .dot.c{i} {{ fill: var(--c{i}) }}\n" for i in range(1, 7))


def to_html(report: Report) -> str:
    repeats = any(level.repeat for level in report.levels)
    title = f"Load on {report.model or 'an unnamed model'}"
    engine = " ".join(str(report.server[key]) for key in ("engine", "version") if report.server.get(key))
    said = [f"{key.replace('_', ' ')} {value}" for key, value in report.settings.items() if value is not None]
    where = f"{report.url}{f' ({engine})' if engine else ''} · {report.created} · mini-infer {report.version}"
    parts = [f"<h1>{escape(title)}</h1>", f'<p class="dim">{escape(where)}</p>']
    parts.append(f'<p class="dim">Seed {report.seed}; {escape(", ".join(said))}</p>')
    if report.stopped:
        parts.append(f'<p class="bad">Ended early: {escape(report.stopped)}</p>')
    if report.maximum is not None:
        parts.append(f"<p>{escape(maximum_line(report).replace('**', ''))}</p>")
    if report.levels:
        parts += [_table(MAIN, (main_row(level, repeats) for level in report.levels))]
        parts += [_table(MORE, (more_row(level, repeats) for level in report.levels))]
        parts.append("<h2>Plots</h2>" + '<div class="plots">' + "".join(plots(report)) + "</div>")
    else:
        parts.append("<p>Nothing was measured.</p>")
    if report.check is not None:
        parts.append("<h2>Check: the same texts under load</h2>" + _list(check_lines(report)))
    said = [f"level {name(level, repeats)}: {line}" for level in report.levels for line in level.warnings]
    if said or report.notes:
        parts.append("<h2>To know</h2>" + _list([*said, *report.notes]))
    parts.append("<h2>Definitions</h2>" + _list(DEFINITIONS))
    if report.slo:
        parts.append(f'<p class="dim">Objectives: {escape(slo_words(report))}</p>')
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
    body = "".join(parts)
    return f'<!doctype html>\n<html lang="en"><head>{head}<style>{STYLE}</style></head><body>{body}</body></html>\n'


DEFINITIONS = (
    "TTFT: from when the request was due (closed loops: sent) to its first text; a role is no text.",
    "TPOT: (last text − first text) / (tokens − 1). ITL: each gap between pieces of one answer.",
    "E2E: to the last byte. Only good answers enter latencies.",
    "tok/s: tokens of good answers, and of those cut off at the end, over the level's time; steady: the same while all "
    "streams ran.",
    "Goodput: answers per second that met every objective; SLO met: their share of all answers, failures included.",
    "n/a: not told by any device or server.",
)


def plots(report: Report) -> list[str]:
    """Throughput and latency over the levels, then the distributions within each."""
    levels = list(report.levels)
    sizes = [(level.concurrency or level.rate, level) for level in levels]
    known = sorted(((size, level) for size, level in sizes if size is not None), key=lambda pair: pair[0])
    x = "requests a second" if levels and levels[0].rate else "streams at once"

    def over(get: object) -> list[tuple[float, float]]:
        found = []
        for size, level in known:
            value = get(level)  # type: ignore[operator]
            if value is not None:
                found.append((float(size), value))
        return found

    made = []
    if len({size for size, _ in known}) > 1:
        made.append(plot("Output tokens a second", x, "tok/s", [
            Series("whole level", over(lambda v: v.figures.output_tok_s), 1),
            Series("steady", over(lambda v: v.figures.steady_tok_s), 3, dashed=True),
        ], log_x=True))  # fmt: skip
        made.append(plot("Time to first token", x, "ms", [
            Series("p50", over(lambda v: v.figures.ttft_ms.p50), 1),
            Series("p99", over(lambda v: v.figures.ttft_ms.p99), 2),
        ], log_x=True))  # fmt: skip
        made.append(plot("Time per output token", x, "ms", [
            Series("p50", over(lambda v: v.figures.tpot_ms.p50), 1),
            Series("p99", over(lambda v: v.figures.tpot_ms.p99), 2),
        ], log_x=True))  # fmt: skip
    shown = levels[-6:]
    made.append(plot("TTFT by time in the level", "seconds", "ms", [
        Series(level.level, [(s.scheduled_ms / 1e3, s.ttft_ms) for s in level.samples if s.ttft_ms is not None], i)
        for i, level in enumerate(shown, start=1)
    ]))  # fmt: skip
    made.append(plot("Share of requests by TTFT", "ms", "%", [
        Series(level.level, _cumulative([s.ttft_ms for s in level.samples if s.ttft_ms is not None]), i)
        for i, level in enumerate(shown, start=1)
    ]))  # fmt: skip
    made.append(plot("Share of gaps by length (ITL)", "ms", "%", [
        Series(level.level, _from_histogram(level), i) for i, level in enumerate(shown, start=1)
    ]))  # fmt: skip
    return made


def _cumulative(values: Sequence[float]) -> list[tuple[float, float]]:
    ordered = sorted(values)
    return [(value, 100 * (i + 1) / len(ordered)) for i, value in enumerate(ordered)]


def _from_histogram(level: LevelReport) -> list[tuple[float, float]]:
    edges, counts = level.figures.itl_histogram
    total = sum(counts)
    if not total:
        return []
    points = [(edge, 100 * below / total) for edge, below in zip(edges, accumulate(counts), strict=False)]
    begin = next((i for i, (_, y) in enumerate(points) if y > 0), 0)
    end = next((i for i, (_, y) in enumerate(points) if y >= 99.9), len(points) - 1)
    return points[max(0, begin - 1) : end + 1]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    def row(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    return (
        '<div class="wide"><table>' + row(head, "th") + "".join(row(cells, "td") for cells in rows) + "</table></div>"
    )


def _list(lines: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(line.replace('**', ''))}</li>" for line in lines) + "</ul>"
