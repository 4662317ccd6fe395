"""What a person is told once the screen is gone, and the exit code, over a real terminal."""

from __future__ import annotations

import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from fcntl import ioctl
from pathlib import Path

import pytest

from tests.support.command import runner


def play(*args: object, keys: tuple[tuple[bytes, bytes], ...]) -> tuple[int, str]:
    """Runs the playground on a terminal of its own; of `keys`, each is typed once its text was seen."""
    master, slave = pty.openpty()
    ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 110, 0, 0))
    command = [sys.executable, "-m", "mini_infer", "tui", *map(str, args)]
    env = {**os.environ, "TERM": "xterm-256color"}
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=env, start_new_session=True)
    os.close(slave)
    seen, waiting, deadline = b"", list(keys), time.monotonic() + 120
    try:
        while time.monotonic() < deadline:
            if select.select([master], [], [], 0.2)[0]:
                try:
                    seen += os.read(master, 65536)
                except OSError:  # the other end is closed
                    break
            if waiting and waiting[0][0] in seen:
                os.write(master, waiting.pop(0)[1])
            if process.poll() is not None and not select.select([master], [], [], 0)[0]:
                break
        return process.wait(60), seen.rpartition(b"\x1b[?1049l")[2].decode()
    finally:
        process.kill()
        os.close(master)


def test_a_model_that_is_not_there_is_said_again_after_the_screen(tmp_path: Path) -> None:
    code, said = play("--model", tmp_path / "nowhere", keys=((b"no such folder", b"\x11"),))
    assert code == 2
    assert "mini-infer: " in said and "nowhere: no such folder" in said and "Traceback" not in said


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_recording_that_ended_early_is_said_again_after_the_screen() -> None:
    code, said = play("--record", "/dev/full", keys=((b"step 0", b"hi\r"), (b"finished", b"\x11")))
    assert code == 1
    assert "mini-infer: the trace /dev/full ends early: No space left on device" in said


def test_a_paste_with_escape_sequences_is_not_sent(tmp_path: Path) -> None:
    paste = b"\x1b[200~a\x1b[31mRED\x1b[0m b\rline2\rline3 WWW\x1b[201~"
    trace = tmp_path / "t.jsonl"
    code, _ = play("--record", trace, keys=((b"step 0", paste), (b"line3", b"\x11")))
    assert code == 0
    assert '"arrived"' not in trace.read_text()


@pytest.mark.parametrize("given", [("--record", "x"), ("--model", "m"), ("--draft", "none"), ("--kv-blocks", "9")])
def test_a_replay_refuses_what_has_no_effect_on_it(
    tmp_path: Path, given: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = runner(capsys)("tui", "--replay", tmp_path / "t.jsonl", *given)
    assert code == 2
    assert err.startswith(f"mini-infer: {given[0]} has no effect on --replay") and err.count("\n") == 1
