"""One HTTP/1.1 response out of bytes as they come (RFC 9112): plain, by length, in chunks, or until the end."""

from __future__ import annotations

import re
from typing import Literal

_HEAD_END = re.compile(rb"\r?\n\r?\n")
_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-9]\d\d)(?: .*)?")
MAX_HEAD = 65_536

State = Literal["head", "length", "size", "chunk", "chunk end", "trailer", "until closed", "complete"]


class BadResponse(ValueError):
    """What came is no HTTP/1.1 response."""


class ResponseReader:
    """Reads one response. `status` is 0 until its head has come; `is_complete` once all of it has."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.keep_alive = True
        self._state: State = "head"
        self._left = 0  # bytes of the body, or of the chunk
        self._buffer = b""

    @property
    def is_complete(self) -> bool:
        return self._state == "complete"

    @property
    def has_begun(self) -> bool:
        return bool(self.status or self._buffer)

    def feed(self, data: bytes) -> bytes:
        """The part of the body in these bytes. Raises BadResponse."""
        self._buffer = self._buffer + data if self._buffer else data
        body: list[bytes] = []
        while self._buffer and not self.is_complete and self._step(body):
            pass
        return body[0] if len(body) == 1 else b"".join(body)

    def eof(self) -> None:
        """The connection has ended. Raises BadResponse where the response has not."""
        self.keep_alive = False
        if self._state == "until closed":
            self._state = "complete"
        elif not self.is_complete:
            raise BadResponse("the connection ended within an answer" if self.status else "the connection ended")

    def _step(self, body: list[bytes]) -> bool:
        """One piece of the buffer; False where it needs more bytes."""
        match self._state:
            case "head":
                return self._head()
            case "until closed":
                body.append(self._take(len(self._buffer)))
            case "length" | "chunk":
                body.append(part := self._take(self._left))
                self._left -= len(part)
                if not self._left:
                    self._state = "complete" if self._state == "length" else "chunk end"
            case "size":
                line = self._line()
                if line is None:
                    return False
                try:
                    self._left = int(line.partition(b";")[0].strip(), 16)
                except ValueError:
                    raise BadResponse(f"bad size of a chunk: {line[:40]!r}") from None
                self._state = "chunk" if self._left else "trailer"
            case "chunk end":
                line = self._line()
                if line is None:
                    return False
                if line:
                    raise BadResponse("a chunk is longer than it says")
                self._state = "size"
            case "trailer":
                line = self._line()
                if line is None:
                    return False
                if not line:
                    self._state = "complete"
        return True

    def _take(self, count: int) -> bytes:
        part, self._buffer = self._buffer[:count], self._buffer[count:]
        return part

    def _line(self) -> bytes | None:
        end = self._buffer.find(b"\n")
        if end < 0:
            if len(self._buffer) > MAX_HEAD:
                raise BadResponse("a line of the framing has no end")
            return None
        return self._take(end + 1).rstrip(b"\r\n")

    def _head(self) -> bool:
        end = _HEAD_END.search(self._buffer)
        if end is None:
            if len(self._buffer) > MAX_HEAD or not b"HTTP/1.".startswith(self._buffer[:7]):
                raise BadResponse("this is no HTTP/1.1 server")
            return False
        lines = self._buffer[: end.start()].split(b"\n")
        self._buffer = self._buffer[end.end() :]
        first = _STATUS.fullmatch(lines[0].strip())
        if first is None:
            raise BadResponse("this is no HTTP/1.1 server")
        status = int(first[2])
        if status < 200:  # 100 Continue and its like come before the answer
            return True
        pairs = [line.partition(b":") for line in lines[1:]]
        self.headers = [(name.strip(), value.strip()) for name, _, value in pairs if name.strip()]
        self.status = status
        self._frame({name.lower(): value.lower() for name, value in self.headers}, is_new=first[1] == b"1")
        return True

    def _frame(self, headers: dict[bytes, bytes], *, is_new: bool) -> None:
        connection = headers.get(b"connection", b"")
        self.keep_alive = b"close" not in connection and (is_new or b"keep-alive" in connection)
        if self.status in (204, 304):
            self._state = "complete"
        elif b"chunked" in headers.get(b"transfer-encoding", b""):
            self._state = "size"
        elif b"content-length" in headers:
            try:
                self._left = int(headers[b"content-length"])
            except ValueError:
                raise BadResponse(f"bad content-length: {headers[b'content-length'][:40]!r}") from None
            self._state = "length" if self._left else "complete"
        else:
            self._state, self.keep_alive = "until closed", False
