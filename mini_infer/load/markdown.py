"""The report as Markdown: one table to quote, then what explains it. "n/a" is what no device or server told."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mini_infer.load.report import LevelReport, Report
from mini_infer.load.statistics import Spread
from mini_infer.load.words import causes

NA = "n/a"


def number(value: float | None, digits: int = 1, scale: float = 1.0) -> str:
    return NA if value is None else f"{value * scale:,.{digits}f}"


def share(value: float | None) -> str:
    return NA if value is None else f"{value:.1%}"


def pair(spread: Spread) -> str:
    return f"{number(spread.p50)} / {number(spread.p99)}"


def name(level: LevelReport, repeats: bool) -> str:
    return f"{level.level} #{level.repeat + 1}" if repeats else level.level


MAIN = ("c", "ok / fail", "tok/s", "TTFT p50 / p99 ms", "TPOT p50 ms", "VRAM MB", "W", "tok/J")


def main_row(level: LevelReport, repeats: bool) -> list[str]:
    f, e = level.figures, level.energy
    return [
        name(level, repeats),
        f"{f.ok} / {f.num_failed}",
        number(f.output_tok_s),
        pair(f.ttft_ms),
        number(f.tpot_ms.p50),
        number(e.memory_peak_bytes, 0, 1e-6),
        number(e.power_w),
        number(e.tokens_per_joule, 2),
    ]


MORE = (
    "c",
    "steady tok/s",
    "req/s",
    "ITL p50 / p99 ms",
    "E2E p50 / p99 ms",
    "goodput /s",
    "SLO met",
    "cached",
    "accepted",
)


def more_row(level: LevelReport, repeats: bool) -> list[str]:
    f = level.figures
    return [
        name(level, repeats),
        number(f.steady_tok_s),
        number(f.requests_s, 2),
        pair(f.itl_ms),
        pair(f.e2e_ms),
        number(f.goodput_s, 2),
        share(f.attainment),
        share(f.cached_share),
        share(f.acceptance),
    ]


def to_markdown(report: Report) -> str:
    repeats = any(level.repeat for level in report.levels)
    parts = [f"# Load on {report.model or 'an unnamed model'}", _about(report)]
    if report.levels:
        parts.append(table(MAIN, (main_row(level, repeats) for level in report.levels)))
        parts.append(table(MORE, (more_row(level, repeats) for level in report.levels)))
    else:
        parts.append("Nothing was measured.")
    parts += lists(report)
    return "\n\n".join(parts) + "\n"


def _about(report: Report) -> str:
    engine = " ".join(str(report.server[key]) for key in ("engine", "version") if report.server.get(key))
    where = f"{report.url}{f' ({engine})' if engine else ''}"
    said = [f"{key.replace('_', ' ')} {value}" for key, value in report.settings.items() if value is not None]
    lines = f"{where}, {report.created}, mini-infer {report.version}. Seed {report.seed}; {', '.join(said)}."
    return f"{lines} **Ended early: {report.stopped}.**" if report.stopped else lines


def lists(report: Report) -> list[str]:
    """Limits, checks, warnings and definitions, as paragraphs and lists."""
    parts = []
    if report.maximum is not None:
        parts.append(maximum_line(report))
    if report.check is not None:
        parts.append("\n".join(f"- {line}" for line in check_lines(report)))
    said = [f"- level {level.level}: {line}" for level in report.levels for line in level.warnings]
    said += [f"- {note}" for note in report.notes]
    if said:
        parts.append("\n".join(said))
    parts.append(DEFINITIONS)
    return parts


def maximum_line(report: Report) -> str:
    found = report.maximum
    assert found is not None
    limit = f"{found.attainment:.0%} of the answers within {slo_words(report)}"
    if found.kept is None:
        return (
            f"No level kept {limit}; {found.broken} broke it."
            if found.broken
            else f"No level was seen to keep {limit}."
        )
    end = f"{found.broken} broke it" if found.broken else "none broke it"
    return f"**Limit: {found.kept}** kept {limit}; {end}."


def slo_words(report: Report) -> str:
    slo = report.slo
    pairs = (("TTFT", slo.ttft), ("TPOT", slo.tpot), ("E2E", slo.e2e))
    return ", ".join(f"{what} {limit:g} ms" for what, limit in pairs if limit is not None) or "no objective"


def check_lines(report: Report) -> list[str]:
    check = report.check
    assert check is not None
    lines = []
    for level in check.levels:
        line = f"check at {level.level}: of {level.compared} answers {level.equal} equal those asked alone, "
        line += f"{level.ties} ties, **{level.wrong} wrong**"
        if level.failed:
            line += f"; failed: {causes(level.failed)}"
        if level.unreconciled:
            line += f"; {len(level.unreconciled)} with usage unlike the stream"
        lines.append(line)
    if not check.has_logprobs:
        lines.append("the server gave no log-probabilities: a tie cannot be told from a wrong answer")
    for d in check.divergences[:20]:
        gap = "unknown gap" if d.gap is None else f"gap {d.gap:.3f}"
        place = f"token {d.token}" if d.token is not None else f"character {d.character}"
        lines.append(f"{d.kind}: prompt {d.prompt} at {d.level}, {place}, {gap}: {d.alone!r} became {d.found!r}")
    return lines


DEFINITIONS = (
    "TTFT: to the first text, from when the request was due. TPOT: (last text − first text) / (tokens − 1). "
    "ITL: between pieces of a stream. E2E: to the last byte. tok/s: over the level; steady: while all streams ran. "
    "n/a: not told by any device or server."
)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---:"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
