"""Ctrl+C at any time: a quiet end with exit code 130, and what was answered by then is kept."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from mini_infer.commands import generate as generate_command
from mini_infer.commands.interrupt import exit_at_once, on_interrupt
from mini_infer.engine import InferenceEngine
from tests.support.command import Run


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl+C during the fifth step."""
    step, count = InferenceEngine.step, 0

    def counted(self: InferenceEngine) -> Any:
        nonlocal count
        count += 1
        if count == 5:
            raise KeyboardInterrupt
        return step(self)

    monkeypatch.setattr(InferenceEngine, "step", counted)


def test_ctrl_c_keeps_the_partial_text(ask: Run, request: pytest.FixtureRequest) -> None:
    whole = ask("hello")[1].rstrip("\n")
    request.getfixturevalue("interrupted")
    code, out, err = ask("hello")
    assert (code, err) == (130, "") and out.endswith("\n")
    kept = out.rstrip("\n").rstrip("\N{REPLACEMENT CHARACTER}")
    assert kept and whole.startswith(kept) and len(kept) < len(whole)


@pytest.mark.usefixtures("interrupted")
def test_ctrl_c_completes_the_object_and_the_recording(ask: Run, run: Run, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    code, out, err = ask("--json", "--record", trace, "hello")
    answer = json.loads(out)
    assert (code, err, answer["finish_reason"], len(answer["token_ids"])) == (130, "", "abort", 4)
    assert answer["usage"]["prompt_tokens"] > 0 and answer["usage"]["completion_tokens"] == 4
    assert "abort" in trace.read_text().splitlines()[-1]
    assert run("trace", "export", trace)[0] == 0


def test_ctrl_c_before_the_model_is_there(ask: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(generate_command, "build_engine", interrupt)
    assert ask("hi") == (130, "", "")


# --- while modules are imported -----------------------------------------------------------------------------------

# Sends Ctrl+C to itself when it comes to the import of the module named first; the rest is the command.
CHILD = """
import os, signal, sys
at, ignored = sys.argv.pop(1), sys.argv.pop(1) == "ignored"
if ignored:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
class Sender:
    sent = False
    def find_spec(self, name, path=None, target=None):
        if name == at and not Sender.sent:
            Sender.sent = True
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Sender())
from mini_infer.__main__ import main
try:
    main()
finally:
    assert Sender.sent
"""


def command(at: str, how: str, *args: object) -> subprocess.CompletedProcess[str]:
    child = [sys.executable, "-c", CHILD, at, how, *map(str, args)]
    return subprocess.run(child, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.skipif(os.name != "posix", reason="a process cannot send itself Ctrl+C here")
@pytest.mark.parametrize("at", ["mini_infer.cli", "click", "torch", "numpy", "torch.nn", "mini_infer.llm"])
def test_ctrl_c_while_a_module_is_imported_ends_quietly(tiny: Path, at: str) -> None:
    done = command(at, "heard", "generate", "hi", "--model", tiny, "--max-tokens", 4, "--device", "cpu")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.skipif(os.name != "posix", reason="a process cannot send itself Ctrl+C here")
def test_ctrl_c_that_is_ignored_stays_so() -> None:
    done = command("click", "ignored", "--version")
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("mini-infer ")


def test_the_handler_before_comes_back_also_after_an_error() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(RuntimeError), on_interrupt(exit_at_once):
        assert signal.getsignal(signal.SIGINT) is exit_at_once
        raise RuntimeError
    assert signal.getsignal(signal.SIGINT) is before


def test_another_thread_leaves_ctrl_c_to_the_first() -> None:
    seen: list[object] = []

    def work() -> None:
        with on_interrupt(exit_at_once):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    assert seen == [signal.getsignal(signal.SIGINT)] and seen != [exit_at_once]


def test_the_handler_wipes_a_line_of_progress_and_exits(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[object] = []
    monkeypatch.setattr(os, "isatty", lambda handle: handle == 2)
    monkeypatch.setattr(os, "write", lambda handle, data: done.append((handle, data)))
    monkeypatch.setattr(os, "_exit", done.append)
    monkeypatch.setenv("TERM", "xterm")
    exit_at_once(signal.SIGINT, None)
    assert done == [(2, b"\r\x1b[K\x1b[?25h"), 130]
