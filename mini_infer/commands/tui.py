"""`mini-infer tui`: the playground."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from mini_infer.config import EngineConfig
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
    if replay is not None:
        from tui.client.replay import ReplayClient

        client: Any = ReplayClient(replay, 10.0 if speed is None else speed or None)
    else:
        from tui.client.in_process import connect

        client = connect(engine, record, speed)
    from tui.run import run as show

    return show(client, ascii=values["ascii"], theme=values["theme"])
