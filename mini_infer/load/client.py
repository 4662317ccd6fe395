"""One client of an OpenAI-compatible server: asks, reads the stream, and says when each piece came.

Each has an httpx client and a connection of its own, and asks one thing at a time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec

from mini_infer.load.answer import AnswerError, AnswerReader, said
from mini_infer.load.records import Ask, Outcome, Record
from mini_infer.load.sse import EventParser
from mini_infer.load.transport import SingleConnection
from mini_infer.version import __version__

Clock = Callable[[], float]

CONNECT_S = 5.0
LINGER_S = 1.0
"""How long a body may stay open after `[DONE]`."""

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Target:
    """Where to send requests. `url` may end in /v1 or not; `timeout_s` is the longest silence that is borne."""

    url: str
    model: str = ""
    api_key: str | None = None
    timeout_s: float = 120.0

    @property
    def root(self) -> str:
        return self.url.rstrip("/").removesuffix("/v1").rstrip("/")

    def endpoint(self, route: str) -> str:
        return f"{self.root}/v1/{'chat/completions' if route == 'chat' else route}"


def http_client(target: Target, clock: Clock, transport: httpx.AsyncBaseTransport | None = None) -> httpx.AsyncClient:
    """An httpx client of one connection, deaf to proxy variables: they would capture even loopback."""
    headers = {"user-agent": f"mini-infer-load/{__version__}", "accept-encoding": "identity"}
    if target.api_key:
        headers["authorization"] = f"Bearer {target.api_key}"
    timeout = httpx.Timeout(target.timeout_s, connect=CONNECT_S)
    return httpx.AsyncClient(
        transport=transport or SingleConnection(clock), headers=headers, timeout=timeout, trust_env=False
    )


class Client:
    """Asks one request at a time. Use as an async context manager, or call `aclose`.

    `clock` gives seconds from a monotonic source. A request that is cancelled (`asyncio.CancelledError`) leaves its
    record in `unfinished`.
    """

    def __init__(
        self, target: Target, clock: Clock = time.perf_counter, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self.target = target
        self.unfinished: Record | None = None
        self._clock = clock
        self._http = http_client(target, clock, transport)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._http.aclose()

    async def ask(
        self,
        ask: Ask,
        number: int = 0,
        scheduled: float | None = None,
        *,
        on_piece: Callable[[float], object] | None = None,
        hang_up_after: int | None = None,
    ) -> Record:
        """The record of one request; failures are in it, never raised.

        `on_piece` hears the time of each piece. `hang_up_after` closes the connection after so many pieces, and with 0
        as soon as the answer begins.
        """
        self.unfinished = None
        body = _encode(ask.body(self.target.model))
        reader = AnswerReader()
        sent = self._clock()
        call = _Call(ask, number, sent if scheduled is None else scheduled, sent, reader, self._clock)
        try:
            await self._stream(call, body, on_piece or (lambda at: None), hang_up_after)
            return call.record()
        except AnswerError as error:
            return call.record("failed", error.cause, error.detail)
        except httpx.HTTPError as error:
            return call.record("failed", cause_of(error, begun=bool(reader.pieces)), str(error))
        except _HungUp:
            return call.record("cancelled")
        except asyncio.CancelledError:
            self.unfinished = call.record("unfinished")
            raise

    async def _stream(
        self, call: _Call, body: bytes, on_piece: Callable[[float], object], hang_up_after: int | None
    ) -> None:
        url = self.target.endpoint(call.ask.route)
        headers = {"content-type": "application/json", "accept": "text/event-stream"}
        async with self._http.stream("POST", url, content=body, headers=headers) as response:
            if response.status_code != 200:
                raise AnswerError(f"HTTP {response.status_code}", await _reason(response))
            kind = response.headers.get("content-type", "")
            if "json" in kind:
                raise AnswerError("not a stream", await _reason(response))
            if hang_up_after == 0:
                raise _HungUp
            parser, reader = EventParser(), call.reader
            linger: asyncio.Timeout | None = None
            try:
                async with asyncio.timeout(None) as linger:
                    async for at, data in response.extensions["arrivals"]:
                        call.end = at
                        for event in parser.feed(data):
                            if reader.take(at, event):
                                on_piece(at)
                                if hang_up_after is not None and len(reader.pieces) >= hang_up_after:
                                    raise _HungUp
                        if reader.is_done and linger.when() is None:
                            linger.reschedule(asyncio.get_running_loop().time() + LINGER_S)
            except TimeoutError:  # the server holds the connection open; the answer is over
                pass
            for event in parser.end():
                reader.take(call.end or self._clock(), event)
        reader.check_end()
        call.check_tokens()


class _HungUp(Exception):
    """We left on purpose."""


@dataclass(slots=True)
class _Call:
    """A request under way."""

    ask: Ask
    number: int
    scheduled: float
    sent: float
    reader: AnswerReader
    clock: Clock
    end: float | None = None

    def check_tokens(self) -> None:
        """Raises AnswerError where the server gave another number of tokens than the request allows."""
        tokens = self.reader.usage_count("completion_tokens")
        if tokens is not None and self.ask.ignore_eos and tokens != self.ask.max_tokens:
            raise AnswerError("wrong length", f"{tokens} tokens where exactly {self.ask.max_tokens} were asked for")
        prompt, wanted = self.reader.usage_count("prompt_tokens"), self.ask.prompt_tokens
        if prompt is not None and wanted is not None and prompt != wanted:
            raise AnswerError("wrong length", f"the server read {prompt} tokens of prompt where {wanted} were sent")

    def record(self, outcome: Outcome = "ok", cause: str | None = None, detail: str = "") -> Record:
        reader = self.reader
        tokens = reader.usage_count("completion_tokens") if outcome == "ok" else None
        return Record(
            number=self.number,
            scheduled=self.scheduled,
            sent=self.sent,
            end=self.clock() if self.end is None else self.end,
            pieces=tuple(reader.pieces),
            outcome=outcome,
            cause=cause,
            detail=detail,
            finish_reason=reader.finish_reason,
            tokens=len(reader.pieces) if tokens is None else tokens,
            counted_by="pieces" if tokens is None else "usage",
            prompt_tokens=reader.usage_count("prompt_tokens"),
            cached_tokens=reader.cached_tokens,
            drafted=_count(reader.timings, "draft_n"),
            accepted=_count(reader.timings, "draft_n_accepted"),
            text="".join(reader.texts),
            logprobs=tuple(reader.logprobs),
        )


def _count(table: dict[str, Any], name: str) -> int | None:
    value = table.get(name) if isinstance(table, dict) else None
    return value if isinstance(value, int) else None


def cause_of(error: httpx.HTTPError, *, begun: bool = False) -> str:
    """The word for a failure of the connection."""
    match error:
        case httpx.ConnectTimeout():
            return "connect timeout"
        case httpx.TimeoutException():
            return "timeout"
        case httpx.ConnectError():
            return "refused"
        case httpx.RemoteProtocolError():
            return "cut" if begun or "ended" in str(error) or "broke" in str(error) else "not HTTP"
        case _:
            return "cut" if begun else type(error).__name__


async def _reason(response: httpx.Response) -> str:
    """What the server says about a refusal."""
    data = await response.aread()
    try:
        return said(msgspec.json.decode(data))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return data[:300].decode(errors="replace")
