"""Servers for the load generator: one whose bytes and times are written down, and a real one on a loopback port."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx

from mini_infer.load.records import Ask, Message

T = TypeVar("T")

HELLO = Ask(messages=(Message("user", "Hello"),), max_tokens=10)


def in_loop(main: Callable[[], Awaitable[T]], limit_s: float = 60.0) -> T:
    """Run a coroutine function in a loop of its own; a hang is a failure."""

    async def limited() -> T:
        return await asyncio.wait_for(main(), limit_s)

    return asyncio.run(limited())


# --- events ---------------------------------------------------------------------------------------------------------


def event(value: object) -> bytes:
    return b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"


def role() -> bytes:
    return event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})


def text(said: str, **more: Any) -> bytes:
    return event({"choices": [{"index": 0, "delta": {"content": said}, "finish_reason": None, **more}]})


def finish(reason: str = "stop") -> bytes:
    return event({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})


def usage(completion: int, prompt: int = 5, cached: int = 0) -> bytes:
    details = {"cached_tokens": cached}
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "prompt_tokens_details": details}
    return event({"choices": [], "usage": counts})


DONE = event(b"[DONE]")


def answer(*texts: str, reason: str = "length") -> list[bytes]:
    return [role(), *map(text, texts), finish(reason), usage(len(texts)), DONE]


# --- bytes with the times written on them ---------------------------------------------------------------------------


@dataclass
class Script(httpx.AsyncBaseTransport):
    """A transport that gives written bytes at written times, and is the clock that says so.

    Each answer is (status, [(seconds after the request, bytes or an exception)]); they are given in turn.
    """

    answers: list[tuple[int, list[tuple[float, bytes | Exception]]]]
    now: float = 100.0
    asked: list[dict[str, Any]] = field(default_factory=list)

    def clock(self) -> float:
        return self.now

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(json.loads(request.content))
        status, parts = self.answers[(len(self.asked) - 1) % len(self.answers)]
        kind = "text/event-stream" if status == 200 else "application/json"
        start = self.now

        async def arrivals() -> AsyncIterator[tuple[float, bytes]]:
            for after, data in parts:
                self.now = start + after
                if isinstance(data, Exception):
                    raise data
                yield self.now, data

        class Body(httpx.AsyncByteStream):
            async def __aiter__(self) -> AsyncIterator[bytes]:
                async for _, data in arrivals():
                    yield data

        extensions = {"arrivals": arrivals()}
        return httpx.Response(status, headers={"content-type": kind}, stream=Body(), extensions=extensions)


def timed(first_s: float, gap_s: float, *texts: str) -> list[tuple[float, bytes | Exception]]:
    """An answer whose role comes at once, its first text after `first_s`, the others `gap_s` apart."""
    parts: list[tuple[float, bytes | Exception]] = [(0.01, role())]
    parts += [(first_s + i * gap_s, text(said)) for i, said in enumerate(texts)]
    last = parts[-1][0]
    return [*parts, (last, finish()), (last, usage(len(texts))), (last, DONE)]


# --- a server on a loopback port ------------------------------------------------------------------------------------


class Connection:
    """What a handler writes its answer to."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer = writer

    async def raw(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def start(self, status: str = "200 OK", kind: str = "text/event-stream") -> None:
        head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n"
        await self.raw(head.encode())

    async def chunk(self, data: bytes) -> None:
        await self.raw(b"%x\r\n%s\r\n" % (len(data), data))

    async def end(self) -> None:
        await self.raw(b"0\r\n\r\n")

    async def stream(self, events: Iterable[bytes]) -> None:
        await self.start()
        for data in events:
            await self.chunk(data)
        await self.end()

    async def json(self, value: object, status: str = "200 OK") -> None:
        data = json.dumps(value).encode()
        head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        await self.raw(head.encode() + data)

    async def text(self, said: str) -> None:
        data = said.encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {len(data)}\r\n\r\n"
        await self.raw(head.encode() + data)

    def hang_up(self) -> None:
        self.writer.transport.abort()


@dataclass
class Request:
    number: int  # of all requests for text
    method: str
    path: str
    body: dict[str, Any]
    at: float  # when it came


Handler = Callable[[Request, Connection], Awaitable[None]]


@dataclass
class Served:
    """A server that runs. `peak` is the most requests it answered at once."""

    url: str = ""
    requests: list[Request] = field(default_factory=list)
    connections: int = 0
    generations: int = 0
    running: int = 0
    peak: int = 0

    def asked(self, path: str = "/chat/completions") -> list[Request]:
        return [r for r in self.requests if r.path.endswith(path)]


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[Served]:
    """Hands every request to `handler`; what it does not write to is a 404."""
    served = Served()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                at = time.perf_counter()
                method, path, _ = head.split(" ", 2)
                length = next(
                    (int(x.split(":")[1]) for x in head.split("\r\n") if x.lower().startswith("content-length:")), 0
                )
                body = json.loads(await reader.readexactly(length)) if length else {}
                request = Request(served.generations, method, path, body, at)
                served.generations += path.endswith("completions")
                served.requests.append(request)
                served.running += 1
                served.peak = max(served.peak, served.running)
                try:
                    await handler(request, Connection(writer))
                finally:
                    served.running -= 1
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    served.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield served
    finally:
        server.close()
