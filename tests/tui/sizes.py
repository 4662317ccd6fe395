"""Drawings at every size: what must hold of each, whatever it shows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from textual.geometry import Size

from tests.tui.support import ViewApp
from tui.glyphs import ASCII
from tui.model.view_state import ViewState
from tui.text import width
from tui.views.base import View
from tui.widgets.panel import Panel, plain

SIZES = (
    (1, 1), (2, 3), (3, 2), (4, 3), (5, 2), (10, 3), (20, 5), (37, 9), (40, 8), (80, 10), (80, 24), (160, 45),
)  # fmt: skip
NOT_ASCII = "日本é"
"""In texts of the fake model (`tests.tui.support.WORDS`): they are the engine's, not ours."""


def check_every_size(make: Callable[[], Panel], view: ViewState, *, ours: bool = True) -> None:
    """A panel keeps to its size, lets no control character through, and draws with ASCII alone where it is told to.

    `ours`: all texts are those of the fake model.
    """
    for columns, lines in SIZES:
        rows = make().rows(view, Size(columns, lines))
        assert len(rows) <= lines
        if columns >= 4 and lines >= 3:
            assert all(sum(width(span.text) for span in row) == columns for row in rows), (columns, lines)
        text = plain(rows)
        assert not {"\x1b", "\u202e"} & set(text)
        if view.glyphs is ASCII and ours:
            assert all(char.isascii() or char in NOT_ASCII for char in text), text


def check_resizing(shown: View, view: ViewState, said: str) -> None:
    """A view in an app that is made larger and smaller shows `said` again at 80x24."""

    async def drive() -> None:
        app = ViewApp(shown)
        async with app.run_test(size=(80, 24)) as pilot:
            for columns, lines in ((80, 24), (20, 5), (1, 1), (160, 45), (10, 3), (80, 24)):
                app.show(view)
                await pilot.resize_terminal(columns, lines)
                await pilot.pause()
            assert said in app.shown.as_text()

    asyncio.run(drive())
