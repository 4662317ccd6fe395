"""`mini-infer trace`: recorded traces in other forms."""

from __future__ import annotations

import sys
from pathlib import Path

from mini_infer.commands.terminal import note
from mini_infer.errors import UserError
from mini_infer.observe import perfetto
from mini_infer.observe.trace_file import read_trace


def export(file: Path, output: Path | None) -> None:
    """Writes the trace in `file` as Perfetto JSON to `output`, or to standard output."""
    trace = read_trace(file)  # before the output is opened: what was there is kept if this is no trace
    if output is None:
        if sys.stdout is not None:
            perfetto.write(trace, sys.stdout.buffer)
    else:
        if output.exists() and output.samefile(file):
            raise UserError(f"--output {output} is the trace itself: give another file")
        try:
            with output.open("wb") as out:
                perfetto.write(trace, out)
        except OSError as error:
            raise UserError(f"--output {output} cannot be written: {error.strerror}") from error
    if trace.note:
        note(f"mini-infer: {trace.note}")
