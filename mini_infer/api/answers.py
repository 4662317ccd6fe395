"""From a checked request to its answer: submitted, watched, and written as one object or as a stream.

Chat and completions differ only in their `Shape`: what one piece of news looks like in JSON.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol
from uuid import uuid4

from litestar.response.base import ASGIResponse
from msgspec.json import Encoder

from mini_infer.api.errors import ApiError, ClientGone, bad, engine_failed, shutting_down
from mini_infer.api.request import ApiRequest
from mini_infer.api.schemas import Generation, PromptTokensDetails, TimingsInfo, UsageInfo
from mini_infer.api.serving import Serving
from mini_infer.api.sse import EventStream, closed_when_gone
from mini_infer.intake import ContextLengthError
from mini_infer.observe.events import TokenLogprob
from mini_infer.response_stream import ResponseStream
from mini_infer.results import Chunk, GenerationResult
from mini_infer.sampling.params import SamplingParams

_encode = Encoder().encode

_SAMPLING = (
    "temperature top_p top_k min_p repetition_penalty presence_penalty frequency_penalty logit_bias seed n "
    "min_tokens stop stop_token_ids ignore_eos"
).split()

_MOST = {"stop": 4_096, "stop_token_ids": 10_000, "logit_bias": 10_000, "cache_salt": 1_024}
"""Sizes (characters or entries) beyond which a request would cost others time."""

MAX_PRIORITY = 1_000_000


Delivered = Callable[[Sequence[Chunk]], None]
"""Told of chunks when they are read."""


@dataclass(slots=True)
class Piece:
    """News of one choice, ready to be shown. `reason` and `stop` come with its last piece."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    begins: bool = False
    reason: str | None = None
    stop: str | int | None = None


