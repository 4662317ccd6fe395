"""Errors as OpenAI clients know them: one JSON shape, and for each fault the status their SDKs act on.

The SDKs try again after 408, 409, 429 and 5xx, so a request that can never succeed gets none of these.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from litestar.exceptions import HTTPException
from msgspec import DecodeError, Struct, ValidationError
from msgspec.json import Encoder

from mini_infer.errors import UserError
from mini_infer.intake import ContextLengthError
from mini_infer.service import ServiceStopped
from mini_infer.waiting_room import QueueFull

MAX_MESSAGE = 1000
"""Characters of an error's message: it may quote a client's own text."""

RETRY_AFTER_S = 1
"""What a full queue, a loading model and a shutdown tell the client to wait."""

_encode = Encoder().encode


class ErrorDetail(Struct, frozen=True):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(Struct, frozen=True):
    """The body of every answer that is not a success, and of the frame that ends a broken stream."""

    error: ErrorDetail


class ApiError(Exception):
    """A fault with its HTTP status. `param` names the field at fault, as in `messages.0.content`."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        kind: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.kind = kind or ("server_error" if status >= 500 else "invalid_request_error")
        self.headers = dict(headers or {})

    @property
    def body(self) -> bytes:
        message = str(self)
        if len(message) > MAX_MESSAGE:
            message = message[: MAX_MESSAGE - 1] + "…"
        return _encode(ErrorBody(ErrorDetail(message, self.kind, self.param, self.code)))


class ClientGone(Exception):
    """Nobody is there to read the answer."""


def bad(message: str, param: str | None, code: str = "invalid_value") -> ApiError:
    """A request that is wrong however often it is sent."""
    return ApiError(400, code, message, param=param)


def unavailable(code: str, message: str) -> ApiError:
    """The server cannot serve now; trying again can help."""
    return ApiError(503, code, message, headers={"retry-after": str(RETRY_AFTER_S)})


def queue_full(message: str) -> ApiError:
    headers = {"retry-after": str(RETRY_AFTER_S)}
    return ApiError(429, "queue_full", message, kind="rate_limit_error", headers=headers)


def engine_failed(message: str) -> ApiError:
    """The engine ended a request with an error. The answer was expensive, and the next would fail alike: no retry."""
    return ApiError(500, "internal_error", message, headers={"x-should-retry": "false"})


def shutting_down() -> ApiError:
    return unavailable("shutting_down", "the server is shutting down")


def as_api_error(error: Exception, fields: Iterable[str] = ()) -> ApiError:
    """Whatever a handler raised. `fields` are the names a message may blame."""
    match error:
        case ApiError():
            return error
        case ContextLengthError():
            param = "messages" if "messages" in fields else "prompt"
            return too_long(error.prompt_tokens, error.limit, param, by_cache=error.by_cache)
        case UserError():
            return bad(str(error), _blamed(str(error), {*fields} - {"model"}))  # a text may speak of the model itself
        case QueueFull():
            return queue_full(str(error))
        case ServiceStopped():
            return shutting_down()
        case HTTPException():
            return _framework(error)
    return ApiError(500, "internal_error", f"the server failed: {type(error).__name__}")


def from_decoding(error: DecodeError | RecursionError | UnicodeDecodeError, body: bytes) -> ApiError:
    """Why a body is not JSON, or not the JSON of the request: the field and what was expected."""
    text = str(error)
    if not isinstance(error, ValidationError):
        text = "nested too deeply" if isinstance(error, RecursionError) else text
        if ("truncated" in text or "surrogate" in text) and (
            half := _HALF_CHARACTER.search(body)
        ):  # the decoder misses the other half
            text = f"{half[0].decode()} is half a character: both halves of a surrogate pair must be there"
        return bad(f"the body is not valid JSON: {text}", None, "invalid_json")
    what, _, path = text.partition(" - at `")
    param = _dotted(path)
    if missing := re.search(r"missing required field `(\w+)`", what):
        param = ".".join(filter(None, (param, missing[1])))
        return bad(f"{param} is required", param, "missing_required_parameter")
    if not param:
        return bad(f"the body must be a JSON object: {what[:1].lower()}{what[1:]}", None, "invalid_json")
    code = "invalid_type" if "got" in what else "invalid_value"
    return bad(f"{param}: {what[:1].lower()}{what[1:]}", param, code)


_HALF_CHARACTER = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])")


def _dotted(path: str) -> str:
    """`$.messages[0].role` as OpenAI writes it: messages.0.role."""
    steps = re.findall(r"\.([^.\[\]`]+)|\[(\d+)\]", path)
    return ".".join(name or index for name, index in steps)


def _blamed(message: str, fields: Iterable[str]) -> str | None:
    """The field that a message speaks of first."""
    places = {m.start(): name for name in fields if (m := re.search(rf"\b{name}\b", message))}
    return places[min(places)] if places else None


def too_long(tokens: int | str, limit: int, param: str, *, by_cache: bool = False) -> ApiError:
    """Clients look for these very words to cut a conversation and try again. `by_cache` as in ContextLengthError."""
    message = (
        f"This model's maximum context length is {limit} tokens, but the prompt is too long: "
        f"your {param} {'have' if param == 'messages' else 'has'} {tokens} tokens, and at least one more is for the "
        "answer (context_length_exceeded)."
    ) + " The limit is that of the server's KV cache, not the model's own: --kv-blocks raises it." * by_cache
    return bad(message, param, "context_length_exceeded")


_BY_STATUS = {
    401: ("invalid_api_key", "an API key is needed, as Authorization: Bearer …"),
    404: ("not_found", "there is nothing at this path: /schema lists what there is"),
    405: ("method_not_allowed", "this path does not take that method: the Allow header names those it does"),
}


def _framework(error: HTTPException) -> ApiError:
    """What Litestar itself raises: routing, and requests it cannot read."""
    code, message = _BY_STATUS.get(error.status_code, ("invalid_request", error.detail))
    return ApiError(error.status_code, code, message, headers=error.headers)
