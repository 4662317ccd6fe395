"""Pictures of the app: every view in the sizes it is made for, and the states that are seldom seen.

They show a recorded run of the demo pair (`tests/traces/demo.jsonl`), and the story of `tiny_run`, in which drafts,
preemption and an abort happen within 60 steps.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from mini_infer.observe.trace_file import read_trace
from tests.tui.driving import META, frame, scripted
from tui.app import Playground
from tui.client.meta import meta_of
from tui.client.protocol import Loading
from tui.client.scripted import ScriptedClient
from tui.messages import RequestSelected
from tui.widgets.engine_strip import TABS

TRACE = Path(__file__).parents[1] / "traces" / "demo.jsonl"
Act = Callable[[Playground, Pilot[int]], Awaitable[None]]


def recorded(step: int) -> ScriptedClient:
    """The demo pair, up to a step."""
    trace = read_trace(TRACE)
    client = ScriptedClient(trace.snapshot, list(trace.reports()), meta_of(trace.header.config))
    client.advance_to(step)
    return client


def compare(
    snap: Any, client: ScriptedClient, size: tuple[int, int], *keys: str, act: Act | None = None, **options: Any
) -> None:
    """The app after these keys, against its picture."""
    app = Playground(client, **options)

    async def before(pilot: Pilot[int]) -> None:
        await frame(app, pilot)
        await pilot.press("escape")
        for key in keys:
            await pilot.press(key)
            await frame(app, pilot)
        if act is not None:
            await act(app, pilot)
        await frame(app, pilot)
        await pilot.wait_for_scheduled_animations()

    assert snap(app, terminal_size=size, run_before=before)


@pytest.mark.parametrize("size", [(80, 24), (160, 45)], ids=["80x24", "160x45"])
@pytest.mark.parametrize("view", TABS)
def test_view(snap_compare, view: str, size: tuple[int, int]) -> None:
    compare(snap_compare, recorded(18), size, str(TABS.index(view)))


@pytest.mark.parametrize("view", ["Blocks", "Sched", "Prefix", "Spec"])
def test_the_story(snap_compare, view: str) -> None:
    """Shared and freed blocks, a preemption, an abort, sampled and greedy rounds."""
    compare(snap_compare, scripted(step=33), (80, 24), str(TABS.index(view)), "n")


def test_cockpit_100x30(snap_compare) -> None:
    compare(snap_compare, recorded(18), (100, 30), "0")


@pytest.mark.parametrize("size", [(80, 24), (160, 45)], ids=["80x24", "160x45"])
def test_light(snap_compare, size: tuple[int, int]) -> None:
    compare(snap_compare, recorded(18), size, "0", theme="mini-light")


@pytest.mark.parametrize("key", ["1", "2"])
def test_without_colour(snap_compare, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    compare(snap_compare, recorded(18), (80, 24), key)


@pytest.mark.parametrize("key", ["1", "2", "3", "5"])
def test_ascii(snap_compare, key: str) -> None:
    compare(snap_compare, recorded(18), (80, 24), key, ascii=True)


def test_paused(snap_compare) -> None:
    compare(snap_compare, recorded(18), (80, 24), "3", "f2")


def test_history(snap_compare) -> None:
    compare(snap_compare, recorded(40), (80, 24), "2", "left_square_bracket", "left_square_bracket")


def test_finished_answer_as_markdown(snap_compare) -> None:
    async def lens_off(app: Playground, pilot: Pilot[int]) -> None:
        app.set_lens("off")
        app.on_request_selected(RequestSelected("r1"))
        for _ in range(3):
            await frame(app, pilot)

    compare(snap_compare, recorded(10_000), (80, 24), "1", act=lens_off)


@pytest.mark.parametrize("lens", ["probability", "step"])
def test_lens(snap_compare, lens: str) -> None:
    async def use(app: Playground, pilot: Pilot[int]) -> None:
        app.set_lens(lens)

    compare(snap_compare, recorded(18), (80, 24), "1", act=use)


@pytest.mark.parametrize("key", ["f1", "f8", "f5", "ctrl+s"])
def test_dialogue(snap_compare, key: str) -> None:
    compare(snap_compare, recorded(18), (80, 24), "1", key)


def test_loading(snap_compare) -> None:
    client = ScriptedClient(None, meta=META)
    client.loading = Loading("loading weights", 250_000_000, 1_000_000_000)
    compare(snap_compare, client, (80, 24))


def test_failed(snap_compare) -> None:
    async def fail(app: Playground, pilot: Pilot[int]) -> None:
        client.failed = "there is no folder [models]/x: give --model a folder or a Hugging Face repository"
        await frame(app, pilot)

    client = ScriptedClient(None, meta=META)
    compare(snap_compare, client, (80, 24), act=fail)


def test_too_small(snap_compare) -> None:
    compare(snap_compare, recorded(18), (60, 12))


def test_nothing_yet(snap_compare) -> None:
    compare(snap_compare, recorded(0), (160, 45), "0")
