"""Faults that other terminal applications had; each test is named after its case."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from fcntl import ioctl
from pathlib import Path

import pytest
from msgspec.structs import replace
from textual.events import Paste

from mini_infer.observe.events import Arrived, Finished, Output, PoolCount, StepReport, Usage
from mini_infer.observe.state import EngineInfo, EngineState, Totals
from mini_infer.observe.trace_file import FileSink
from tests.tui.driving import META, drive, frame, screen_text, scripted, toasts, until
from tests.tui.support import tiny_run
from tui.client.scripted import ScriptedClient
from tui.widgets.engine_strip import TABS

EMPTY = EngineState(0, 0, EngineInfo("m", 8, 4, 4, 64, 32, 512), Totals(), PoolCount(0, 0, 8))

NASTY = (
    "[/]", "[bold]x", "[1]", "ZCOUNT z (1 3 [b +", "[@click=app.quit]go[/]", "a[0]=b[i]", "\\[x]", "[link=http://x]y",
    "$panel", "{{ x }}", "<b>x</b>",
)  # fmt: skip
CONTROL = ("\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "a\rb", "\x9b2J", "\x00", "\u202eright to left", "a\x08b", "\x7f")
WIDE = ("日本語のテキスト", "👩‍👩‍👧 family", "e\u0301", "שלום", "ก็", "\U0001f1e9\U0001f1ea", "x" * 5000, "ﷺ" * 50)


def told(*texts: str, prompt: str = "q", reason: str | None = None, error: str | None = None) -> list[StepReport]:
    """One request whose prompt and answer have these texts."""
    pieces = {0: f"<|im_start|>user\n{prompt}<|im_end|>"} | dict(enumerate(texts, start=1))
    reports = [StepReport(1, 1, 1.0, arrived=(Arrived("r1", "r1", (0,), 0, t=0.5),), pieces=pieces)]
    for i, text in enumerate(texts, start=1):
        reports.append(StepReport(i + 1, i + 1, 1.0 + i, outputs=(Output("r1", (i,), text),)))
    if reason is not None:
        n = len(reports) + 1
        end = Finished("r1", reason, Usage(1, len(texts)), error=error)  # type: ignore[arg-type]
        reports.append(StepReport(n, n, float(n), outputs=(Output("r1", finished=end),)))
    return reports


def show(reports: list[StepReport], act, size=(80, 24), lens: str = "off", **options) -> ScriptedClient:
    client = ScriptedClient(EMPTY, reports, META)
    client.advance(len(reports))

    async def main(app, pilot):
        app.set_lens(lens)
        await frame(app, pilot)
        await act(app, pilot)

    drive(client, main, size, **options)
    return client


@pytest.mark.parametrize("lens", ["off", "source"])
@pytest.mark.parametrize("ended", [False, True])
def test_U01_markup_is_shown_letter_for_letter(lens: str, ended: bool) -> None:
    async def act(app, pilot):
        await frame(app, pilot)
        text = screen_text(app)
        for part in NASTY:
            assert part in text, part
        if "[@click" in text:
            at = next((i, line.index("go[/]")) for i, line in enumerate(text.splitlines()) if "go[/]" in line)
            await pilot.click(offset=(at[1], at[0]))
            await pilot.pause()
        assert app.is_running
        app.action_new_chat()
        await pilot.press(*"[/]", "enter")
        await until(app, pilot, lambda: app.conversation.request_id)
        assert app.conversation.asked == "[/]"
        for key in ("escape", "w", "0", "1", "2", "3", "4", "5", "6"):
            await pilot.press(key)
            await frame(app, pilot)

    texts = [f"{part}\n" if not ended else f"    {part}\n" for part in NASTY]  # indented: Markdown takes it for code
    show(told(*texts, prompt="[/] [bold] why", reason="stop" if ended else None), act, (90, 70), lens)


@pytest.mark.parametrize("texts", [CONTROL, WIDE], ids=["control", "wide"])
def test_U01_no_text_can_move_or_style_the_screen(texts: tuple[str, ...]) -> None:
    async def act(app, pilot):
        for key in ("1", "ctrl+t", "ctrl+t", "6", "4", "5", "2", "0"):
            await pilot.press("escape", key)
            await frame(app, pilot)
            shown = screen_text(app)
            assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", shown)
            strips = app.screen._compositor.render_strips()
            assert {strip.cell_length for strip in strips} == {80}

    show(told(*texts, prompt=" ".join(texts), reason="stop"), act)
    show(told(*texts, prompt=" ".join(texts)), act, lens="source")


def test_U01_markdown_of_an_answer_opens_nothing_and_runs_nothing() -> None:
    text = "# Title\n\n* one\n* [link](https://example.org)\n\n```python\nprint('[bold]')\n```\n\n<script>x</script>\n"

    async def act(app, pilot):
        opened: list[str] = []
        app.open_url = lambda url, **_: opened.append(url)
        await frame(app, pilot)
        shown = screen_text(app)
        assert "print('[bold]')" in shown
        row, line = next((i, line) for i, line in enumerate(shown.splitlines()) if "link" in line)
        await pilot.click(offset=(line.index("link") + 1, row))
        await pilot.pause()
        assert opened == []

    show(told(text, reason="stop"), act, (80, 40))


def test_U03_any_size_at_any_time() -> None:
    client = scripted(step=0)

    async def act(app, pilot):
        await pilot.press(*"words that stay")
        for view in TABS:
            sizes = ((80, 24), (1, 1), (20, 5), (300, 100), (80, 24), (2, 40), (200, 3), (160, 45))
            for size in sizes if view == "Cockpit" else ((20, 5), (100, 30)):
                await pilot.resize_terminal(*size)
                client.advance(1)
                await frame(app, pilot)
            app.action_view(view.lower())
            await frame(app, pilot)
        await pilot.resize_terminal(20, 5)
        await frame(app, pilot)
        assert "needs 80x24" in screen_text(app)
        await pilot.resize_terminal(80, 24)
        app.action_write()
        await frame(app, pilot)
        assert "needs 80x24" not in screen_text(app)
        assert "words that stay" in screen_text(app)
        await pilot.press("!")
        assert app.composer.text == "words that stay!"

    drive(client, act)
    drive(scripted(step=20), lambda app, pilot: pilot.resize_terminal(80, 24), (10, 3))


def test_U05_a_paste_keeps_all_its_lines_and_is_not_sent() -> None:
    client = scripted(step=0)

    async def act(app, pilot):
        app.composer.post_message(Paste("one\r\ntwo\tx\rthree\n\nfive\n"))
        await pilot.pause()
        assert app.composer.text == "one\ntwo\tx\nthree\n\nfive\n"
        assert not [1 for what, _ in client.asked if what == "chat"]
        await pilot.press("enter")
        await until(app, pilot, lambda: app.conversation.request_id)
        assert client.asked[-1][1][0][0]["content"] == "one\ntwo\tx\nthree\n\nfive"

    drive(client, act)


def test_U05_a_paste_of_100_kB_is_taken_whole() -> None:
    client = scripted(step=0)
    text = "\n".join(f"[bold] line {i} \x1b[31m" + "x" * 80 for i in range(1000))

    async def act(app, pilot):
        app.composer.post_message(Paste(text))
        await frame(app, pilot)
        assert not re.search(r"[\x1b]", screen_text(app))
        await pilot.press("enter")
        await until(app, pilot, lambda: app.conversation.request_id)
        assert client.asked[-1][1][0][0]["content"] == text
        assert "waiting for the engine" in screen_text(app)
        app.composer.post_message(Paste("y" * 300_000))
        await frame(app, pilot)
        await pilot.pause()
        assert len(app.composer.text) == 200_000
        assert any("cut to 200,000" in t for t in toasts(app))

    drive(client, act)


def test_U07_ctrl_c_and_escape_stop_the_answer_and_keep_what_there_is() -> None:
    for key in ("ctrl+c", "escape"):
        client = scripted(step=0)

        async def act(app, pilot, client=client, key=key):
            await pilot.press(*"hi", "enter")
            await until(app, pilot, lambda: app.conversation.request_id)
            client.advance_to(12)
            await frame(app, pilot)
            await pilot.press(key)
            assert ("abort", "r1") in client.asked
            state = app.observer.history.live.state
            end = Finished("r1", "abort", Usage(5, 9))
            outputs = (Output("r1", finished=end),)
            client.reports = [StepReport(state.seq + 1, state.step, 9.0, stepped=False, outputs=outputs)]
            client._next = 0
            client.advance()
            await frame(app, pilot)
            assert [m["role"] for m in app.conversation.messages] == ["user", "assistant"]
            assert "stopped, the answer is not complete" in screen_text(app)
            assert app.is_running

        drive(client, act)


def test_U07_ctrl_c_copies_a_selection_and_says_how_to_quit_when_idle() -> None:
    client = scripted(step=0)

    async def act(app, pilot):
        await pilot.press(*"copy me", "shift+home", "ctrl+c")
        assert app.clipboard == "copy me"
        await pilot.press("end", "ctrl+d", "ctrl+c")
        await pilot.pause()
        assert toasts(app)[-1] == "ctrl+q quits"
        assert app.composer.text == "copy me"
        assert app.is_running
        await pilot.press("ctrl+q")
        assert not app.is_running

    drive(client, act)
    assert client.asked[-1] == ("close", None)


@pytest.mark.parametrize("how", ["ctrl+q", "SIGINT", "SIGTERM", "SIGHUP"])
def test_U07_the_terminal_is_as_it_was_after_every_exit(tmp_path: Path, how: str) -> None:
    trace = tmp_path / "t.jsonl"
    run = tiny_run(steps=20)
    sink = FileSink(trace, {"model": "x/y"})
    sink.start(run.snapshot)
    for report in run.reports:
        sink.emit(report)
    sink.close()
    master, slave = pty.openpty()
    ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    before = termios.tcgetattr(slave)
    command = [sys.executable, "-m", "mini_infer", "tui", "--replay", str(trace), "--speed", "0"]
    env = {**os.environ, "TERM": "xterm-256color"}
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=env, start_new_session=True)
    try:
        seen = _read_until(master, process, b"step 20")
        assert b"\x1b[?1049h" in seen
        if how == "ctrl+q":
            os.write(master, b"\x11")
        else:
            process.send_signal(getattr(signal, how))
        seen = _read_until(master, process, None)
        assert process.wait(60) == (0 if how == "ctrl+q" else 128 + getattr(signal, how))
        assert b"\x1b[?1049l" in seen  # the alternate screen is left
        assert b"\x1b[?25h" in seen  # the cursor is shown
        assert termios.tcgetattr(slave) == before
        assert b"Traceback" not in seen
    finally:
        process.kill()
        os.close(master)
        os.close(slave)


def _read_until(master: int, process: subprocess.Popen, what: bytes | None) -> bytes:
    """Output up to `what`; to the end of the process for None."""
    seen, deadline = b"", time.monotonic() + 60
    while time.monotonic() < deadline:
        if select.select([master], [], [], 0.2)[0]:
            seen += os.read(master, 65536)
        elif process.poll() is not None:
            return seen
        if what is not None and what in re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", seen):
            return seen
    raise AssertionError(seen[-2000:])


@pytest.mark.parametrize("size", [(80, 24), (160, 45)])
def test_U10_without_colour_everything_can_be_told_apart(monkeypatch: pytest.MonkeyPatch, size) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    client = scripted(step=25)

    async def act(app, pilot):
        assert app.no_color
        for key in "0234561":
            await pilot.press("escape", key)
            await frame(app, pilot)
        text = screen_text(app)
        assert re.search(r"A ▸ ", text)
        assert re.search(r"[-+x*]{3}", text), "the lens has its signs"
        assert "▶ LIVE" in text
        client.pause()
        app.redraw()
        await frame(app, pilot)
        assert "■ PAUSED" in screen_text(app)
        assert "[1 Chat]" in screen_text(app)

    drive(client, act, size)


def test_U12_an_answer_that_breaks_off_says_so_and_the_next_message_works() -> None:
    reports = told("Half an ans", reason="error", error="the logits [/] are not finite")
    client = ScriptedClient(EMPTY, reports, META)

    async def act(app, pilot):
        await pilot.press(*"hi", "enter")
        await until(app, pilot, lambda: app.conversation.request_id)
        client.advance(10)
        await frame(app, pilot)
        await pilot.pause()
        text = screen_text(app)
        assert "FAILED" in text
        assert "broken off: the logits [/] are not finite" in text
        assert "Half an ans" in text
        assert any("the answer broke off" in t for t in toasts(app))
        await pilot.press(*"again", "enter")
        await until(app, pilot, lambda: len([1 for what, _ in client.asked if what == "chat"]) == 2)

    drive(client, act)


def test_U12_an_engine_that_dies_gives_the_message_back() -> None:
    client = scripted(step=0)

    async def act(app, pilot):
        await pilot.press(*"hi", "enter")
        await until(app, pilot, lambda: app.conversation.request_id)
        client.failed = "the engine has stopped"
        await frame(app, pilot)
        await pilot.pause()
        assert "the engine has stopped" in screen_text(app)
        assert app.composer.text == "hi"
        assert not app.conversation.is_busy
        client.failed = None
        await pilot.press("enter")
        await until(app, pilot, lambda: app.conversation.request_id)

    drive(client, act)


def test_no_report_of_a_broken_kind_ends_the_app() -> None:
    """A report that does not fit is taken for a gap: the screen asks for a snapshot."""
    run = tiny_run(steps=20)
    wrong = replace(run.reports[5], blocks=(*run.reports[5].blocks, *run.reports[5].blocks))
    client = ScriptedClient(run.snapshot, [*run.reports[:5], wrong], META)
    client.advance(100)

    async def act(app, pilot):
        assert app.is_running

    drive(client, act)
