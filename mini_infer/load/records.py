"""What is asked and what came back: plain values, in seconds on one monotonic clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

Route = Literal["chat", "completions"]
Outcome = Literal["ok", "failed", "cancelled", "unfinished"]


class Message(Struct, frozen=True):
    role: str
    content: str


class Ask(Struct, frozen=True, kw_only=True):
    """One request, but for the model's name. `prompt` is a text or token ids; chat has `messages` in its place."""

    messages: tuple[Message, ...] = ()
    prompt: str | tuple[int, ...] | None = None
    max_tokens: int = 64
    ignore_eos: bool = False
    temperature: float | None = 0.0
    logprobs: int | None = None
    prompt_tokens: int | None = None
    """What the prompt's length must be, where that is known."""

    @property
    def route(self) -> Route:
        return "chat" if self.messages else "completions"

    def body(self, model: str) -> dict[str, object]:
        """The JSON to send: a stream, with usage at its end."""
        body: dict[str, object] = {"model": model, "max_tokens": self.max_tokens, "stream": True}
        body["stream_options"] = {"include_usage": True}
        if self.messages:
            body["messages"] = [{"role": m.role, "content": m.content} for m in self.messages]
        else:
            body["prompt"] = list(self.prompt) if isinstance(self.prompt, tuple) else self.prompt
        if self.temperature is not None:
            body["temperature"] = self.temperature
        if self.ignore_eos:
            body["ignore_eos"] = True
        if self.logprobs is not None:
            body |= {"logprobs": True, "top_logprobs": self.logprobs} if self.messages else {"logprobs": self.logprobs}
        return body


class Conversation(Struct, frozen=True):
    """A first request, and what the user says after each answer."""

    first: Ask
    more: tuple[str, ...] = ()

    @property
    def turns(self) -> int:
        return 1 + len(self.more)

    def ask(self, answers: Sequence[str]) -> Ask:
        """The request that follows these answers."""
        messages = list(self.first.messages)
        for answer, said in zip(answers, self.more, strict=False):
            messages += [Message("assistant", answer), Message("user", said)]
        return replace(self.first, messages=tuple(messages)) if answers else self.first


class Token(Struct, frozen=True):
    """A token of an answer with its log-probability, and the likeliest ones in its place."""

    text: str
    logprob: float
    top: dict[str, float]


class Record(Struct, frozen=True, kw_only=True):
    """One request and what became of it. All times are readings of the run's clock; None is what never happened.

    `scheduled` is when it should have been sent, `sent` when it was; `pieces` are the arrivals of text; `end` is the
    last byte. `tokens` are the server's own count, or the number of pieces where it gives none (`counted_by`).
    """

    number: int
    scheduled: float
    sent: float
    end: float
    pieces: tuple[float, ...] = ()
    outcome: Outcome = "ok"
    cause: str | None = None
    detail: str = ""
    finish_reason: str | None = None
    tokens: int = 0
    counted_by: Literal["usage", "pieces"] = "usage"
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    text: str = ""
    logprobs: tuple[Token, ...] = ()

    @property
    def is_ok(self) -> bool:
        return self.outcome == "ok"
