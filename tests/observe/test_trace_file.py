"""What is recorded is read back; what is not a whole trace is refused by name and line, and what was cut is read."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from mini_infer.config import EngineConfig
from mini_infer.errors import UserError
from mini_infer.observe.events import SCHEMA
from mini_infer.observe.state import fold_all
from mini_infer.observe.trace_file import FileSink, TraceHeader, read_trace
from mini_infer.version import __version__
from tests.observe.story import STORY, empty

CONFIG = {"model": "tiny", "block_size": 16, "prefix_cache": True, "threads": None}


def record(path: Path, reports=STORY) -> Path:
    sink = FileSink(path, CONFIG, {"torch": "2.13"})
    sink.start(empty())
    for report in reports:
        sink.emit(report)
    sink.close()
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return record(tmp_path / "run.trace")


def refusal(path: Path) -> str:
    """The one line with which reading all of `path` is refused."""
    with pytest.raises(UserError) as error:
        list(read_trace(path).reports())
    message = str(error.value)
    assert "\n" not in message
    assert str(path) in message
    return message


# --- whole traces -----------------------------------------------------------------------------------------------------


def test_a_trace_reads_back_as_it_was_recorded(file):
    trace = read_trace(file)
    versions = {"mini-infer": __version__, "python": platform.python_version(), "torch": "2.13"}
    assert trace.header == TraceHeader("mini-infer", SCHEMA, versions, CONFIG)
    assert trace.snapshot == empty()
    assert tuple(trace.reports()) == STORY
    assert tuple(trace.reports()) == STORY  # as often as one likes
    assert trace.note == ""


def test_a_trace_is_one_json_value_per_line(file):
    lines = file.read_bytes().split(b"\n")
    assert len(lines) == 2 + len(STORY) + 1
    assert lines[-1] == b""
    assert all(line.startswith(b"{") and line.endswith(b"}") for line in lines[:-1])


def test_a_replay_gives_the_state(file):
    trace = read_trace(file)
    assert fold_all(trace.snapshot, trace.reports()) == fold_all(empty(), STORY)


def test_the_config_of_an_engine_fits_the_header(tmp_path):
    config = {name: getattr(EngineConfig(), name) for name in EngineConfig.__dataclass_fields__}
    sink = FileSink(tmp_path / "t", config)
    sink.start(empty())
    sink.close()
    assert read_trace(tmp_path / "t").header.config == config


def test_a_recording_may_begin_anywhere_and_replaces_what_was_there(tmp_path):
    path = record(tmp_path / "t")
    sink = FileSink(str(path), CONFIG)
    sink.start(fold_all(empty(), STORY[:5]))
    sink.emit(STORY[5])
    sink.close()
    trace = read_trace(str(path))
    assert trace.snapshot.seq == 5
    assert list(trace.reports()) == [STORY[5]]


def test_reports_are_read_as_they_are_asked_for(file):
    file.write_bytes(file.read_bytes() + b"nonsense\n")
    reports = read_trace(file).reports()
    assert [next(reports) for _ in STORY] == list(STORY)
    with pytest.raises(UserError, match="line 12"):
        next(reports)


def test_a_trace_that_is_being_recorded_can_be_read(tmp_path):
    sink = FileSink(tmp_path / "t", CONFIG)
    sink.start(empty())
    trace = read_trace(tmp_path / "t")
    for n, report in enumerate(STORY, start=1):
        sink.emit(report)
        assert len(list(trace.reports())) == n
    sink.close()


# --- cut short --------------------------------------------------------------------------------------------------------


def test_a_cut_last_line_is_left_out_with_a_note(file):
    whole = file.read_bytes()
    begin = whole.rindex(b"\n", 0, -1) + 1
    for end in range(begin + 1, len(whole) - 1):
        file.write_bytes(whole[:end])
        trace = read_trace(file)
        assert tuple(trace.reports()) == STORY[:-1]
        assert f"{file}, line {2 + len(STORY)}" in trace.note
        assert "cut short" in trace.note


def test_a_last_line_that_lacks_only_its_end_is_whole(file):
    file.write_bytes(file.read_bytes()[:-1])
    trace = read_trace(file)
    assert tuple(trace.reports()) == STORY
    assert trace.note == ""


def test_zeros_after_a_power_failure_are_a_cut_line(file):
    file.write_bytes(file.read_bytes() + bytes(512))
    trace = read_trace(file)
    assert tuple(trace.reports()) == STORY
    assert "cut short" in trace.note


def test_a_killed_process_loses_nothing_that_it_emitted(tmp_path):
    code = f"""
import os
import platform
from pathlib import Path
from tests.observe.story import STORY, empty
from mini_infer.observe.trace_file import FileSink
sink = FileSink({str(tmp_path / "t")!r}, {{}})
sink.start(empty())
for report in STORY[:4]:
    sink.emit(report)
os._exit(9)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=False)
    assert done.returncode == 9
    assert tuple(read_trace(tmp_path / "t").reports()) == STORY[:4]


