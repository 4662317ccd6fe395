"""What a caller gets: chunks while an answer is written, and the result when it is complete."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter

from mini_infer.observe.events import Finished, FinishReason, Output, StepReport, TokenLogprob, Usage


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds from submission. `ttft_s` and `tokens_per_s` are None where no (second) token came."""

    ttft_s: float | None
    total_s: float
    tokens_per_s: float | None  # (tokens - 1) / (last - first), of the whole request
    queued_s: float | None = None  # to the start of the step that first took it in; None where nobody looked


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the `n` answers to a prompt."""

    index: int
    text: str = ""
    token_ids: tuple[int, ...] = ()
    finish_reason: FinishReason | None = None
    stop: str | int | None = None  # the stop string or token id that ended it
    error: str | None = None
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """A complete answer. `text`, `token_ids`, `finish_reason`, `error` and `logprobs` are those of the first choice.

    `usage` counts the prompt once and the tokens of all choices.
    """

    choices: tuple[Choice, ...]
    usage: Usage
    timings: Timings
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.choices[0].token_ids

    @property
    def finish_reason(self) -> FinishReason | None:
        return self.choices[0].finish_reason

    @property
    def error(self) -> str | None:
        return self.choices[0].error

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...]:
        return self.choices[0].logprobs


@dataclass(frozen=True, slots=True)
class Chunk:
    """News of one choice. The last chunk of a request carries its `result`."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    result: GenerationResult | None = None
    prompt: int = 0  # which of the prompts that were submitted together
    stop: str | int | None = None  # with the finish reason: the stop string or token id that ended it
    error: str | None = None
    made: float = field(default_factory=perf_counter, compare=False, repr=False)  # when


@dataclass(slots=True)
class _Open:
    """One choice in the making."""

    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    closed: Choice | None = None
    usage: Usage | None = None


class Collector:
    """Gathers the outputs of one request. `add` gives the chunk of each, complete with the result at the end, once.

    `prompt`: its place among the requests that were submitted together.
    """

    def __init__(self, request_id: str, n: int, prompt: int = 0) -> None:
        self.request_id = request_id
        self.prompt = prompt
        self._choices = [_Open() for _ in range(n)]
        self._began = perf_counter()
        self._admitted: float | None = None
        self._first: float | None = None
        self._last: float | None = None
        self._prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
        self._complete = False

    def add(self, output: Output) -> Chunk:
        index = _index(output.seq_id)
        choice = self._choices[index]
        if output.token_ids:
            self._last = perf_counter()
            self._first = self._first or self._last
        choice.text.append(output.text)
        choice.token_ids += output.token_ids
        choice.logprobs += output.logprobs
        if output.prompt_logprobs is not None:
            self._prompt_logprobs = output.prompt_logprobs
        finished = output.finished
        if finished is not None:
            choice.usage = finished.usage
            choice.closed = Choice(
                index,
                "".join(choice.text),
                tuple(choice.token_ids),
                finished.reason,
                finished.stop,
                finished.error,
                tuple(choice.logprobs),
            )
            if self._first is None:
                self.failed(finished)  # ended before its fork: this one sequence stood for all choices
        result = None
        if not self._complete and all(c.closed for c in self._choices):
            self._complete, result = True, self.result()
        reason, stop, error = (finished.reason, finished.stop, finished.error) if finished else (None, None, None)
        return Chunk(index, output.text, output.token_ids, reason, output.logprobs, result, self.prompt, stop, error)

    def admitted(self, t: float) -> None:
        """The step that began at `t` (of `perf_counter`) took the request in for the first time."""
        self._admitted = t

    def failed(self, end: Finished) -> GenerationResult:
        """Close every choice that is open with this end."""
        for index, choice in enumerate(self._choices):
            if choice.closed is None:
                text, ids, logprobs = "".join(choice.text), tuple(choice.token_ids), tuple(choice.logprobs)
                choice.closed = Choice(index, text, ids, end.reason, error=end.error, logprobs=logprobs)
        return self.result()

    def result(self) -> GenerationResult:
        """The answer so far: choices that have not ended have no finish reason."""
        choices = tuple(
            c.closed or Choice(i, "".join(c.text), tuple(c.token_ids), logprobs=tuple(c.logprobs))
            for i, c in enumerate(self._choices)
        )
        tokens = sum(len(c.token_ids) for c in choices)
        spread = (self._last or 0.0) - (self._first or 0.0)
        return GenerationResult(
            choices=choices,
            usage=_sum([c.usage for c in self._choices if c.usage is not None], tokens),
            timings=Timings(
                ttft_s=None if self._first is None else self._first - self._began,
                total_s=perf_counter() - self._began,
                tokens_per_s=(tokens - 1) / spread if tokens > 1 and spread > 0 else None,
                queued_s=None if self._admitted is None else max(0.0, self._admitted - self._began),
            ),
            prompt_logprobs=self._prompt_logprobs,
        )


def _index(seq_id: str) -> int:
    """The choice behind a sequence id: 0 for a plain request id, i for `id/i`."""
    _, slash, index = seq_id.rpartition("/")
    return int(index) if slash else 0


def request_of(seq_id: str) -> str:
    """The request behind a sequence id."""
    return seq_id.partition("/")[0]


def by_request(report: StepReport) -> dict[str, list[Output]]:
    """A report's outputs, by request."""
    result: dict[str, list[Output]] = {}
    for output in report.outputs:
        result.setdefault(request_of(output.seq_id), []).append(output)
    return result


def _sum(usages: list[Usage], completion_tokens: int) -> Usage:
    """The usage of a request: its prompt once, everything else over all its choices."""
    if not usages:
        return Usage(0, completion_tokens)
    first = usages[0]
    return Usage(
        prompt_tokens=first.prompt_tokens,
        completion_tokens=completion_tokens,
        cached_tokens=first.cached_tokens,
        preemptions=sum(u.preemptions for u in usages),
        recomputed_tokens=sum(u.recomputed_tokens for u in usages),
        steps=sum(u.steps for u in usages),
        rounds=sum(u.rounds for u in usages),
        drafted=sum(u.drafted for u in usages),
        accepted=sum(u.accepted for u in usages),
        accepted_by_position=_add([u.accepted_by_position for u in usages]),
        judged_by_position=_add([u.judged_by_position for u in usages]),
        off_reason=next((u.off_reason for u in usages if u.off_reason is not None), None),
    )


def _add(rows: list[tuple[int, ...]]) -> tuple[int, ...]:
    width = max(map(len, rows), default=0)
    return tuple(sum(r[i] for r in rows if i < len(r)) for i in range(width))
