"""One streamed answer, read chunk by chunk: text and its times, tokens, how it ended, what was wrong with it."""

from __future__ import annotations

from typing import Any

import msgspec

from mini_infer.load.records import Token

_decode = msgspec.json.Decoder().decode
_TEXTS = ("content", "reasoning_content", "reasoning")


class AnswerError(Exception):
    """An answer that cannot count. `cause` is one of a few words, `detail` what the server said."""

    def __init__(self, cause: str, detail: str = "") -> None:
        super().__init__(cause, detail)
        self.cause = cause
        self.detail = " ".join(detail.split())[:300]


class AnswerReader:
    """Takes the data of events with the times of their arrival.

    A role, an empty text, a finish reason or a usage chunk are no pieces: the first token is the first text
    (`content`, `reasoning_content` or a tool call). A usage in every chunk is cumulative: the last one stands.
    """

    def __init__(self) -> None:
        self.pieces: list[float] = []
        self.texts: list[str] = []
        self.logprobs: list[Token] = []
        self.finish_reason: str | None = None
        self.usage: dict[str, Any] | None = None
        self.timings: dict[str, Any] = {}
        self.is_done = False

    def take(self, at: float, data: bytes) -> bool:
        """Whether this event brought text. Raises AnswerError for one that is broken or says an error."""
        if data == b"[DONE]":
            self.is_done = True
            return False
        if self.is_done or not data.strip():
            return False
        try:
            chunk = _decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise AnswerError("malformed chunk", f"{error}: {data[:80].decode(errors='replace')}") from None
        if not isinstance(chunk, dict):
            raise AnswerError("malformed chunk", f"not an object: {data[:80].decode(errors='replace')}")
        if chunk.get("error"):
            raise AnswerError("error in stream", said(chunk["error"]))
        try:
            return self._chunk(at, chunk)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise AnswerError("malformed chunk", f"{error}: {data[:80].decode(errors='replace')}") from None

    def _chunk(self, at: float, chunk: dict[str, Any]) -> bool:
        if chunk.get("usage"):
            self.usage = chunk["usage"]
        if chunk.get("timings"):
            self.timings = chunk["timings"]
        has_text = False
        for choice in chunk.get("choices") or ():
            text = choice.get("text") or ""
            if delta := choice.get("delta"):
                text = "".join(delta.get(name) or "" for name in _TEXTS)
                has_text = has_text or bool(delta.get("tool_calls"))
            if text:
                self.texts.append(text)
                has_text = True
            if choice.get("finish_reason"):
                self.finish_reason = choice["finish_reason"]
            if choice.get("logprobs"):
                self.logprobs += _tokens(choice["logprobs"])
        if has_text:
            self.pieces.append(at)
        return has_text

    def check_end(self) -> None:
        """After the last byte. Raises AnswerError for a stream that was cut, or brought nothing."""
        if not self.is_done and self.finish_reason is None:
            raise AnswerError("cut", "the stream ended without [DONE] or a finish reason")
        if not self.pieces and not self.usage_count("completion_tokens"):
            raise AnswerError("empty", "the answer has neither text nor tokens")

    def usage_count(self, name: str) -> int | None:
        value = (self.usage or {}).get(name)
        return value if isinstance(value, int) else None

    @property
    def cached_tokens(self) -> int | None:
        details = (self.usage or {}).get("prompt_tokens_details")
        value = details.get("cached_tokens") if isinstance(details, dict) else None
        return value if isinstance(value, int) else None


def said(error: Any) -> str:
    """The words of an error object in any of the shapes servers give it."""
    if isinstance(error, dict):
        inner = error.get("error", error)
        if isinstance(inner, dict):
            return str(inner.get("message") or inner)
        return str(inner)
    return str(error)


def _tokens(shown: dict[str, Any]) -> list[Token]:
    """The log-probabilities of chat (`content`) or of completions (parallel lists)."""
    if "content" in shown:
        entries = shown["content"] or ()
        return [
            Token(e["token"], float(e["logprob"]), {t["token"]: float(t["logprob"]) for t in e.get("top_logprobs", ())})
            for e in entries
        ]
    tops = shown.get("top_logprobs") or [{}] * len(shown["tokens"])
    given = zip(shown["tokens"], shown["token_logprobs"], tops, strict=True)
    return [Token(text, float(value or 0.0), dict(top or {})) for text, value, top in given]
