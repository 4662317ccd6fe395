"""The routes beside generation: models, health, metrics, tokens, and the engine's state."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from litestar import Request, get, post
from litestar.openapi import ResponseSpec
from litestar.params import FromPath, JSONBody
from litestar.response.base import ASGIResponse
from msgspec.json import Encoder
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from mini_infer.api.chat import encode_chat, text_length
from mini_infer.api.errors import RETRY_AFTER_S, bad
from mini_infer.api.lengths import check_ids
from mini_infer.api.metrics import exposition
from mini_infer.api.request import ApiRequest
from mini_infer.api.schemas import (
    DetokenizeRequest,
    Health,
    ModelCard,
    ModelList,
    Ready,
    Text,
    TokenizeRequest,
    Tokens,
    Version,
)
from mini_infer.api.serving import Serving
from mini_infer.observe.events import encode as encode_state
from mini_infer.version import __version__

if TYPE_CHECKING:
    from mini_infer.text.tokenizer import Tokenizer

MAX_TEXT = 1_000_000
"""Characters or ids that are converted at once: more takes seconds and hundreds of megabytes."""

AnyRequest = Request[Any, Any, Any]

_encode = Encoder().encode


def _json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> ASGIResponse:
    return ASGIResponse(body=_encode(value), status_code=status, headers=headers, media_type="application/json")


# --- models ---------------------------------------------------------------------------------------------------------


def _card(serving: Serving) -> ModelCard:
    names = serving.names
    return ModelCard(
        id=names.served, created=serving.created, root=names.root, max_model_len=serving.engine.max_model_len
    )


@get(["/v1/models", "/models"], summary="List the models", tags=["openai"], responses={200: ResponseSpec(ModelList)})
async def list_models(request: AnyRequest) -> ASGIResponse:
    return _json(ModelList(data=[_card(request.app.state.serving)]))


@get(
    ["/v1/models/{model_id:path}", "/models/{model_id:path}"],
    summary="Describe a model",
    tags=["openai"],
    responses={200: ResponseSpec(ModelCard)},
)
async def one_model(request: AnyRequest, model_id: FromPath[str]) -> ASGIResponse:
    serving: Serving = request.app.state.serving
    serving.names.check(model_id.removeprefix("/"))
    return _json(_card(serving))


# --- health ---------------------------------------------------------------------------------------------------------


@get("/health", summary="Whether the server lives", tags=["server"], responses={200: ResponseSpec(Health)})
async def health(request: AnyRequest) -> ASGIResponse:
    """200 while the engine lives, even if it is paused, draining or busy; 503 while it loads, or once it is dead."""
    serving: Serving = request.app.state.serving
    status = serving.status
    fails = status in ("loading", "dead")
    body = Health(
        status=status if fails else "ok",
        engine="mini-infer",
        version=__version__,
        paused=serving.service.is_paused,
        faults=serving.metrics.faults,
    )
    return _json(body, 503 if fails else 200, {"retry-after": str(RETRY_AFTER_S)} if fails else None)


@get("/health/ready", summary="Whether to send it requests", tags=["server"], responses={200: ResponseSpec(Ready)})
async def ready(request: AnyRequest) -> ASGIResponse:
    """200 if a request would be served now, else 503 and why not."""
    status = request.app.state.serving.status
    fails = status != "ready"
    return _json(Ready(status), 503 if fails else 200, {"retry-after": str(RETRY_AFTER_S)} if fails else None)


@get("/version", summary="The server's version", tags=["server"], responses={200: ResponseSpec(Version)})
async def version() -> ASGIResponse:
    return _json(Version(__version__))


@get("/metrics", summary="Metrics for Prometheus", tags=["server"], media_type="text/plain")
async def metrics(request: AnyRequest) -> ASGIResponse:
    body = await asyncio.to_thread(exposition, request.app.state.serving.registry)
    # as a header: the framework would name the charset twice, which Prometheus takes for no type at all
    return ASGIResponse(body=body, headers={"content-type": CONTENT_TYPE_PLAIN_0_0_4})


@get("/v1/engine/state", summary="The engine's state, with every prompt and answer in it", tags=["server"])
async def engine_state(request: AnyRequest) -> ASGIResponse:
    """`EngineState` as the observers inside the engine see it, taken between two steps."""
    serving: Serving = request.app.state.serving
    serving.engine  # noqa: B018  (raises while there is none)
    return ASGIResponse(body=encode_state(await serving.service.snapshot()), media_type="application/json")


# --- tokens ---------------------------------------------------------------------------------------------------------


@post("/tokenize", status_code=200, summary="Text to token ids", tags=["tokens"], responses={200: ResponseSpec(Tokens)})
async def tokenize(request: ApiRequest, data: JSONBody[TokenizeRequest]) -> ASGIResponse:
    serving: Serving = request.app.state.serving
    serving.names.check(data.model)
    given = [name for name in ("prompt", "content", "messages") if getattr(data, name) is not None]
    if len(given) != 1:
        raise bad("give one of prompt, content and messages", "prompt", "missing_required_parameter")
    text = data.prompt if data.prompt is not None else data.content
    length = len(text) if text is not None else text_length(data.messages or [])
    if length > MAX_TEXT:
        raise bad(f"{given[0]} must be at most {MAX_TEXT} characters here", given[0])
    size = len(await request.body())
    tokens = await serving.encode(lambda: _tokenize(data, text, serving.tokenizer), size)
    return _json(Tokens(tokens, len(tokens), serving.engine.max_model_len), headers=request.notes)


def _tokenize(asked: TokenizeRequest, text: str | None, tokenizer: Tokenizer) -> list[int]:
    if text is None:
        return encode_chat(asked, tokenizer, MAX_TEXT)
    around = asked.add_special_tokens if asked.add_special_tokens is not None else asked.add_special
    return tokenizer.encode(text, allow_special=True, add_special_tokens=around is not False)


@post("/detokenize", status_code=200, summary="Token ids to text", tags=["tokens"], responses={200: ResponseSpec(Text)})
async def detokenize(request: ApiRequest, data: JSONBody[DetokenizeRequest]) -> ASGIResponse:
    serving: Serving = request.app.state.serving
    serving.names.check(data.model)
    size = serving.engine.limits.vocab_size
    if len(data.tokens) > MAX_TEXT:
        raise bad(f"tokens must be at most {MAX_TEXT} ids", "tokens")
    text = await serving.encode(lambda: _detokenize(data.tokens, serving.tokenizer, size), len(data.tokens))
    return _json(Text(text, text), headers=request.notes)


def _detokenize(tokens: list[int], tokenizer: Tokenizer, size: int) -> str:
    check_ids(tokens, size, "tokens")
    return tokenizer.decode(tokens, skip_special_tokens=False)
