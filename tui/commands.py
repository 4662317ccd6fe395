"""What the palette (ctrl+p) offers beside Textual's own: every action by its name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from textual.app import SystemCommand

from tui.controls import SPEEDS, Controls
from tui.widgets.engine_strip import TABS


def commands(app: Controls, open_view: Callable[[str], None]) -> Iterator[SystemCommand]:
    for number, name in enumerate(TABS):
        yield SystemCommand(f"View: {name}", f"Key {number}", partial(open_view, name.lower()))
    yield SystemCommand("Pause or run", "The engine stands, or goes on (F2)", app.action_pause)
    yield SystemCommand("Step", "One step of the paused engine (F3)", app.action_step)
    for speed in SPEEDS:
        words = "full" if speed is None else f"{speed:g} steps a second"
        yield SystemCommand(f"Speed: {words}", "F4", partial(app.set_speed, speed))
    yield SystemCommand("Break on…", "What pauses the engine (F8)", app.action_break_on)
    for count in (6, 16, 32):
        yield SystemCommand(f"Load: {count} requests", "In the background (^l)", partial(app.action_load, count))
    yield SystemCommand("Sampling…", "Temperature and others of the next message (F5)", app.action_sampling)
    for k in (None, 1, 2, 4, 8):
        words = "automatic" if k is None else str(k)
        yield SystemCommand(f"Drafts per round: {words}", "k", partial(app.set_draft_tokens, k))
    yield SystemCommand("Drafting on or off", "d", app.action_drafting)
    yield SystemCommand("Abort", "The selected request (x)", app.action_abort)
    yield SystemCommand("Clear the prefix cache", "c", app.action_clear_cache)
    yield SystemCommand("Save trace…", "The last 2,000 steps (^s)", app.action_save)
    yield SystemCommand("Open trace…", "In place of the engine (^o)", app.action_open)
