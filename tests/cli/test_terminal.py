"""Terminals, pipes, closed and full outputs."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mini_infer.commands import terminal
from tests.support.checkpoints import write_checkpoint
from tests.support.command import Terminal


@pytest.mark.parametrize("args", [["--help"], ["info"], ["generate", "hi", "--max-tokens", "400", "--ignore-eos"]])
def test_a_closed_pipe_ends_quietly(tmp_path: Path, args: list[str]) -> None:
    if args[0] == "generate":
        args = [*args, "--model", str(write_checkpoint(tmp_path))]
    read, written = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "mini_infer", *args]
    done = subprocess.run(command, stdout=written, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(written)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_full_disk_is_one_line() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "mini_infer", "--help"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "No space left" in done.stderr


def test_control_characters_are_harmless_on_a_terminal_and_kept_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "a\x1b[2Jb\tc\nd\x9be\rf 日本"
    for screen, shown in ((Terminal(), "a\ufffd[2Jb\tc\nd\ufffde\ufffdf 日本"), (io.StringIO(), text)):
        monkeypatch.setattr("sys.stdout", screen)
        terminal.write(text)
        assert screen.getvalue() == shown


def test_waiting_is_told_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for screen in (Terminal(), io.StringIO()):
        monkeypatch.setattr("sys.stderr", screen)
        with terminal.Waiting("loading torch", after_s=0.0) as waiting:
            waiting._thread.join(0.2)
        shown = screen.getvalue()
        assert ("loading torch" in shown and shown.endswith("\r\x1b[K")) if screen.isatty() else shown == ""


def test_a_short_wait_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", screen := Terminal())
    with terminal.Waiting("loading torch", after_s=60.0):
        pass
    assert screen.getvalue() == ""
