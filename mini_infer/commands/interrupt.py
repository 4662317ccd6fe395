"""What Ctrl+C does: by itself a KeyboardInterrupt, which whoever has something to save can catch."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

INTERRUPTED = 130
"""The exit code of a command that Ctrl+C ended: 128 and the number of the signal."""


def exit_at_once(_number: int, _frame: FrameType | None) -> NoReturn:
    """The handler for as long as nothing is open that would have to be closed.

    An import must not be ended by an exception: torch's own code drops one that comes while it imports numpy, or
    crashes on it.
    """
    if sys.stderr is not None and os.isatty(2) and os.environ.get("TERM") != "dumb":
        os.write(2, b"\r\x1b[K\x1b[?25h")  # wipes a line of progress, shows the cursor that a bar has hidden
    os._exit(INTERRUPTED)


@contextmanager
def on_interrupt(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """While open, Ctrl+C calls `handler`, unless it is ignored (`nohup`) or, on another thread, not our affair."""
    before = signal.getsignal(signal.SIGINT)
    if before in (signal.SIG_IGN, None) or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
