"""Standard output and standard error: the answer goes to the first, everything else to the second."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType

_CONTROLS = {code: chr(0xFFFD) for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}


def write(text: str) -> None:
    """Writes to standard output at once. On a terminal, control characters of a model's text are made harmless."""
    if sys.stdout is None or not text:  # closed by the caller, as with >&-
        return
    sys.stdout.write(text.translate(_CONTROLS) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def note(line: str) -> None:
    """One line on standard error."""
    if sys.stderr is not None:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()


class Waiting:
    """Says on a terminal's standard error what is being waited for, once that takes over a second.

    The line counts the seconds and is wiped at the end. Logs and pipes get nothing.
    """

    def __init__(self, text: str, after_s: float = 1.0) -> None:
        self.text = text
        self._after_s = after_s
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

    def _show(self) -> None:
        start = time.monotonic()
        if self._done.wait(self._after_s) or sys.stderr is None or not sys.stderr.isatty():
            return
        while True:
            sys.stderr.write(f"\r\x1b[K{self.text} … {time.monotonic() - start:.0f} s")
            sys.stderr.flush()
            if self._done.wait(0.5):
                break
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()
