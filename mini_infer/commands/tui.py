"""`mini-infer tui`: the playground."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from mini_infer.commands.terminal import note
from mini_infer.config import EngineConfig, option_name
from mini_infer.errors import UserError

TUI_OPTIONS = "record replay speed ascii theme".split()


FILE = click.Path(path_type=Path)


def tui_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of the playground."""
    options = (
        click.option("--record", type=FILE, metavar="FILE", help="Record every step of the engine to FILE."),
        click.option("--replay", type=FILE, metavar="FILE", help="Show a recording in place of an engine."),
        click.option(
            "--speed", type=float, metavar="N", help="Steps a second; 0 is full speed.  [default: 0; in a replay 10]"
        ),
        click.option("--ascii", is_flag=True, help="Draw with ASCII alone."),
        click.option(
            "--theme", default="mini-dark", show_default=True, metavar="NAME", help="mini-light, or one of Textual's."
        ),
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


def run(values: dict[str, Any], engine: EngineConfig) -> int:
    """Shows the playground until it is left, and returns the exit code. `values` are those of `tui_options`.

    Raises UserError for what a user can mend.
    """
    record, replay, speed = values["record"], values["replay"], values["speed"]
    if speed is not None and not 0 <= speed < float("inf"):
        raise UserError(f"--speed must be 0 (full speed) or more steps a second, not {speed:g}")
    from tui.run import run as show

    looks = {"ascii": values["ascii"], "theme": values["theme"]}
    if replay is not None:
        _refuse_engine_options(record)
        from tui.client.replay import ReplayClient

        return show(ReplayClient(replay, 10.0 if speed is None else speed or None), **looks)
    from tui.client.in_process import connect

    client = connect(engine, record, speed)
    code = show(client, **looks)
    if client.record_error is not None:  # the screen that told so is gone
        note(f"mini-infer: {client.record_error}")
        code = code or 1
    return code


def _refuse_engine_options(record: Path | None) -> None:
    """Raises UserError for options that a replay has no use for: silence would be a lie."""
    context = click.get_current_context(silent=True)
    typed = [] if context is None else [
        option_name(knob.name)
        for knob in fields(EngineConfig)
        if context.get_parameter_source(knob.name) is ParameterSource.COMMANDLINE
    ]  # fmt: skip
    for option in ["--record"] * (record is not None) + typed:
        raise UserError(f"{option} has no effect on --replay, which runs no engine: leave one of them out")
