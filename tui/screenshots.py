"""`python -m tui.screenshots [FOLDER]`: pictures of the playground on the demo pair, as SVG and PNG.

PNG needs the `dev` extra (resvg). Everything shown is really computed; only the clock of the screen is stopped.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from textual.pilot import Pilot

from mini_infer.config import EngineConfig
from tui.app import Playground
from tui.client.in_process import connect
from tui.widgets.engine_strip import TABS

QUESTION = "What is paged attention?"
STEPS = 5
"""Steps after the background load began."""


async def pictures(options: EngineConfig, folder: Path) -> list[Path]:
    """Writes the pictures of one run and returns their paths."""
    made: list[Path] = []
    for size, names in (((160, 45), TABS), ((80, 24), TABS[1:])):
        app = Playground(connect(options, speed=0))
        async with app.run_test(size=size) as pilot:
            app.animation_level = "none"
            await _story(app, pilot)
            for name in names:
                app.action_view(name.lower())
                for _ in range(2):
                    app.pull()
                    await pilot.pause()
                path = folder / f"{name.lower()}-{size[0]}x{size[1]}.svg"
                path.write_text(app.export_screenshot(simplify=True), encoding="utf-8")
                made += [path, *_png(path)]
    return made


async def _story(app: Playground, pilot: Pilot[int]) -> None:
    """A question, a background load, and the engine stopped in the middle of it."""
    await _until(app, pilot, lambda: app.observer is not None)
    app.client.pause()
    app.composer.text = QUESTION
    app.composer.action_send()
    await _until(app, pilot, lambda: app.conversation.request_id is not None)
    app.client.step(2)
    app.action_load(6)
    await _until(app, pilot, lambda: app.observer is not None and len(app.observer.ledger.requests) >= 7)
    app.client.step(STEPS)
    await _until(app, pilot, lambda: app.observer is not None and app.observer.history.newest >= 2 + STEPS)


async def _until(app: Playground, pilot: Pilot[int], done: object) -> None:
    assert callable(done)
    for _ in range(6000):
        app.pull()
        await pilot.pause()
        if done():
            return
        await asyncio.sleep(0.01)
    raise TimeoutError("the engine did not come so far within a minute")


def _png(path: Path) -> list[Path]:
    try:
        import resvg_py
    except ImportError:
        return []
    svg = path.read_text(encoding="utf-8").replace("Fira Code", "DejaVu Sans Mono")
    out = path.with_suffix(".png")
    out.write_bytes(bytes(resvg_py.svg_to_bytes(svg_string=svg, monospace_family="DejaVu Sans Mono")))
    return [out]


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    for path in asyncio.run(pictures(EngineConfig(entropy_seed=1), folder)):
        print(path)


if __name__ == "__main__":
    main()
