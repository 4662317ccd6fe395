"""What there is to say about a level or a run, in single lines: warnings, and why it failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mini_infer.load.figures import Figures
from mini_infer.load.scrape import ServerSide

if TYPE_CHECKING:
    from mini_infer.load.report import LevelReport, Report

BUSY_CLIENT = 0.8
"""Share of a core from which on the client itself may be what limits."""

LATE_MS = 20.0
"""Lateness of the client's event loop that would be seen in a figure."""


def causes(failed: dict[str, int]) -> str:
    return ", ".join(f"{count} × {cause}" for cause, count in failed.items())


def warnings(found: Figures, server: ServerSide, *, cut: bool) -> list[str]:
    """What a reader of the level's figures must know."""
    said = []
    if found.failed:
        said.append(f"{found.num_failed} requests failed ({causes(found.failed)}); they are in no latency")
    if found.unfinished:
        said.append(f"{found.unfinished} requests were unfinished when the level ended; they are in no latency")
    elif cut and not found.ok:
        said.append("the level ended before its first answer")
    if found.without_usage:
        said.append(f"{found.without_usage} answers came without usage: their pieces were counted in place of tokens")
    if server.agrees is False:
        told = f"the server counted {server.generated_tokens} tokens, its answers {found.output_tokens}"
        said.append(f"{told}: somebody else used it, or one of them is wrong")
    if server.leaked:
        held = ", ".join(f"{what} {value:g}" for what, value in server.leaked.items())
        said.append(f"the server was not idle afterwards ({held})")
    if found.client_cpu_share > BUSY_CLIENT:
        said.append(f"the client used {found.client_cpu_share:.0%} of a core and may itself be the limit")
    if (found.client_lag_p99_ms or 0) > LATE_MS:
        said.append(f"the client was late by {found.client_lag_p99_ms:.0f} ms (p99): the machine is overloaded")
    return said


def faults(report: Report, *, cancelled: bool) -> list[str]:
    """Why the run must end with exit code 1; empty where all is well. `cancelled`: a leak is then our finding."""
    said = []
    for level in report.levels:
        if level.all_failed:
            said.append(f"all {level.figures.num_failed} requests of level {level.level} failed: {_first(level)}")
        if cancelled and level.server.leaked:
            held = ", ".join(f"{what} {value:g}" for what, value in level.server.leaked.items())
            said.append(f"level {level.level} left the server with {held} after its cancellations")
    if (check := report.check) is not None:
        if check.wrong:
            where = next(d for d in check.divergences if d.kind == "wrong")
            place = f"token {where.token}" if where.token is not None else f"character {where.character}"
            told = f"the check found {check.wrong} wrong answers (first: prompt {where.prompt} at level {where.level}"
            said.append(f"{told}, {place})")
        elif report.stopped is None and check.not_compared:
            failed = causes({k: v for level in check.levels for k, v in level.failed.items()})
            said.append(f"the check could not compare {check.not_compared} answers ({failed or 'none came'})")
    return said


def _first(level: LevelReport) -> str:
    """The commonest cause, with the server's words."""
    cause = next(iter(level.figures.failed))
    detail = level.figures.details.get(cause, "")
    return f"{cause} ({detail})" if detail else cause
