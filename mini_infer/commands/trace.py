"""`mini-infer trace`: recorded traces in other forms."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from mini_infer.commands.terminal import check_output, note
from mini_infer.errors import UserError
from mini_infer.observe import perfetto
from mini_infer.observe.trace_file import Trace, check_target, read_trace

STDOUT = Path("-")


def export(file: Path, output: Path) -> None:
    """Writes the trace in `file` as Perfetto JSON to `output`, or to standard output where that is a dash.

    An earlier export is replaced, once the new one is whole; no other file is.
    """
    if file == STDOUT:
        raise UserError("a trace is read from a file, more than once: give its name in place of -")
    if output == STDOUT:
        check_output()
    trace = read_trace(file)  # before the output is touched: what was there is kept if this is no trace
    if output == STDOUT:
        perfetto.write(trace, sys.stdout.buffer)
    else:
        if output.exists() and output.samefile(file):
            raise UserError(f"--output {output} is the trace itself: give another file")
        check_target(output, option="--output", is_ours=perfetto.is_export)
        _write(trace, output)
    if trace.note:
        note(f"mini-infer: {trace.note}")


def _write(trace: Trace, output: Path) -> None:
    """To a file beside `output`, which then takes its place; straight to what is no file of a disk."""
    try:
        if output.exists() and not output.is_file():
            with output.open("wb") as out:
                perfetto.write(trace, out)
            return
        place = output.resolve()  # a link stays one
        handle, name = tempfile.mkstemp(dir=place.parent, prefix=f".{place.name}.")
        try:
            with os.fdopen(handle, "wb") as out:
                perfetto.write(trace, out)
            os.chmod(name, place.stat().st_mode if place.exists() else 0o666 & ~_umask())
            os.replace(name, place)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise UserError(f"--output {output} cannot be written: {error.strerror}") from error


def _umask() -> int:
    os.umask(mask := os.umask(0o77))
    return mask