# --- not a trace ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        b"nonsense",
        b"",
        b"{}",
        b'{"seq":3}',
        b"[]",
        b"null",
        b'{"seq":"3","step":3,"t":1}',
        b"\xff\xfe",
        b"\x00",
        b"[" * 9999,
    ],
)
def test_a_corrupt_line_is_named(file, line):
    lines = file.read_bytes().split(b"\n")
    lines[4] = line
    file.write_bytes(b"\n".join(lines))
    assert "line 5: corrupt" in refusal(file)


@pytest.mark.parametrize("number", [3, 5, 9])
def test_a_missing_line_is_noticed(file, number):
    lines = file.read_bytes().split(b"\n")
    del lines[number - 1]
    file.write_bytes(b"\n".join(lines))
    assert f"line {number}: corrupt, report {number - 1} cannot follow report {number - 3}" in refusal(file)


def test_a_damaged_snapshot_is_named(file):
    lines = file.read_bytes().split(b"\n")
    lines[1] = lines[1].replace(b'"seq":0', b'"seq":null')
    file.write_bytes(b"\n".join(lines))
    assert "line 2: corrupt" in refusal(file)


def test_another_schema_is_refused_with_the_version_that_wrote_it(file):
    data = file.read_bytes().replace(f'"schema":{SCHEMA}'.encode(), b'"schema":99', 1)
    file.write_bytes(data.replace(__version__.encode(), b"7.8.9", 1))
    message = refusal(file)
    assert "schema 99" in message
    assert f"reads schema {SCHEMA}" in message
    assert "mini-infer 7.8.9" in message


@pytest.mark.parametrize(
    "content",
    [
        b"hello\n", b"{}\n", b"[1]\n", b"null\n", b'{"format":"other","schema":1}\n', b'{"format":["mini-infer"]}\n',
        b"\x89PNG\r\n\x1a\n" + bytes(99), b"{" * 3_000_000, bytes(3_000_000), b'{"model":"x"}\n{"a":1}\n',
        b'{"format":"mini-infer","schema":1,"conf', b'{"format":"mini-infer","schema":1,"config":{"a":[1]}}\n',
    ],
    ids=range(12),
)  # fmt: skip
def test_another_file_is_not_a_trace(tmp_path, content):
    (tmp_path / "x").write_bytes(content)
    assert "not a trace" in refusal(tmp_path / "x")


def test_empty_missing_and_unreadable_files(tmp_path, file):
    (tmp_path / "empty").touch()
    assert "is empty" in refusal(tmp_path / "empty")
    assert "No such file" in refusal(tmp_path / "missing")
    assert "directory" in refusal(tmp_path)
    if os.geteuid() != 0:
        file.chmod(0)
        assert "Permission denied" in refusal(file)


def test_a_recording_that_ended_before_its_first_step(file):
    header, rest = file.read_bytes().split(b"\n", 1)
    for cut in (b"", b"{", rest[:40]):
        file.write_bytes(header + b"\n" + cut)
        assert "holds no step" in refusal(file)
    FileSink(file, CONFIG).close()
    assert "is empty" in refusal(file)


# --- where it cannot be written ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["missing/t", ".", "bad\0name"])
def test_a_place_that_cannot_be_written_is_refused_at_once(tmp_path, name):
    with pytest.raises(UserError, match="cannot be written") as error:
        FileSink(tmp_path / name, CONFIG)
    assert "\n" not in str(error.value)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_is_an_error_of_the_step_and_closing_is_quiet():
    sink = FileSink("/dev/full", CONFIG)
    with pytest.raises(UserError, match="the trace /dev/full ends early: No space left"):
        sink.start(empty())
    sink.close()
    sink.close()


def test_a_write_that_takes_only_a_part_is_continued(file, tmp_path):
    sink = FileSink(tmp_path / "t", CONFIG, {"torch": "2.13"})
    real = sink._file

    class Stingy:
        def write(self, data: bytes) -> int:
            return real.write(data[:7])

    sink._file = Stingy()
    sink.start(empty())
    for report in STORY:
        sink.emit(report)
    real.close()
    assert (tmp_path / "t").read_bytes() == file.read_bytes()


@pytest.mark.parametrize("content", [b'{"hidden_size":64}', b"text", b"\x00" * 99, b'{"format":"other"}\n'])
def test_a_file_that_is_no_trace_is_never_overwritten(tmp_path, content):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(UserError, match=r"config\.json is another file, which would be lost"):
        FileSink(tmp_path / "config.json", CONFIG)
    assert (tmp_path / "config.json").read_bytes() == content


def test_an_older_trace_or_an_empty_file_is_overwritten(tmp_path, file):
    (tmp_path / "empty").touch()
    older = tmp_path / "older"
    older.write_bytes(file.read_bytes().replace(f'"schema":{SCHEMA}'.encode(), b'"schema":0', 1))
    for path in (file, tmp_path / "empty", older):
        assert tuple(read_trace(record(path)).reports()) == STORY
