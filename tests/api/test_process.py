"""`mini-infer serve` as a process: signals, exit codes, what it prints."""

from __future__ import annotations

import gc
import logging
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from mini_infer.config import EngineConfig
from tests.api.support import (
    events,
    joined,
    reasons,
    wait,
)


@contextmanager
def process(*args: str, **env: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """`mini-infer serve` and the lines of its standard error so far."""
    command = [sys.executable, "-m", "mini_infer", "serve", *args]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **env}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as child:
        live: list[str] = []

        def follow() -> None:
            assert child.stderr is not None
            for line in child.stderr:
                live.append(line.rstrip("\n"))

        thread = threading.Thread(target=follow)
        thread.start()
        try:
            yield child, live
        finally:
            child.kill()
            thread.join(10)


def url_in(lines: list[str]) -> str:
    found: list[str] = []

    def look() -> bool:
        found[:] = [m[0] for line in list(lines) if (m := re.search(r"http://\S+(?=/v1)", line))]
        return bool(found)

    wait(look, f"serving: {lines}", 60)
    return found[0]


def test_sigterm_drains_and_exits_with_0(folder: Path) -> None:
    with process("--model", str(folder), "--port", "0", "--kv-blocks", "512", "--drain-seconds", "20") as (child, said):
        url = url_in(said)
        assert any(line == f"mini-infer: loading {folder}" for line in said)
        assert any("serving Tiny-Instruct at" in line for line in said)
        body = {"prompt": "x", "max_tokens": 400, "ignore_eos": True, "stream": True, "temperature": 0}
        with (
            httpx.Client(trust_env=False, timeout=30) as client,
            client.stream("POST", f"{url}/v1/completions", json=body) as response,
        ):
            parts = response.iter_bytes()
            got = next(parts)
            child.send_signal(signal.SIGTERM)
            got += b"".join(parts)
        stream = events(got)
        assert reasons(stream) == ["length"] and joined(stream)
        assert child.wait(20) == 0
    assert any('"POST /v1/completions" 200' in line for line in said), "plain log lines where there is no terminal"
    assert any("shutting down" in line for line in said)
    assert not [line for line in said if "Traceback" in line or "\x1b" in line]


def test_ctrl_c_while_idle_and_the_key_of_the_environment(folder: Path) -> None:
    key = {"MINI_INFER_API_KEY": "from-outside"}
    args = ("--model", str(folder), "--port", "0", "--kv-blocks", "64", "--host", "0.0.0.0")
    with process(*args, **key) as (child, said):
        url = url_in(said)
        assert httpx.get(f"{url}/v1/models", trust_env=False).status_code == 401
        right = {"authorization": "Bearer from-outside"}
        assert httpx.get(f"{url}/v1/models", headers=right, trust_env=False).status_code == 200
        assert not [line for line in said if "warning" in line]
        child.send_signal(signal.SIGINT)
        assert child.wait(20) == 0


def test_open_to_others_without_a_key_there_is_a_warning(folder: Path) -> None:
    args = ("--model", str(folder), "--port", "0", "--kv-blocks", "64", "--host", "0.0.0.0")
    with process(*args, MINI_INFER_API_KEY="") as (child, said):
        url_in(said)
        assert [line for line in said if "warning" in line and "--api-key" in line]
        child.send_signal(signal.SIGTERM)
        assert child.wait(20) == 0


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--model", "./nothing", "--port", "0"], "no such folder"),
        (["--body-limit", "much"], "not a size: 'much'"),
        (["--max-n", "0"], "--max-n is 0"),
        (["--control"], "No such option"),
        (["--cors-origin", "example.org"], "--cors-origin"),
    ],
)
def test_what_a_user_can_mend_is_one_line_and_exit_2(args: list[str], words: str) -> None:
    command = [sys.executable, "-m", "mini_infer", "serve", *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and done.stdout == "" and "Traceback" not in done.stderr
    assert words in done.stderr.splitlines()[-1]


def test_what_is_light_stays_light() -> None:
    """The server is there before torch is, and help knows no web framework."""

    def loaded(code: str) -> set[str]:
        code += "\nimport sys; print('loaded', *sys.modules.keys() & {'torch', 'litestar', 'uvicorn'})"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
        return set(done.stdout.splitlines()[-1].split()[1:])

    assert loaded("import mini_infer.api.server, mini_infer.api.serving") == {"litestar", "uvicorn"}
    assert loaded("from mini_infer.cli import main\ntry:\n    main(['serve', '-h'])\nexcept SystemExit: pass") == set()


def test_log_lines_are_coloured_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    from mini_infer.commands.serve import _log_to_stderr

    logger = logging.getLogger("mini_infer")
    before = list(logger.handlers)
    with _log_to_stderr():
        assert type(logger.handlers[-1]).__name__ == "StreamHandler"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with _log_to_stderr():
        assert type(logger.handlers[-1]).__name__ == "RichHandler"
    assert logger.handlers == before


def test_what_was_loaded_is_no_work_for_the_garbage_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    from mini_infer.api import server
    from mini_infer.commands import serve

    calls: list[str] = []
    values = {"port": 0, "body_limit": "1MB"}
    monkeypatch.setattr(gc, "freeze", lambda: calls.append("frozen"))
    monkeypatch.setattr(
        server, "serve", lambda serving, sock, on_ready: (sock.close(), calls.append("loaded"), on_ready())
    )
    monkeypatch.setattr(serve, "note", calls.append)
    serve.run(values, EngineConfig(model="demo"))
    assert calls[-3:-1] == ["loaded", "frozen"] and "serving demo at" in calls[-1]
