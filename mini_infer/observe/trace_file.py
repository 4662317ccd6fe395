"""Trace files: a header line, a snapshot line, then one report per line, each as JSON in UTF-8.

A recording that was interrupted loses at most its last line.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Literal

from msgspec import DecodeError, Struct
from msgspec.json import Decoder

from mini_infer.errors import UserError
from mini_infer.observe.events import SCHEMA, StepReport, decode_report, encode
from mini_infer.observe.state import EngineState, decode_state
from mini_infer.version import __version__

FORMAT = "mini-infer"
"""What `format` says in the header of every trace."""

_LONGEST_HEADER = 1 << 20  # bytes; some other file may be one endless line


Knob = str | int | float | bool | None
Own = Callable[[bytes], bool]


class TraceHeader(Struct, frozen=True):
    """`versions` names packages and what they were; `config` holds the engine's knobs. The same in every schema."""

    format: str = ""
    schema: int = 0
    versions: dict[str, str] = {}
    config: dict[str, Knob] = {}


_decode_header = Decoder(TraceHeader).decode


def check_target(path: str | os.PathLike[str], *, option: str = "--record", is_ours: Own | None = None) -> None:
    """Raises UserError where `path` cannot become a file of ours: a folder, no permission, somebody else's file.

    What is there already may be replaced if it is empty or `is_ours` says so of its first bytes (a trace, by default).
    Nothing is opened for writing; what is no file of a disk (/dev/null, a pipe) is taken as it is.
    """
    path = Path(path)
    try:
        fault = _fault(path, is_ours or is_trace)
    except (OSError, ValueError) as error:
        fault = f" cannot be written: {_why(error)}"
    if fault:
        raise UserError(f"{option} {path}{fault}")


def _fault(path: Path, is_ours: Own) -> str:
    """What `check_target` has against a path, empty where that is nothing."""
    if str(path) == "-":
        return ": give the name of a file (./- for one that is called so)"
    if path.is_dir():
        return " cannot be written: it is a folder, give a file"
    exists = path.exists()
    if not exists and not path.parent.is_dir():
        return f" cannot be written: there is no folder {path.parent}"
    if path.is_file() and path.stat().st_size > 0:
        with open(path, "rb") as file:
            if not is_ours(file.read(_LONGEST_HEADER)):
                return " is another file, which would be lost: give a new name"
    may = os.access(path, os.W_OK) if exists else os.access(path.parent, os.W_OK | os.X_OK)
    return "" if may else " cannot be written: permission denied"


def is_trace(start: bytes) -> bool:
    """Whether a file that starts so is a recording, of whatever version."""
    return _header(start.partition(b"\n")[0]).format == FORMAT


def _header(line: bytes) -> TraceHeader:
    """What the first line says; an empty header where it is none."""
    try:
        return _decode_header(line)
    except DecodeError:
        return TraceHeader()


class FileSink:
    """Records to `path`, in place of an older trace. Raises UserError as `check_target` does, and where it cannot open.

    Every line goes to the system at once. Where the disk takes no more, `start` and `emit` raise UserError, which stays
    as `error`: an engine detaches a sink that raises, and goes on.
    """

    def __init__(
        self, path: str | os.PathLike[str], config: Mapping[str, Knob], versions: Mapping[str, str] | None = None
    ) -> None:
        known = {FORMAT: __version__, "python": platform.python_version(), **(versions or {})}
        self._header = TraceHeader(FORMAT, SCHEMA, known, dict(config))
        self._path = Path(path)
        self.error: UserError | None = None
        check_target(self._path)
        self._file = _open(self._path, "wb")

    def start(self, snapshot: EngineState) -> None:
        self._write(encode(self._header) + b"\n" + encode(snapshot))

    def emit(self, report: StepReport) -> None:
        self._write(encode(report))

    def close(self) -> None:
        self._file.close()

    def _write(self, line: bytes) -> None:
        rest = line + b"\n"
        try:
            while rest:
                rest = rest[self._file.write(rest) :]  # a nearly full disk takes a part and then complains
        except OSError as error:
            self.error = UserError(f"the trace {self._path} ends early: {_why(error)}")
            raise self.error from error


@dataclass
class Trace:
    """A recording. `note` says so once `reports` has come to a last line that was cut short."""

    path: Path
    header: TraceHeader
    snapshot: EngineState
    note: str = ""

    def reports(self) -> Iterator[StepReport]:
        """Reads the reports one by one, from the first each time. Raises UserError for a line that is not the next."""
        seq = self.snapshot.seq
        with _open(self.path, "rb") as raw, BufferedReader(raw) as file:
            for number, line in enumerate(file, start=1):
                if number <= 2:
                    continue
                try:
                    report = decode_report(line)
                except DecodeError as error:
                    if line.endswith(b"\n"):
                        raise _corrupt(self.path, number, f"not a report ({error})") from error
                    self.note = f"{self.path}, line {number}: cut short and left out, the recording was interrupted"
                    return
                if report.seq != seq + 1:
                    raise _corrupt(self.path, number, f"report {report.seq} cannot follow report {seq}")
                seq = report.seq
                yield report


def read_trace(path: str | os.PathLike[str]) -> Trace:
    """Opens a trace; its reports are read as they are asked for. Raises UserError for anything that is not one."""
    path = Path(path)
    with _open(path, "rb") as raw, BufferedReader(raw) as file:
        line = file.readline(_LONGEST_HEADER)
        header = _header(line)
        if header.format != FORMAT:
            what = "not a trace: its first line is not a trace's header" if line else "empty: nothing was recorded"
            raise UserError(f"{path} is {what}; --record FILE makes a trace")
        if header.schema != SCHEMA:
            by = header.versions.get(FORMAT, "of another version")
            raise UserError(
                f"{path} is a trace of {FORMAT} {by} with schema {header.schema}, this version reads schema {SCHEMA}: "
                "record it again, or read it with that version"
            )
        line = file.readline()
        try:
            return Trace(path, header, decode_state(line))
        except DecodeError as error:
            if line.endswith(b"\n"):
                raise _corrupt(path, 2, f"not a snapshot ({error})") from error
            raise UserError(f"{path} holds no step: the recording ended before the first; record it again") from error


def _open(path: Path, mode: Literal["rb", "wb"]) -> FileIO:
    try:
        return open(path, mode, buffering=0)
    except (OSError, ValueError) as error:
        verb = "read" if mode == "rb" else "written"
        raise UserError(f"the trace {path} cannot be {verb}: {_why(error)}") from error


def _why(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)


def _corrupt(path: Path, line: int, why: str) -> UserError:
    return UserError(f"{path}, line {line}: corrupt, {why}; record it again, or delete the file from this line on")
