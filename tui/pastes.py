"""Pastes that hold escape sequences.

Terminals bracket a paste with two sequences, and Textual's parser gathers what is between them; but an escape character
in the paste leads it out of the brackets, and what follows arrives as typed: a line end would send the message. Here
pastes lose their control characters before the parser sees them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from textual._xterm_parser import BRACKETED_PASTE_END as END
from textual._xterm_parser import BRACKETED_PASTE_START as START
from textual._xterm_parser import XTermParser
from textual.message import Message

_SEQUENCE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_BEGUN = re.compile(r"\x1b(\[[0-?]*[ -/]*)?\Z")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")  # all but tab and line ends


class PasteFilter:
    """Input as it comes in, in pieces of any size, with the control characters of pastes left out."""

    def __init__(self) -> None:
        self._inside = False
        self._tail = ""  # outside: the last of what was passed on, where a bracket may have begun
        self._held = ""  # inside: a sequence that is not whole yet, perhaps the end

    def feed(self, data: str) -> str:
        out = ""
        while data:
            if self._inside:
                body, end, data = (self._held + data).partition(END)
                begun = None if end else _BEGUN.search(body)
                self._held = begun[0] if begun else ""
                out += _CONTROL.sub("", _SEQUENCE.sub("", body.removesuffix(self._held))) + end
                self._inside = not end
                continue
            at = (self._tail + data).find(START)
            taken = len(data) if at < 0 else at + len(START) - len(self._tail)
            out, self._tail = out + data[:taken], (self._tail + data)[1 - len(START) :] if at < 0 else ""
            data, self._inside = data[taken:], at >= 0
        return out


class Parser(XTermParser):
    """Textual's, fed through a `PasteFilter`."""

    def __init__(self, debug: bool = False) -> None:
        self._pastes = PasteFilter()
        super().__init__(debug)

    def feed(self, data: str) -> Iterable[Message]:
        kept = self._pastes.feed(data)
        return super().feed(kept) if kept or not data else ()  # nothing at all means the end of the input


@contextmanager
def cleaned() -> Iterator[None]:
    """While open, drivers read the terminal with `Parser`. They look its name up in their own module."""
    if sys.platform == "win32":
        yield
        return
    from textual.drivers import linux_driver

    names, before = vars(linux_driver), vars(linux_driver)["XTermParser"]
    names["XTermParser"] = Parser
    try:
        yield
    finally:
        names["XTermParser"] = before
