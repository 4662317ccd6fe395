"""Standard output and standard error: the answer goes to the first, everything else to the second."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

from mini_infer.errors import UserError

CLOSED = "standard output is closed: nothing could be shown; send it somewhere, /dev/null if nobody is to read it"
_CONTROLS = {code: chr(0xFFFD) for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}


def check_output() -> None:
    """Raises UserError where the caller closed standard output, as with >&-."""
    if sys.stdout is None:
        raise UserError(CLOSED)


def write(text: str) -> None:
    """Writes to standard output at once. On a terminal, control characters of a model's text are made harmless.

    Raises UserError where it is closed, OSError where it takes no more.
    """
    check_output()
    if text:
        sys.stdout.write(text.translate(_CONTROLS) if sys.stdout.isatty() else text)
        sys.stdout.flush()


def note(line: str) -> None:
    """One line on standard error, if anybody can be told."""
    if sys.stderr is not None:
        with suppress(OSError):
            sys.stderr.write(line + "\n")
            sys.stderr.flush()


def can_redraw() -> bool:
    """Whether standard error is a terminal on which a line can be written over."""
    return sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


class Waiting:
    """Says on a terminal's standard error what is being waited for, once that takes over a second.

    The line counts the seconds and is wiped at the end. Logs and pipes get nothing, or, after `plain_after_s` seconds,
    one plain line. `text` may be a function that says how far things are.
    """

    def __init__(self, text: str | Callable[[], str], after_s: float = 1.0, plain_after_s: float | None = None) -> None:
        self._text = text
        self._after_s = after_s
        self._plain_after_s = plain_after_s
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._show, daemon=True)

    def __enter__(self) -> Waiting:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends and wipes the line; may be called twice."""
        self._done.set()
        self._thread.join()

    def _now(self) -> str:
        return self._text if isinstance(self._text, str) else self._text()

    def _show(self) -> None:
        start = time.monotonic()
        if not can_redraw():
            if self._plain_after_s is not None and not self._done.wait(self._plain_after_s):
                note(f"mini-infer: {self._now()}")
            return
        if self._done.wait(self._after_s):
            return
        with suppress(OSError):
            while True:
                sys.stderr.write(f"\r\x1b[K{self._now()} … {time.monotonic() - start:.0f} s")
                sys.stderr.flush()
                if self._done.wait(0.5):
                    break
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
