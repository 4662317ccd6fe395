"""Signals, and the server that is started without --url."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mini_infer.errors import UserError
from mini_infer.load.own_server import own_server
from tests.load.fake_server import FakeOpenAI, in_thread
from tests.load.support import in_loop
from tests.support.checkpoints import write_checkpoint

SERVES = (
    "import sys, time; print('mini-infer: serving x y at http://127.0.0.1:5/v1 (…)', file=sys.stderr, flush=True); "
)


def wait(condition: Callable[[], object], limit_s: float = 60.0) -> None:
    until = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def load(*args: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "mini_infer", "load", *map(str, args)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(word) for word in found.read_text().split()] if found.exists() else []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_writes_what_was_measured(tmp_path: Path, number: signal.Signals) -> None:
    path = tmp_path / "r.json"
    with in_thread(FakeOpenAI(hold_every=6)) as server:
        args = ("--url", server.url, "--concurrency", 1, "--requests", 50, "--warmup", 0, "--json", path)
        with load(*args) as child:
            wait(lambda: len(server.asked()) >= 6)
            child.send_signal(number)
            out, err = child.communicate(timeout=60)
    assert child.returncode == 130, err
    report = json.loads(path.read_text())
    figures = report["levels"][0]["figures"]
    assert (figures["ok"], figures["unfinished"], report["stopped"]) == (5, 1, "interrupted")
    assert "Ended early: interrupted" in out
    assert "Traceback" not in err


def test_B05_an_interrupt_before_the_first_answer_is_reported_too(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    args = ("--concurrency", 2, "--warmup", 0, "--json", path)
    with in_thread(FakeOpenAI(hold_every=1)) as server, load("--url", server.url, *args) as child:
        wait(lambda: len(server.asked()) >= 2)
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=60)
    assert child.returncode == 130, err
    figures = json.loads(path.read_text())["levels"][0]["figures"]
    assert (figures["ok"], figures["unfinished"]) == (0, 2)
    assert figures["output_tok_s"] is None and figures["ttft_ms"]["p50"] is None


# --- a server of its own --------------------------------------------------------------------------------------------


def run_own(code: str) -> tuple[str, int | None]:
    """The URL that a child made of this code gave, and how it ended."""

    async def main() -> tuple[str, int | None]:
        async with own_server((), (sys.executable, "-c", code)) as server:
            url = server.url
        return url, server.process.returncode

    return in_loop(main)


def test_the_child_is_ended_by_a_signal_once_all_is_done() -> None:
    assert run_own(SERVES + "time.sleep(600)") == ("http://127.0.0.1:5", -signal.SIGTERM)


def test_a_child_that_does_not_listen_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mini_infer.load.own_server.END_S", 0.2)
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SERVES + "time.sleep(600)"
    assert run_own(deaf)[1] == -signal.SIGKILL


def test_a_child_that_fails_is_quoted() -> None:
    code = "import sys; print('mini-infer: no such checkpoint: x', file=sys.stderr); sys.exit(2)"
    with pytest.raises(UserError, match=r"^the server did not start: no such checkpoint: x$"):
        run_own(code)
    with pytest.raises(UserError, match="it said nothing"):
        run_own("pass")


def test_a_child_that_writes_much_is_read_to_the_end() -> None:
    chatter = "[print('x' * 1000, file=sys.stderr, flush=True) for _ in range(500)]; "
    assert run_own(SERVES + chatter + "time.sleep(600)")[0]


def test_without_a_url_a_server_runs_on_the_options_given_and_ends(tmp_path: Path) -> None:
    """The real server, on a tiny checkpoint: measured, checked, reconciled, and gone."""
    folder = tmp_path / "tiny"
    write_checkpoint(folder)
    path = tmp_path / "r.json"
    args = ("--model", folder, "--dtype", "float64", "--draft", "ngram", "--threads", 1, "--max-running", 4)
    more = (
        "--concurrency",
        "1,4",
        "--requests",
        8,
        "--output-tokens",
        8,
        "--check",
        "--cancel-rate",
        0.2,
        "--json",
        path,
    )
    with load(*args, *more) as child:
        wait(lambda: children(child.pid) or child.poll() is not None)
        server = children(child.pid)
        out, err = child.communicate(timeout=300)
    assert child.returncode == 0, err
    assert not any(Path(f"/proc/{pid}").exists() for pid in server)
    report = json.loads(path.read_text())
    assert report["model"] == "tiny"
    assert report["server"]["engine"] == "mini-infer"
    assert [level["wrong"] + level["ties"] for level in report["check"]["levels"]] == [0, 0]
    assert report["check"]["has_logprobs"] is True
    for level in report["levels"]:
        assert level["figures"]["ok"] + level["figures"]["cancelled"] == 8
        assert level["server"]["leaked"] == {} and level["server"]["idle_checked"] is True
    assert "Load on tiny" in out


def test_a_checkpoint_that_is_not_there_is_said_in_one_line(tmp_path: Path) -> None:
    with load("--model", tmp_path / "nowhere") as child:
        _, err = child.communicate(timeout=120)
    assert child.returncode == 2
    assert "nowhere" in err.strip().split("\n")[-1]
    assert "Traceback" not in err
