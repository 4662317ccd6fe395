"""The `mini-infer` command: parses, calls, prints. What is heavy is imported inside each command.

Exit codes: 0 done; 1 a fault of ours, or an answer that ended in an error; 2 something the user can mend;
130 interrupted.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import click
from click.exceptions import Exit

from mini_infer.commands.bench import bench
from mini_infer.commands.interrupt import INTERRUPTED, on_interrupt
from mini_infer.commands.load import load
from mini_infer.commands.options import debug_option, engine_options, sampling_options, sampling_values
from mini_infer.commands.serve import server_options
from mini_infer.commands.terminal import CLOSED, note, write
from mini_infer.commands.tui import tui_options
from mini_infer.config import EngineConfig
from mini_infer.errors import UserError, is_utf8
from mini_infer.version import __version__


class _File(click.Path):
    """The name of a file; not empty, which would be the folder one is in."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not str(value):
            self.fail("the name of a file is empty", param, ctx)
        return super().convert(value, param, ctx)


_FILE = _File(path_type=Path)
_OUTPUT_ERRORS = {errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF}
_HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(invoke_without_command=True, context_settings=_HELP)
@click.version_option(__version__, prog_name="mini-infer", message="%(prog)s %(version)s")
@debug_option
@click.pass_context
def cli(ctx: click.Context) -> None:
    """A small, exact LLM inference engine in plain PyTorch."""
    if ctx.invoked_subcommand is None:
        write(ctx.get_help() + "\n")


@cli.command()
@click.argument("prompt")
@click.option("--raw", is_flag=True, help="Encode the prompt as it stands, without the chat template.")
@click.option("--json", "as_json", is_flag=True, help="Print one object on one line when the answer is complete.")
@click.option("--record", type=_FILE, metavar="FILE", help="Record every step of the engine to FILE.")
@sampling_options
@engine_options
@debug_option
def generate(prompt: str, raw: bool, as_json: bool, record: Path | None, **values: Any) -> int:
    """Answer PROMPT, streamed as it is made.

    PROMPT becomes one user message in the checkpoint's chat template. A lone - reads it from standard input; one
    that starts with a dash goes after --.
    """
    from mini_infer.commands import generate as command
    from mini_infer.sampling.params import SamplingParams

    params = SamplingParams(**sampling_values(values))
    text = command.read_prompt(prompt, raw=raw)
    return command.run(text, EngineConfig(**values), params, raw=raw, as_json=as_json, record=record)


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print one object on one line.")
@engine_options
@debug_option
def info(as_json: bool, **values: Any) -> None:
    """Show this machine, and a model's memory plan."""
    from mini_infer.commands import info as command

    command.run(EngineConfig(**values), as_json=as_json)


@cli.command()
@server_options
@engine_options
@debug_option
def serve(**values: Any) -> None:
    """Serve a model over HTTP to OpenAI clients."""
    from mini_infer.commands import serve as command

    command.run({name: values.pop(name) for name in command.SERVER_OPTIONS}, EngineConfig(**values))


@cli.command()
@tui_options
@engine_options
@debug_option
def tui(**values: Any) -> int:
    """Chat with a model, and watch the engine think."""
    from mini_infer.commands import tui as command

    return command.run({name: values.pop(name) for name in command.TUI_OPTIONS}, EngineConfig(**values))


@cli.group(invoke_without_command=True)
@debug_option
@click.pass_context
def trace(ctx: click.Context) -> None:
    """Work with traces recorded by --record."""
    if ctx.invoked_subcommand is None:
        write(ctx.get_help() + "\n")


@trace.command()
@click.argument("file", type=_FILE)
@click.option("--output", type=_FILE, default="-", metavar="OUT", help="Write to OUT.  [default: standard output]")
@debug_option
def export(file: Path, output: Path) -> None:
    """Turn the trace in FILE into JSON that Perfetto opens."""
    from mini_infer.commands import trace as command

    command.export(file, output)


cli.add_command(load)
cli.add_command(bench)


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Runs one command and exits with its code; errors become one line on standard error."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that cannot show a character shows a question mark
    given: dict[str, bool] = {}
    code = _run(list(sys.argv[1:] if args is None else args), given)
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        code = code or _lost(error)
    sys.exit(code)


def _run(args: list[str], given: dict[str, bool]) -> int:
    """The exit code of one command. `given` learns whether --debug was among the options."""
    try:
        if bad := next((arg for arg in args if not is_utf8(arg)), None):
            raise UserError(f"the argument {bad!r} is not UTF-8: convert it, for instance with iconv -t UTF-8")
        with on_interrupt(signal.default_int_handler), cli.make_context("mini-infer", args, obj=given) as context:
            result = cli.invoke(context)
        return result if isinstance(result, int) else 0
    except Exit as done:  # --help, --version
        return _complain(done, CLOSED, 2) if sys.stdout is None else done.exit_code
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except click.ClickException as error:
        return _complain(error, _usage(error), 2, debug=given.get("debug", False))
    except UserError as error:
        return _complain(error, str(error), 2, debug=given.get("debug", False))
    except Exception as error:
        if isinstance(error, OSError) and error.filename is None and error.errno in _OUTPUT_ERRORS:
            return _lost(error)
        said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return _complain(error, f"{said} (run with --debug for the trace)", 1, debug=given.get("debug", False))


def _usage(error: click.ClickException) -> str:
    """What was wrong with the options, and where to read about them."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    hint = f"see {context.command_path} --help" if context is not None else ""
    if isinstance(error, click.NoSuchOption):
        hint += "; an argument that starts with a dash goes after --"
    return error.format_message().rstrip(".") + (f" ({hint})" if hint else "")


def _complain(error: Exception, line: str, code: int, *, debug: bool = False) -> int:
    """Prints one line, after the trace where --debug asks for it, and returns the exit code."""
    if debug:
        note("".join(traceback.format_exception(error)).rstrip())
    note("mini-infer: " + " ".join(line.split()))
    return code


def _lost(error: OSError) -> int:
    """Standard output takes no more: its reader has gone (`| head`), its disk is full. The rest goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        return 0
    return _complain(error, f"standard output cannot be written: {error.strerror}", 2)
