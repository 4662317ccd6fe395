"""Server-sent events out of bytes, however the network cut them.

Lines end at LF, CR or CRLF and nowhere else: U+2028 and its kind are legal inside JSON, and readers that split text
into lines break there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_END = re.compile(rb"\r\n|\n|\r")


class EventParser:
    """Takes bytes, gives the data of each complete event. Comments and fields other than `data` are skipped."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The data of the events that these bytes complete."""
        data = self._rest + data if self._rest else data
        start = 0
        for end in _END.finditer(data):
            if end[0] == b"\r" and end.end() == len(data):  # perhaps half of CRLF
                break
            line = data[start : end.start()]
            start = end.end()
            if line:
                self._take(line)
            elif self._data:
                yield self._event()
        self._rest = data[start:]

    def end(self) -> Iterator[bytes]:
        """The last event where the stream ended without the blank line that closes it."""
        if self._rest:
            self._take(self._rest.rstrip(b"\r"))
            self._rest = b""
        if self._data:
            yield self._event()

    def _take(self, line: bytes) -> None:
        if line.startswith(b"data:"):
            self._data.append(line[6:] if line[5:6] == b" " else line[5:])

    def _event(self) -> bytes:
        event = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
        self._data.clear()
        return event