class Shape(Protocol):
    """How answers look on one route."""

    def chunks(self, piece: Piece) -> Iterable[Any]:
        """The choices of the events that show this piece, one for each event."""

    def event(self, choices: list[Any], **more: Any) -> Any:
        """An event with these choices; `usage` and `timings` where they belong in it."""

    def whole(self, pieces: Sequence[Piece], usage: UsageInfo, **more: Any) -> Any:
        """The whole answer, from one complete piece per choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What all parts of one answer have in common."""

    id: str
    created: int
    model: str
    system_fingerprint: str

    @classmethod
    def new(cls, serving: Serving, prefix: str) -> Head:
        return cls(
            id=f"{prefix}-{uuid4().hex}",
            created=int(time.time()),
            model=serving.names.served,
            system_fingerprint=serving.fingerprint,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A generation request, checked and encoded."""

    prompts: Sequence[Sequence[int]]
    params: SamplingParams
    asked: Generation

    @property
    def choices(self) -> int:
        return len(self.prompts) * self.params.n


def longest_answer(asked: Generation) -> int | None:
    """In tokens, under its newer name or its older one. Raises ApiError where either is not above 0."""
    for name in ("max_completion_tokens", "max_tokens"):
        value = getattr(asked, name)
        if value is not None and value < 1:
            raise bad(f"{name} must be at least 1, not {value}", name)
    return asked.max_tokens if asked.max_completion_tokens is None else asked.max_completion_tokens


def sampling_params(
    asked: Generation, serving: Serving, max_tokens: int | None, logprobs: int | None
) -> SamplingParams:
    """Raises ApiError or UserError naming the parameter."""
    if asked.n is not None and asked.n > serving.options.max_n:
        raise bad(f"n must be at most {serving.options.max_n} on this server, not {asked.n}", "n")
    if asked.stream_options is not None and not asked.stream:
        raise bad("stream_options is only for streams: set stream to true, or leave it out", "stream_options")
    if asked.priority is not None and not 0 <= asked.priority <= MAX_PRIORITY:  # below 0, one could push others back
        allowed = f"from 0 (the default, which goes first) to {MAX_PRIORITY}"
        raise bad(f"priority must be {allowed}, not {asked.priority}", "priority")
    for name, most in _MOST.items():
        size = len(getattr(asked, name) or ())
        if name == "stop" and isinstance(asked.stop, list):
            size = sum(map(len, asked.stop))
        if size > most:
            raise bad(f"{name} must be at most {most} long in all, not {size}", name)
    values = {name: getattr(asked, name) for name in _SAMPLING}
    return SamplingParams(**values, max_tokens=max_tokens, logprobs=logprobs)


async def submit(serving: Serving, call: Call) -> ResponseStream:
    """Put a call into the engine's queue. Raises what `EngineService.submit` raises.

    What can never fit is refused here: the engine's thread is not for reading a million ids.
    """
    longest = max(map(len, call.prompts))
    if longest >= (limit := serving.engine.max_model_len):
        raise ContextLengthError("the prompt is too long", longest, limit)
    salt, priority = call.asked.cache_salt or "", call.asked.priority or 0
    return await serving.service.submit_all(call.prompts, call.params, priority=priority, cache_salt=salt)


async def answer(
    request: ApiRequest, serving: Serving, call: Call, shape: Shape, stream: ResponseStream
) -> ASGIResponse:
    """The answer in the form the client asked for. Raises ApiError where it fails, ClientGone."""
    if call.asked.stream:
        return EventStream(
            stream,
            EventWriter(call, shape, serving.http.delivered),
            keepalive=serving.options.sse_keepalive,
            on_abort=serving.http.aborted,
            headers=request.notes,
        )
    try:
        async with closed_when_gone(stream, request.receive):
            body = _encode(await _whole(stream, call, shape, serving.http.delivered))
    except ClientGone:
        serving.http.aborted("disconnect")
        raise
    return ASGIResponse(body=body, headers=request.notes, media_type="application/json")


async def _whole(stream: ResponseStream, call: Call, shape: Shape, delivered: Delivered) -> Any:
    merger = Merger(call, delivered)
    while not merger.is_done:
        chunks = await stream.read()
        if not chunks:
            raise ClientGone
        merger.take(chunks)
        if merger.failure is not None:
            raise merger.failure
    pieces = [merger.pending[i] for i in range(call.choices)]
    return shape.whole(pieces, usage(merger.results.values()), **timings(merger.results))


class Merger:
    """Gathers chunks by choice. Text, ids and log-probabilities wait here together until there is text to show."""

    def __init__(self, call: Call, delivered: Delivered) -> None:
        self.pending = {index: Piece(index, begins=True) for index in range(call.choices)}
        self.results: dict[int, GenerationResult] = {}  # by prompt
        self.failure: ApiError | None = None
        self._call = call
        self._delivered = delivered

    @property
    def is_done(self) -> bool:
        return len(self.results) == len(self._call.prompts)

    def take(self, chunks: Sequence[Chunk]) -> list[Piece]:
        """The pieces that got news, up to a failure."""
        self._delivered(chunks)
        touched: dict[int, Piece] = {}
        for chunk in chunks:
            if chunk.finish_reason == "error":
                self.failure = engine_failed(f"the engine failed on this request: {chunk.error}")
                break
            if chunk.finish_reason == "abort":  # and not by us: nobody reads a stream that was closed
                self.failure = shutting_down()
                break
            index = chunk.prompt * self._call.params.n + chunk.index
            piece = touched[index] = self.pending[index]
            piece.text += chunk.text
            piece.token_ids += chunk.token_ids
            piece.logprobs += chunk.logprobs
            if chunk.finish_reason is not None:
                self._finish(piece, chunk)
            if chunk.result is not None:
                self.results[chunk.prompt] = chunk.result
        return list(touched.values())

    def _finish(self, piece: Piece, chunk: Chunk) -> None:
        """`stop` is for what the client itself asked to stop at: the model's own end is no news."""
        piece.reason = chunk.finish_reason
        if isinstance(chunk.stop, str) or chunk.stop in self._call.params.stop_token_ids:
            piece.stop = chunk.stop
        if isinstance(chunk.stop, str) and self._call.asked.include_stop_str_in_output:
            piece.text += chunk.stop


class EventWriter:
    """The events of one stream: a `Writer`."""

    def __init__(self, call: Call, shape: Shape, delivered: Delivered) -> None:
        options = call.asked.stream_options
        self._merger = Merger(call, delivered)
        self._shape = shape
        self._prompt_tokens = sum(map(len, call.prompts))
        self._sent = 0  # tokens
        self._wants_usage = bool(options and options.include_usage)
        self._wants_progress = bool(options and options.continuous_usage_stats)

    @property
    def is_done(self) -> bool:
        return self._merger.is_done

    @property
    def failure(self) -> ApiError | None:
        return self._merger.failure

    def write(self, chunks: list[Chunk]) -> list[Any]:
        events = []
        for piece in self._merger.take(chunks):
            shown = list(self._shape.chunks(piece))
            if piece.text or piece.reason:
                self._sent += len(piece.token_ids)
                self._merger.pending[piece.index] = Piece(piece.index)
            elif shown:
                piece.begins = False
            events += [[choice] for choice in shown]
        last = timings(self._merger.results) if self.is_done else {}
        return [
            self._shape.event(choices, **self._progress(), **(last if number == len(events) else {}))
            for number, choices in enumerate(events, start=1)
        ]

    def _progress(self) -> dict[str, Any]:
        if self._wants_progress:
            return {"usage": _usage(self._prompt_tokens, self._sent, 0)}
        return {"usage": None} if self._wants_usage else {}

    def end(self) -> list[Any]:
        return [self._shape.event([], usage=usage(self._merger.results.values()))] if self._wants_usage else []


def usage(results: Iterable[GenerationResult]) -> UsageInfo:
    """Each prompt once, however many answers it has."""
    each = [result.usage for result in results]
    prompt, completion = sum(u.prompt_tokens for u in each), sum(u.completion_tokens for u in each)
    return _usage(prompt, completion, sum(u.cached_tokens for u in each))


def _usage(prompt: int, completion: int, cached: int) -> UsageInfo:
    return UsageInfo(prompt, completion, prompt + completion, PromptTokensDetails(cached))


def timings(results: dict[int, GenerationResult]) -> dict[str, TimingsInfo]:
    """The times of a single prompt, as a keyword; nothing where several were answered at once."""
    if len(results) != 1:
        return {}
    result = results[0]
    times, counts = result.timings, result.usage
    queued = times.queued_s or 0.0
    first = times.total_s if times.ttft_s is None else times.ttft_s
    prompt_s, predicted_s = max(first - queued, 0.0), max(times.total_s - first, 0.0)
    computed = counts.prompt_tokens - counts.cached_tokens
    drafted = {"draft_n": counts.drafted, "draft_n_accepted": counts.accepted} if counts.rounds else {}
    ms = partial(round, ndigits=3)
    shown = TimingsInfo(
        queued_ms=ms(1e3 * queued),
        prompt_n=computed,
        cache_n=counts.cached_tokens,
        prompt_ms=ms(1e3 * prompt_s),
        prompt_per_second=ms(computed / prompt_s) if prompt_s else None,
        predicted_n=counts.completion_tokens,
        predicted_ms=ms(1e3 * predicted_s),
        predicted_per_second=None if times.tokens_per_s is None else ms(times.tokens_per_s),
        **drafted,
    )
    return {"timings": shown}
