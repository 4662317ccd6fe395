"""Standard output that takes nothing, and files that are somebody else's: one line, exit code 2, nothing lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mini_infer.commands import terminal
from tests.support.command import Run, refused

FULL = Path("/dev/full")
SHOWING = {
    "an answer": ["generate", "hi", "--temperature", "0", "--max-tokens", "4"],
    "an object": ["generate", "hi", "--temperature", "0", "--max-tokens", "4", "--json"],
    "info": ["info"],
    "info as an object": ["info", "--json"],
    "version": ["--version"],
    "help": ["--help"],
    "help of a command": ["generate", "--help"],
    "a bare command": [],
    "a bare group": ["trace"],
}


def with_model(args: list[str], tiny: Path) -> list[str]:
    return [*args, "--model", str(tiny), "--device", "cpu"] if args[:1] in (["generate"], ["info"]) else args


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("args", SHOWING.values(), ids=SHOWING.keys())
def test_a_full_output_is_one_line(run: Run, tiny: Path, monkeypatch: pytest.MonkeyPatch, args: list[str]) -> None:
    with FULL.open("w") as full:
        monkeypatch.setattr("sys.stdout", full)
        code, _, err = run(*with_model(args, tiny))
    assert code == 2 and err.count("\n") == 1
    assert err == "mini-infer: standard output cannot be written: No space left on device\n"


@pytest.mark.parametrize("args", SHOWING.values(), ids=SHOWING.keys())
def test_a_closed_output_is_one_line(run: Run, tiny: Path, monkeypatch: pytest.MonkeyPatch, args: list[str]) -> None:
    monkeypatch.setattr("sys.stdout", None)  # what Python makes of >&-
    code, _, err = run(*with_model(args, tiny))
    assert (code, err) == (2, f"mini-infer: {terminal.CLOSED}\n")


def test_an_export_to_a_closed_output_is_one_line(
    ask: Run, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask("--record", tmp_path / "trace", "hello")
    monkeypatch.setattr("sys.stdout", None)
    assert run("trace", "export", tmp_path / "trace")[::2] == (2, f"mini-infer: {terminal.CLOSED}\n")


@pytest.mark.parametrize("redirection", [">&-", ">/dev/full"])
def test_the_shell_closes_or_fills_the_output(redirection: str) -> None:
    if "full" in redirection and not FULL.exists():
        pytest.skip("this system has no /dev/full")
    command = ["sh", "-c", f'exec "$@" {redirection}', "sh", sys.executable, "-m", "mini_infer", "--version"]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("mini-infer: standard output ") and done.stderr.count("\n") == 1


# --- files that are somebody else's -------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b'{"hidden_size": 64}', b"my diary\n", b"\x00\xff" * 50, b'{"traceEvents":[]}'])
def test_neither_a_recording_nor_an_export_replaces_another_file(
    ask: Run, run: Run, tmp_path: Path, content: bytes
) -> None:
    other, trace = tmp_path / "config.json", tmp_path / "trace"
    other.write_bytes(content)
    assert f"--record {other} is another file, which would be lost" in refused(ask("--record", other, "hello"))
    assert ask("--record", trace, "hello")[0] == 0
    said = refused(run("trace", "export", trace, "--output", other))
    assert f"--output {other} is another file, which would be lost" in said
    assert other.read_bytes() == content
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "trace"]  # nothing is left half done


def test_what_is_ours_is_replaced(ask: Run, run: Run, tmp_path: Path) -> None:
    trace, out = tmp_path / "trace", tmp_path / "trace.json"
    for _ in range(2):
        assert ask("--record", trace, "hello")[0] == 0
        assert run("trace", "export", trace, "--output", out) == (0, "", "")
    assert "would be lost" in refused(ask("--record", out, "hello"))  # an export is no recording
    assert "is the trace itself" in refused(run("trace", "export", trace, "--output", trace))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("-", "--record -: give the name of a file"),
        ("", "the name of a file is empty"),
        (".", "it is a folder"),
        ("no/such/place", "there is no folder no/such"),
    ],
)
def test_a_recording_needs_the_name_of_a_file(
    ask: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in refused(ask("--record", name, "hello"))
    assert not [*tmp_path.iterdir()]


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
def test_M8_a_recording_that_the_disk_cuts_short_is_named_and_the_answer_stands(
    ask: Run, caplog: pytest.LogCaptureFixture
) -> None:
    code, out, _ = ask("--record", FULL, "hello")
    assert (code, out) == (1, ask("hello")[1])
    [warning] = [record.getMessage() for record in caplog.records]
    assert "the trace /dev/full ends early: No space left on device" in warning


# --- how far things are -------------------------------------------------------------------------------------------


def test_a_log_is_told_once_of_a_long_wait(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with terminal.Waiting(lambda: "reading the prompt: 1 of 2 tokens", plain_after_s=0.0) as waiting:
        waiting._thread.join(60)
    assert capsys.readouterr().err == "mini-infer: reading the prompt: 1 of 2 tokens\n"
