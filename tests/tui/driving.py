"""Driving the whole app without a terminal."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from textual.pilot import Pilot

from tests.tui.support import EngineRun, tiny_run
from tui.app import Playground
from tui.client.scripted import ScriptedClient
from tui.model.view_state import Meta

META = Meta("tiny-360m", draft="tiny-135m", device="cpu", dtype="float32", speed=10.0, k=3)


def scripted(run: EngineRun | None = None, step: int | None = 0, meta: Meta = META) -> ScriptedClient:
    """A client that tells the story of `tiny_run` up to a step; None is all of it."""
    run = run or tiny_run()
    client = ScriptedClient(run.snapshot, run.reports, meta)
    client.advance_to(run.history.newest if step is None else step)
    return client


def drive(
    client: Any,
    act: Callable[[Playground, Pilot[int]], Awaitable[None]],
    size: tuple[int, int] = (80, 24),
    **options: Any,
) -> Playground:
    """Runs the app, pulls once, and lets `act` use it."""

    async def main() -> Playground:
        app = Playground(client, **options)
        async with app.run_test(size=size) as pilot:
            app.animation_level = "none"
            await frame(app, pilot)
            await act(app, pilot)
        return app

    return asyncio.run(main())


async def frame(app: Playground, pilot: Pilot[int]) -> None:
    """The next frame, drawn."""
    await pilot.pause()
    app.pull()
    await pilot.pause()


async def until(app: Playground, pilot: Pilot[int], done: Callable[[], object], tries: int = 3000) -> None:
    """Frames until something is so; for workers that take their time."""
    for _ in range(tries):
        await frame(app, pilot)
        if done():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"it never came to be:\n{screen_text(app)}")


def screen_text(app: Playground) -> str:
    """What is on the screen, line by line."""
    return "\n".join(strip.text.rstrip() for strip in app.screen._compositor.render_strips())


def toasts(app: Playground) -> list[str]:
    return [n.message for n in app._notifications]
