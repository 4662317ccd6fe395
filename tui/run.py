"""Runs the playground in a terminal, and keeps everybody else's hands off the screen."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from mini_infer.errors import UserError
from tui.client.protocol import EngineClient

SHOWN_LINES = 20
"""Of what was printed behind the screen, so many last lines are shown when the screen is gone."""


def run(client: EngineClient, *, ascii: bool = False, theme: str = "mini-dark") -> int:
    """Shows the playground until it is left; returns the exit code.

    Raises UserError, also where the engine never came to be: the screen that told so is gone.
    """
    if not (sys.stdin is not None and sys.stdin.isatty() and sys.__stderr__ is not None and os.isatty(2)):
        raise UserError("the playground needs a terminal; generate and serve work without one")
    from textual.theme import BUILTIN_THEMES

    from tui.app import Playground
    from tui.pastes import cleaned
    from tui.themes import THEMES

    names = [*(each.name for each in THEMES), *BUILTIN_THEMES]
    if theme not in names:
        raise UserError(f"there is no theme {theme!r}: take one of {', '.join(names)}")
    with screen_of_our_own(), cleaned():
        app = Playground(client, ascii=ascii, theme=theme)
        code = app.run()
    if app.failed is not None and app.observer is None:
        raise UserError(app.failed)
    return code or app.return_code or 0


@contextmanager
def screen_of_our_own() -> Iterator[None]:
    """While open, file descriptor 2 is a file: what native code prints there cannot land in the middle of the screen.

    Textual draws on `sys.__stderr__`, which is the terminal by another descriptor meanwhile. What was printed is shown
    afterwards.
    """
    assert sys.__stderr__ is not None
    sys.__stderr__.flush()
    terminal, before = os.dup(2), sys.__stderr__
    with tempfile.TemporaryFile() as log, os.fdopen(terminal, "w", encoding=before.encoding, errors="replace") as file:
        sys.__stderr__ = file  # type: ignore[misc]
        os.dup2(log.fileno(), 2)
        try:
            yield
        finally:
            file.flush()
            os.dup2(terminal, 2)
            sys.__stderr__ = before  # type: ignore[misc]
            log.seek(0)
            for line in log.read().decode(errors="replace").splitlines()[-SHOWN_LINES:]:
                before.write(line + "\n")
            before.flush()
