"""`mini-infer load`: measures a server. Only parses here; what works is imported when it is called."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from mini_infer.commands.options import debug_option, engine_options
from mini_infer.commands.terminal import note, write
from mini_infer.config import EngineConfig, option_name
from mini_infer.errors import UserError

if TYPE_CHECKING:
    from mini_infer.load.campaign import Watcher
    from mini_infer.load.client import Clock
    from mini_infer.load.report import Report

_KINDS = ("chat", "random", "shared-prefix", "multi-turn", "file")
_OUTPUTS = ("json", "csv", "markdown", "html")


def _option(name: str, help: str, **more: Any) -> Callable[[Any], Any]:
    return click.option(name, help=help, show_default="default" in more, **more)


_COUNT: dict[str, Any] = {"type": click.IntRange(1), "metavar": "N"}
_SECONDS: dict[str, Any] = {"type": click.FloatRange(0, min_open=True), "metavar": "S"}
_FILE: dict[str, Any] = {"type": click.Path(path_type=Path), "metavar": "FILE"}

OPTIONS = (
    _option("--url", "The server, with or without /v1.  [default: one started here, on the engine options]"),
    click.option(
        "--api-key", envvar="MINI_INFER_API_KEY", metavar="KEY", help="Its key.  [default: $MINI_INFER_API_KEY]"
    ),
    _option("--concurrency", "Streams at once, level by level.  [default: 1,2,4,8]", metavar="N,N,…"),
    _option("--rate", "Requests a second, level by level, sent on time whatever the server does.", metavar="X,X,…"),
    _option("--burstiness", "Of --rate: 0 an even beat, 1 Poisson, above 1 bursts.", type=float, default=1.0),
    _option("--replay", "Send at the times in FILE: numbers, or objects with a timestamp, in seconds.", **_FILE),
    _option("--replay-speed", "Replay so many times as fast.", type=float, default=1.0, metavar="X"),
    _option("--max-concurrency", "Most requests at once under --rate or --replay.", **_COUNT),
    _option("--requests", "Requests of each level.  [default: 8 per stream, at least 16]", **_COUNT),
    _option("--duration", "Seconds of each level, in place of --requests.", **_SECONDS),
    _option("--max-time", "Cap on the whole run; what was measured until then is reported.", **_SECONDS),
    _option("--warmup", "Requests before each level that do not count.", type=click.IntRange(0), metavar="N"),
    _option("--repeats", "Run all levels so many times.", default=1, **_COUNT),
    _option("--workload", "What is asked.", type=click.Choice(_KINDS), default="chat"),
    _option("--file", "Prompts for --workload file: JSON lines, or ShareGPT's layout.", **_FILE),
    _option("--input-tokens", "Length of random prompts.", default=128, **_COUNT),
    _option("--output-tokens", "Longest answer; with random prompts its exact length.", default=64, **_COUNT),
    _option("--prefix-tokens", "Length of shared prefixes.", default=512, **_COUNT),
    _option("--prefixes", "How many shared prefixes.", default=1, **_COUNT),
    _option("--turns", "Questions of a conversation.", default=3, **_COUNT),
    _option("--temperature", "Of the requests; 0 is greedy.", type=click.FloatRange(0), default=0.0, metavar="X"),
    _option("--ignore-eos/--no-ignore-eos", "Answers of full length.  [default: with random prompts]", default=None),
    _option("--seed", "Makes the prompts repeatable.  [default: a new one, printed]", type=int, metavar="N"),
    _option("--slo", "Objectives in ms, for instance ttft=500,tpot=50.", metavar="NAME=MS,…"),
    _option("--find-max", "Search the highest level that keeps --slo.", is_flag=True),
    _option(
        "--attainment", "Share of answers that must keep it.", type=click.FloatRange(0, 1), default=0.9, metavar="X"
    ),
    _option("--check", "Ask each prompt again, alone and at every level, and compare the texts.", is_flag=True),
    _option(
        "--cancel-rate", "Share of requests given up midway.", type=click.FloatRange(0, 1), default=0.0, metavar="X"
    ),
    _option("--timeout", "Longest silence before a request counts as failed.", default=120.0, **_SECONDS),
    _option("--power", "Where energy is read.", type=click.Choice(("auto", "nvml", "rapl", "none")), default="auto"),
    *(_option(f"--{kind}", f"Write the report as {kind.upper()}; - is standard output.", **_FILE) for kind in _OUTPUTS),
    _option("--plain", "Lines in place of the live dashboard.", is_flag=True),
)


def load_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(OPTIONS):
        command = option(command)
    return command


@click.group(invoke_without_command=True)
@load_options
@engine_options
@debug_option
@click.pass_context
def load(ctx: click.Context, /, **values: Any) -> int | None:
    """Measure a server under load, this one or any that speaks OpenAI.

    Without --url, a server is started on the engine options given, and ended. With it, --model is the name to ask for
    (by default the first listed). `mini-infer load compare A.json B.json` tells whether two runs differ.
    """
    if ctx.invoked_subcommand is not None:
        return None
    knobs = {knob.name: values.pop(knob.name) for knob in fields(EngineConfig) if knob.name in values}
    given = {name for name in knobs if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT}
    return run(values, knobs, given)


@load.command()
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option(
    "--threshold",
    type=click.FloatRange(0),
    default=5.0,
    show_default=True,
    metavar="PERCENT",
    help="Smaller differences are none.",
)
@debug_option
def compare(a: Path, b: Path, threshold: float) -> int:
    """Whether B is worse than A, both reports written by --json.

    Exit code 0: nothing is worse; 1: something is.
    """
    from mini_infer.load.compare import compare_reports, to_text
    from mini_infer.load.report import read_json

    found = compare_reports(read_json(a), read_json(b), threshold / 100)
    write(to_text(found))
    return 1 if any(verdict.verdict == "worse" for verdict in found) else 0


def run(values: dict[str, Any], knobs: dict[str, Any], given: set[str]) -> int:
    """The exit code. `values` are those of `OPTIONS`, `knobs` the engine's, of which the user gave `given`.

    Raises UserError.
    """
    from mini_infer.commands.load_plan import check_url, plan, settings, words_of, workload
    from mini_infer.load.session import INTERRUPTED, Session
    from mini_infer.load.session import run as measure
    from mini_infer.load.words import faults

    if values["url"] is None and knobs.get("device") == "cpu" and values["power"] == "auto":
        values["power"] = "rapl"  # a GPU that the server does not use has nothing to tell
    if values["seed"] is None:
        values["seed"] = random.SystemRandom().randrange(10**6)
    outputs = {kind: values.pop(kind) for kind in _OUTPUTS}
    if list(map(str, outputs.values())).count("-") > 1:
        raise UserError("only one report can go to standard output: give the others a FILE")
    for path in outputs.values():
        if path is not None and str(path) != "-" and not path.parent.is_dir():
            raise UserError(f"there is no folder {path.parent} to write {path.name} to")
    if values["url"] is not None:
        check_url(values["url"])
        if others := sorted(given - {"model"}):
            raise UserError(f"{option_name(others[0])} is for a server started here: leave it out, or leave out --url")
    own = [word for name in knobs if name in given for word in words_of(name, knobs[name])]
    EngineConfig(**{name: value for name, value in knobs.items() if value is not None or name in given})
    session = Session(
        plan=plan(values),
        workload=workload(values),
        file=values["file"],
        url=values["url"],
        model=knobs["model"] if values["url"] is not None and "model" in given else None,
        own=own,
        api_key=values["api_key"],
        timeout_s=values["timeout"],
        max_time_s=values["max_time"],
        power=values["power"],
        settings=settings(values, knobs, given),
    )
    note(f"mini-infer: seed {values['seed']}")
    try:
        report = asyncio.run(measure(session, lambda clock, title: _watcher(clock, title, plain=values["plain"])))
    except asyncio.CancelledError:
        return 130
    _write_all(report, outputs)
    if report.stopped == INTERRUPTED:
        return 130
    said = faults(report, cancelled=values["cancel_rate"] > 0)
    for line in said:
        note(f"mini-infer: {line}")
    return 1 if said else 0


def _watcher(clock: Clock, title: str, *, plain: bool) -> AbstractContextManager[Watcher]:
    """The dashboard where standard error is a terminal, else lines."""
    from mini_infer.load.live import PlainLines

    if plain or sys.stderr is None or not sys.stderr.isatty():
        return nullcontext(PlainLines(clock, lambda line: note(f"mini-infer: {line}")))
    from rich.console import Console

    from mini_infer.load.dashboard import Dashboard

    return Dashboard(clock, title, Console(stderr=True))


def _write_all(report: Report, outputs: dict[str, Path | None]) -> None:
    """Every report that was asked for, and the Markdown on standard output unless that is taken."""
    from mini_infer.load.html import to_html
    from mini_infer.load.markdown import to_markdown
    from mini_infer.load.report import to_csv, to_json

    writers = {"json": to_json, "csv": to_csv, "markdown": to_markdown, "html": to_html}
    if not any(str(path) == "-" for path in outputs.values()):
        write(to_markdown(report))
    for kind, path in outputs.items():
        if path is None:
            continue
        text = writers[kind](report)
        if str(path) == "-":
            write(text)
            continue
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise UserError(f"cannot write {path} ({error.strerror})") from None
