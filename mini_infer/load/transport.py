"""An httpx transport of one connection, which stamps bytes with the time of their arrival.

A general pool costs more per piece of a stream than a token should (locks, timeouts, one task switch or more), and all
of that is added to what is measured. Here the event loop's own callback takes the time, before anything is parsed or
any task wakes, so that a busy client shows late in its own CPU figure and not in the server's latencies.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Callable

import httpx

from mini_infer.load.http1 import BadResponse, ResponseReader

Arrival = tuple[float, bytes]

IDLE_S = 4.0
"""Idle connections older than this are not used again: servers close them after 5 s and more."""


class _Connection(asyncio.Protocol):
    """One connection. Between two requests it has no reader."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.transport: asyncio.Transport | None = None
        self.reader = ResponseReader()
        self.ready: deque[Arrival] = deque()
        self.error: Exception | None = None
        self.idle_since = time.monotonic()
        self.is_lost = False
        self._waiter: asyncio.Future[None] | None = None
        self._heard = 0.0  # monotonic
        self._timer: asyncio.TimerHandle | None = None

    # --- the loop's callbacks ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        at = self.clock()
        self._heard = time.monotonic()
        try:
            body = self.reader.feed(data)
        except BadResponse as error:
            self._fail(httpx.RemoteProtocolError(str(error)))
            return
        if body or self.reader.is_complete:
            self.ready.append((at, body))
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = True
        if self.error is not None or self.reader.is_complete:
            return
        try:
            if error is not None:
                raise BadResponse(f"the connection broke ({error})")
            self.reader.eof()
            self.ready.append((self.clock(), b""))
        except BadResponse as reason:
            self.error = httpx.RemoteProtocolError(str(reason))
        self._wake()

    # --- the request's side -----------------------------------------------------------------------------------------

    def send(self, data: bytes, read_timeout: float | None) -> None:
        assert self.transport is not None
        self.reader, self.error = ResponseReader(), None
        self.ready.clear()
        self._heard = time.monotonic()
        if read_timeout is not None:
            self._arm(read_timeout, read_timeout)
        self.transport.write(data)

    def _arm(self, timeout: float, delay: float) -> None:
        """One timer per silence, not per read: it looks when the last byte came, and is set again."""

        def check() -> None:
            left = self._heard + timeout - time.monotonic()
            if left > 0:
                self._arm(timeout, left)
            else:
                self._fail(httpx.ReadTimeout(f"nothing came for {timeout:g} s"))

        self._timer = asyncio.get_running_loop().call_later(delay, check)

    async def wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, error: Exception) -> None:
        self.error = error
        self.close()
        self._wake()

    def rest(self) -> None:
        """The answer is over: the connection waits for the next request."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.idle_since = time.monotonic()

    def close(self) -> None:
        self.rest()
        self.is_lost = True
        if self.transport is not None:
            self.transport.abort()

    @property
    def is_usable(self) -> bool:
        fresh = time.monotonic() - self.idle_since < IDLE_S
        return fresh and not self.is_lost and self.reader.is_complete and self.reader.keep_alive


class _Body(httpx.AsyncByteStream):
    """The body of one response. `arrivals` is what the load generator reads; httpx itself reads the plain bytes."""

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection

    async def arrivals(self) -> AsyncIterator[Arrival]:
        connection = self._connection
        while True:
            while connection.ready:
                yield connection.ready.popleft()
            if connection.error is not None:
                raise connection.error
            if connection.reader.is_complete:
                return
            await connection.wait()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for _, data in self.arrivals():
            yield data

    async def aclose(self) -> None:
        """Whoever leaves in the middle of an answer hangs up."""
        connection = self._connection
        if connection.reader.is_complete and connection.reader.keep_alive:
            connection.rest()
        else:
            connection.close()


class SingleConnection(httpx.AsyncBaseTransport):
    """One connection, one request at a time. `response.extensions["arrivals"]` gives (time, bytes) as they come.

    `clock` gives the times, in seconds. The timeouts of connecting and of silence are httpx's own (`Timeout`).
    Raises httpx's exceptions. A kept connection that ends before the first byte of an answer is replaced once.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._connection: _Connection | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        data = _head(request) + await request.aread()
        timeouts = request.extensions.get("timeout", {})
        kept = self._connection is not None and self._connection.is_usable
        connection = await self._send(request, data, timeouts, fresh=not kept)
        if kept and connection.error is not None and not connection.reader.has_begun:
            if isinstance(connection.error, httpx.TimeoutException):
                raise connection.error
            connection = await self._send(request, data, timeouts, fresh=True)
        if connection.error is not None and not connection.reader.status:
            raise connection.error
        body = _Body(connection)
        extensions = {"http_version": b"HTTP/1.1", "arrivals": body.arrivals()}
        reader = connection.reader
        return httpx.Response(reader.status, headers=reader.headers, stream=body, extensions=extensions)

    async def _send(
        self, request: httpx.Request, data: bytes, timeouts: dict[str, float | None], *, fresh: bool
    ) -> _Connection:
        """Sends, and waits until the answer's head has come or the connection has failed."""
        if fresh:
            await self.aclose()
            self._connection = await _connect(request.url, self._clock, timeouts.get("connect"))
        connection = self._connection
        assert connection is not None
        try:
            connection.send(data, timeouts.get("read"))
            while not connection.reader.status and connection.error is None:
                await connection.wait()
        except BaseException:
            connection.close()
            raise
        return connection

    async def aclose(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


async def _connect(url: httpx.URL, clock: Callable[[], float], timeout: float | None) -> _Connection:
    secure = ssl.create_default_context() if url.scheme == "https" else None
    port = url.port or (443 if secure else 80)
    try:
        async with asyncio.timeout(timeout):
            loop = asyncio.get_running_loop()
            _, connection = await loop.create_connection(lambda: _Connection(clock), url.host, port, ssl=secure)
    except TimeoutError as error:
        raise httpx.ConnectTimeout(f"no connection to {url.host}:{port} within {timeout:g} s") from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise httpx.ConnectError(f"cannot connect to {url.host}:{port} ({reason})") from error
    return connection


def _head(request: httpx.Request) -> bytes:
    lines = [b" ".join((request.method.encode(), request.url.raw_path, b"HTTP/1.1"))]
    lines += [name + b": " + value for name, value in request.headers.raw]
    return b"\r\n".join(lines) + b"\r\n\r\n"
