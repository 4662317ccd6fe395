"""What the screen costs: how long a key takes to show while a model loads and decodes, and the time of a drawn step.

The first test needs a terminal's worth of patience: it runs the real command in a pseudo terminal.
"""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from contextlib import suppress
from fcntl import ioctl
from pathlib import Path

import pytest

from mini_infer.observe.trace_file import read_trace
from tests.tui.driving import drive, frame, scripted
from tests.tui.support import EngineRun

pytestmark = pytest.mark.timing


class Terminal:
    """The command in a pseudo terminal of 160 by 45."""

    def __init__(self, *args: str) -> None:
        self.master, slave = pty.openpty()
        ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 45, 160, 0, 0))
        command = [sys.executable, "-m", "mini_infer", "tui", *args]
        env = {**os.environ, "TERM": "xterm-256color"}
        self.process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=env)
        os.close(slave)
        self.next = 0x4E00  # each key is a character of its own, so that no repaint is taken for an echo
        self.seen = ""

    def read(self, seconds: float) -> str:
        text = ""
        end = time.perf_counter() + seconds
        while (left := end - time.perf_counter()) > 0 and select.select([self.master], [], [], left)[0]:
            try:
                text += os.read(self.master, 1 << 16).decode(errors="replace")
            except OSError:  # it has ended
                raise AssertionError(f"the command ended: {self.seen[-800:]}{text[-800:]}") from None
        self.seen += re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)
        return text

    def wait(self, what: str, seconds: float = 120) -> float:
        began = time.perf_counter()
        while what not in self.seen:
            self.read(0.01)
            assert time.perf_counter() - began < seconds, self.seen[-500:]
        return time.perf_counter() - began

    def echo(self) -> float:
        """Seconds until a typed character is on the screen."""
        char = chr(self.next)
        self.next += 1
        began = time.perf_counter()
        os.write(self.master, char.encode())
        text = ""
        while char not in text:
            text += self.read(0.002)
            assert time.perf_counter() - began < 30
        return time.perf_counter() - began

    def close(self) -> None:
        os.write(self.master, b"\x11")
        end = time.perf_counter() + 30
        with suppress(AssertionError):
            while self.process.poll() is None and time.perf_counter() < end:
                self.read(0.1)
        self.process.kill()
        os.close(self.master)


def p99(values: list[float]) -> float:
    return sorted(values)[max(0, int(len(values) * 0.99) - 1)]


@pytest.mark.real
def test_keys_show_at_once_while_a_model_loads_and_decodes_and_decoding_is_no_slower(
    qwen_folder: Path, tmp_path: Path
) -> None:
    trace = tmp_path / "trace.jsonl"
    prompt = "Write a long story about a lighthouse keeper."
    began = time.perf_counter()
    terminal = Terminal("--model", str(qwen_folder), "--draft", "none", "--record", str(trace))
    try:
        terminal.wait("Ask something")
        drawn = time.perf_counter() - began
        loading: list[float] = []
        while "step 0" not in terminal.seen:
            loading.append(terminal.echo())
            terminal.read(0.05)
        os.write(terminal.master, b"\x08" * len(loading) + prompt.encode())
        terminal.read(1.0)
        os.write(terminal.master, b"\r")
        terminal.wait("1 live")
        terminal.read(2.0)
        decoding: list[float] = []
        while len(decoding) < 150:
            decoding.append(terminal.echo())
            terminal.read(0.05)
    finally:
        terminal.close()
    reports = [r for r in read_trace(trace).reports() if r.stepped and r.sched and r.sched[0].kind == "decode"]
    with_screen = (len(reports) - 1) / (reports[-1].t - reports[0].t)
    command = [sys.executable, "-m", "mini_infer", "generate", prompt, "--model", str(qwen_folder), "--draft", "none",
               "--json", "--max-tokens", str(len(reports)), "--ignore-eos"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    alone = json.loads(done.stdout)["timings"]["tokens_per_s"]
    print(
        f"\ndrawn after {drawn:.2f} s; echo p50/p99/max while loading {1000 * sorted(loading)[len(loading) // 2]:.0f}/"
        f"{1000 * p99(loading):.0f}/{1000 * max(loading):.0f} ms ({len(loading)} keys), while decoding "
        f"{1000 * sorted(decoding)[len(decoding) // 2]:.0f}/{1000 * p99(decoding):.0f}/{1000 * max(decoding):.0f} ms; "
        f"{with_screen:.2f} tok/s with the screen, {alone:.2f} without"
    )
    assert drawn < 1.0
    assert p99(decoding) < 0.05
    assert p99(loading) < 0.05
    assert with_screen > 0.95 * alone


def test_a_step_of_1024_blocks_and_16_requests_is_drawn_in_5_ms() -> None:
    run = EngineRun(num_blocks=1024, block_size=16, max_running=16, max_batch_tokens=256, context=4096)
    for i in range(16):
        run.ask([i, *range(40)] * 20, 300)
    run.step(80)
    client = scripted(run, None)
    times: dict[str, float] = {}

    async def act(app, pilot):
        for name in ("blocks", "sched", "cockpit"):
            app.action_view(name)
            await frame(app, pilot)
            best = 1.0
            for _ in range(30):
                began = time.perf_counter()
                app._draw()
                for view in app.on_screen:
                    for panel in view.panels:
                        if panel.display and panel.size.height:
                            for y in range(panel.size.height):
                                panel.render_line(y)
                best = min(best, time.perf_counter() - began)
                await asyncio.sleep(0)
            times[name] = best

    drive(client, act, (160, 45))
    print({name: f"{1000 * t:.1f} ms" for name, t in times.items()})
    assert times["blocks"] < 0.005
    assert times["sched"] < 0.005
