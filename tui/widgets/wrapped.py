"""Word wrap for text that grows at its end: each token is laid out once."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rich.cells import split_text

from tui.text import safe, width

Piece = tuple[str, int]
"""Text without line ends, and the token (any number) it came from."""

_PARTS = re.compile(r"\n| +|[^\n ]+")


class Wrapped:
    """Lines of at most `cells` cells. `feed` appends; `lines` can be read at any time."""

    def __init__(self, cells: int) -> None:
        self.cells = max(1, cells)
        self._done: list[list[Piece]] = []
        self._line: list[Piece] = []
        self._used = 0
        self._word: list[Piece] = []
        self._word_cells = 0

    def feed(self, text: str, token: int = 0) -> None:
        """More text; line ends are kept, everything else that could move a cursor is made harmless."""
        for part in _PARTS.findall(safe(text)):
            if part == "\n":
                self._flush()
                self._break()
            elif part[0] == " ":
                self._flush()
                room = min(len(part), self.cells - self._used)
                if room:
                    self._line.append((" " * room, token))
                    self._used += room
            else:
                self._word.append((part, token))
                self._word_cells += width(part)

    def _flush(self) -> None:
        """Put the word into the line, or into the next one, or cut it where it is longer than any line."""
        if self._used and self._used + self._word_cells > self.cells:
            self._break()
        for text, token in self._word:
            while width(text) > self.cells - self._used:
                head, text = split_text(text, self.cells - self._used)
                if not head and not self._used:  # a wide character in a line of one cell
                    head, text = " ", text[1:]
                if head:
                    self._line.append((head, token))
                self._break()
            if text:
                self._line.append((text, token))
                self._used += width(text)
        self._word, self._word_cells = [], 0

    def _break(self) -> None:
        self._done.append(self._line)
        self._line, self._used = [], 0

    def lines(self) -> list[list[Piece]]:
        """All lines, the unfinished word included; it stays movable."""
        kept = (len(self._done), list(self._line), self._used, list(self._word), self._word_cells)
        self._flush()
        lines = [*self._done, self._line]
        count, self._line, self._used, self._word, self._word_cells = kept
        del self._done[count:]
        return lines


def wrap(text: str, cells: int) -> list[str]:
    """The lines of a whole text."""
    wrapped = Wrapped(cells)
    wrapped.feed(text)
    return [joined(line) for line in wrapped.lines()]


def joined(line: Iterable[Piece]) -> str:
    return "".join(text for text, _ in line)
