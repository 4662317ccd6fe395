"""Server-sent events as OpenAI clients read them.

Events end with two line feeds (some clients split on nothing else), each is one write, and the JSON in them holds none
of the characters that some clients take for the end of a line. There is no `id:`, no `retry:` and no named event.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any, Protocol

from litestar.response.base import ASGIResponse
from litestar.types import Receive, Scope, Send
from msgspec.json import Encoder

from mini_infer.api.errors import ApiError, ClientGone, shutting_down
from mini_infer.response_stream import ResponseStream
from mini_infer.results import Chunk

log = logging.getLogger("mini_infer")

DONE = b"data: [DONE]\n\n"
KEEPALIVE = b": still working\n\n"
HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no", "content-type": "text/event-stream; charset=utf-8"}

_encode = Encoder().encode
_LINE_ENDS = ((b"\xc2\x85", b"\\u0085"), (b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"))


def frame(value: Any) -> bytes:
    """One event with this value as its JSON."""
    return raw_frame(_encode(value))


def raw_frame(data: bytes) -> bytes:
    for char, escape in _LINE_ENDS:
        if char in data:
            data = data.replace(char, escape)
    return b"data: %b\n\n" % data


class Writer(Protocol):
    """Turns what the engine says into values to be sent, merging what came together."""

    @property
    def is_done(self) -> bool:
        """Every answer has ended."""

    @property
    def failure(self) -> ApiError | None:
        """Why no more can come, if an answer failed."""

    def write(self, chunks: list[Chunk]) -> list[Any]:
        """The values of the events."""

    def end(self) -> list[Any]:
        """What follows the last answer."""


async def gone(receive: Receive) -> None:
    """Returns when the client has closed the connection. The body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


@asynccontextmanager
async def closed_when_gone(stream: ResponseStream, receive: Receive) -> AsyncIterator[None]:
    """Aborts the request as soon as its client is gone, and in any case at the end."""

    async def watch() -> None:
        await gone(receive)
        stream.close()

    watcher = asyncio.create_task(watch())
    try:
        yield
    finally:
        stream.close()
        watcher.cancel()


class EventStream(ASGIResponse):
    """Sends a stream's events while they come. The abort on a disconnect depends neither on the garbage collector nor
    on this having started to send.

    A client that reads slowly gets what has come meanwhile as one event. Errors become a frame, and `[DONE]` follows
    whatever happens. `send` raises ClientGone for a client that reads nothing at all.
    """

    __slots__ = ("keepalive", "on_abort", "stream", "writer")

    _should_set_content_length = False

    def __init__(
        self,
        stream: ResponseStream,
        writer: Writer,
        *,
        keepalive: float,
        on_abort: Callable[[str], None],
        headers: dict[str, str],
    ) -> None:
        super().__init__(headers=HEADERS | headers, media_type="text/event-stream")
        self.stream = stream
        self.writer = writer
        self.keepalive = keepalive or None
        self.on_abort = on_abort

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def put(data: bytes, *, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": more})

        async with closed_when_gone(self.stream, receive):
            try:
                await self.start_response(send)
                async with aclosing(self._events()) as events:
                    async for data in events:
                        await put(data)
                await put(b"", more=False)
            except ClientGone:
                self._note(scope, "disconnect")
            except asyncio.CancelledError:  # the server ends, and its grace is over
                self._note(scope, "shutdown")
                await put(raw_frame(shutting_down().body) + DONE, more=False)
                raise

    async def _events(self) -> AsyncGenerator[bytes, None]:
        try:
            while True:
                try:
                    async with asyncio.timeout(self.keepalive):
                        chunks = await self.stream.read()
                except TimeoutError:
                    yield KEEPALIVE
                    continue
                if not chunks:  # the stream was closed
                    raise ClientGone
                for value in self.writer.write(chunks):
                    yield frame(value)
                if self.writer.failure is not None:
                    raise self.writer.failure
                if self.writer.is_done:
                    break
            for value in self.writer.end():
                yield frame(value)
        except ApiError as error:
            yield raw_frame(error.body)
        except (ClientGone, asyncio.CancelledError, GeneratorExit):
            raise
        except Exception as error:
            log.error("an answer could not be written", exc_info=error)
            yield raw_frame(ApiError(500, "internal_error", f"the server failed: {type(error).__name__}").body)
        yield DONE

    def _note(self, scope: Scope, reason: str) -> None:
        self.on_abort(scope["state"].setdefault("outcome", reason))
