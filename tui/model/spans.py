"""Which token gave which part of an answer's text.

The text comes late and in other pieces than the tokens: a character may take several tokens, a possible stop string is
held back, and control tokens show nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class TextSpan(NamedTuple):
    """A stretch of an answer's text and the (first) token that gave it, as an index into the output."""

    text: str
    token: int
    seq: int  # of the report it came in


class Aligner:
    """Takes tokens and text of one answer as they come."""

    def __init__(self, count: int = 0) -> None:
        self._waiting: deque[tuple[int, str]] = deque()  # (index, its own text) of tokens whose text has not come
        self._count = count

    def add(self, tokens: Sequence[int], text: str, seq: int, pieces: Mapping[int, str]) -> list[TextSpan]:
        """The spans of a report's text delta."""
        for token in tokens:
            self._waiting.append((self._count, pieces.get(token, "")))
            self._count += 1
        spans: list[TextSpan] = []
        while text:
            if not self._waiting:
                spans.append(TextSpan(text, max(0, self._count - 1), seq))
                break
            index, piece = self._waiting.popleft()
            if not (piece and text.startswith(piece)):
                piece = self._up_to_next(text)
            if piece:
                spans.append(TextSpan(piece, index, seq))
            text = text[len(piece) :]
        return spans

    def _up_to_next(self, text: str) -> str:
        """The text before the first waiting token that is found in it (those between have none), else all of it."""
        for passed, (_, piece) in enumerate(self._waiting):
            at = text.find(piece) if piece else -1
            if at >= 0:
                for _ in range(passed):
                    self._waiting.popleft()
                return text[:at]
        self._waiting.clear()
        return text
