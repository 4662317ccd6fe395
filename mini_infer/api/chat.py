"""POST /v1/chat/completions"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from litestar import post
from litestar.openapi import ResponseSpec
from litestar.params import JSONBody
from litestar.response.base import ASGIResponse

from mini_infer.api.answers import Call, Head, Piece, answer, longest_answer, sampling_params, submit
from mini_infer.api.errors import ErrorBody, bad
from mini_infer.api.lengths import check_length
from mini_infer.api.logprobs import chat_logprobs
from mini_infer.api.request import ApiRequest
from mini_infer.api.schemas import (
    AnswerMessage,
    ChatChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatLogprobs,
    ChatRequest,
    ChunkChoice,
    Delta,
    Message,
    UsageInfo,
)
from mini_infer.api.serving import Serving
from mini_infer.observe.events import TokenLogprob

if TYPE_CHECKING:
    from mini_infer.text.tokenizer import Tokenizer

MAX_BESIDE_CONTENT = 1_000_000
"""Characters and values of tool calls, reasoning and names, which a template may or may not show."""

MAX_VARIABLES = 100_000
"""The same of `chat_template_kwargs`."""


@post(
    ["/v1/chat/completions", "/chat/completions"],
    status_code=200,
    summary="Answer a conversation",
    tags=["openai"],
    responses={
        200: ResponseSpec(ChatCompletion, description="The answer; with stream, server-sent events of its chunks."),
        400: ResponseSpec(ErrorBody, description="What is wrong with the request."),
    },
)
async def chat_completions(request: ApiRequest, data: JSONBody[ChatRequest]) -> ASGIResponse:
    serving: Serving = request.app.state.serving
    serving.names.check(data.model)
    with serving.preparing():
        params = sampling_params(data, serving, longest_answer(data), _num_logprobs(data))
        limit = serving.engine.max_model_len
        size = len(await request.body())  # also what is no text costs time, such as a thousand tool calls
        prompt = await serving.encode(lambda: encode_chat(data, serving.tokenizer, limit), size)
        call = Call(prompts=[prompt], params=params, asked=data)
        shape = ChatShape(call, Head.new(serving, "chatcmpl"), serving.engine.tokenizer)
        stream = await submit(serving, call)
    return await answer(request, serving, call, shape, stream)


def _num_logprobs(asked: ChatRequest) -> int | None:
    if asked.top_logprobs is not None:
        if not 0 <= asked.top_logprobs <= 20:
            raise bad(f"top_logprobs must be from 0 to 20, not {asked.top_logprobs}", "top_logprobs")
        if not asked.logprobs:
            raise bad("top_logprobs needs logprobs to be true", "top_logprobs")
    return (asked.top_logprobs or 0) if asked.logprobs else None


def encode_chat(asked: Any, tokenizer: Tokenizer, limit: int) -> list[int]:
    """The ids of `asked.messages` in the model's template. Raises ApiError, also beyond `limit` tokens; UserError."""
    variables = dict(asked.chat_template_kwargs or {})
    for name in variables.keys() & {"messages", "tools", "documents"}:
        raise bad(f"chat_template_kwargs must not hold {name}", "chat_template_kwargs")
    if _size(variables) > MAX_VARIABLES:
        text = f"chat_template_kwargs must have at most {MAX_VARIABLES} characters and values"
        raise bad(text, "chat_template_kwargs")
    if getattr(asked, "reasoning_effort", None) is not None:
        variables.setdefault("reasoning_effort", asked.reasoning_effort)
    if asked.add_generation_prompt is not None:
        variables["add_generation_prompt"] = asked.add_generation_prompt
    messages = plain_messages(asked.messages)
    check_length([message.get("content", "") for message in messages], tokenizer, limit, "messages")
    if asked.continue_final_message:
        return _encode_begun(messages, tokenizer, variables, asked.add_generation_prompt)
    return tokenizer.encode_chat(messages, **variables)


def _encode_begun(
    messages: list[dict[str, Any]], tokenizer: Tokenizer, variables: dict[str, Any], opens: bool | None
) -> list[int]:
    """The last message is the beginning of the answer: it follows what the template opens an answer with."""
    name = "continue_final_message"
    *before, last = messages
    if last["role"] != "assistant" or not last.get("content") or "tool_calls" in last:
        raise bad(f"{name} needs a last message by the assistant that is text, to be continued", name)
    if not before:
        raise bad(f"{name} needs a message before the one to be continued", name)
    if opens:
        raise bad(f"{name} and add_generation_prompt exclude each other", name)
    head = tokenizer.encode_chat(before, **variables | {"add_generation_prompt": True})
    return head + tokenizer.encode(last["content"], allow_special=False, add_special_tokens=False)


def plain_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages as a template gets them. Raises ApiError for what it could not show."""
    if not messages:
        raise bad("messages is empty: give at least one message", "messages")
    plain = [_plain(message, f"messages.{number}") for number, message in enumerate(messages)]
    if _size([{**message, "content": ""} for message in plain]) > MAX_BESIDE_CONTENT:
        text = f"messages must have at most {MAX_BESIDE_CONTENT} characters and values beside their content"
        raise bad(text, "messages")
    for message in plain:
        if "tool_calls" in message:
            message["tool_calls"] = [_with_arguments(call) for call in message["tool_calls"]]
    return plain


def _size(value: Any) -> int:
    """Characters of all texts in a JSON value, and one for each value."""
    if isinstance(value, str):
        return 1 + len(value)
    if isinstance(value, dict):
        return 1 + sum(len(key) + _size(item) for key, item in value.items())
    return 1 + sum(map(_size, value)) if isinstance(value, list) else 1


def _plain(message: Message, where: str) -> dict[str, Any]:
    plain = {name: value for name, value in msgspec.structs.asdict(message).items() if value is not None}
    if message.role == "developer":  # no template of ours knows it; it means the same
        plain["role"] = "system"
    if message.content is None and message.role != "assistant":
        raise bad(f"{where}.content is required", f"{where}.content", "missing_required_parameter")
    if isinstance(message.content, list):
        for number, part in enumerate(message.content):
            place = f"{where}.content.{number}"
            if part.type != "text":
                text = f"{place} is of type {part.type[:60]!r}: only text is supported"
                raise bad(text, f"{place}.type", "unsupported_content_type")
            if part.text is None:
                raise bad(f"{place}.text is required", f"{place}.text", "missing_required_parameter")
        plain["content"] = "".join(part.text or "" for part in message.content)
    return plain


def _with_arguments(call: dict[str, Any]) -> dict[str, Any]:
    """Clients send a call's arguments as a text of JSON; templates write them from an object."""
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def text_length(messages: Sequence[Message]) -> int:
    """Characters of all contents, about."""
    contents = [m.content for m in messages]
    parts = [part.text or "" for content in contents if isinstance(content, list) for part in content]
    return sum(map(len, parts)) + sum(len(c) for c in contents if isinstance(c, str)) + 20 * len(messages)


class ChatShape:
    """Answers of the chat route."""

    def __init__(self, call: Call, head: Head, tokenizer: Tokenizer | None) -> None:
        self._head = {name: getattr(head, name) for name in head.__slots__}
        self._tokenizer = tokenizer
        self._has_logprobs = call.params.logprobs is not None
        self._has_ids = bool(call.asked.return_token_ids)
        self._prompt: dict[str, Any] = {"prompt_token_ids": list(call.prompts[0])} if self._has_ids else {}

    def chunks(self, piece: Piece) -> Iterator[ChunkChoice]:
        """The role, the text, the end: each in an event of its own."""
        if piece.begins:
            yield ChunkChoice(index=piece.index, delta=Delta("assistant", ""))
        news: dict[str, Any] = {"logprobs": self._logprobs(piece.logprobs)}
        if self._has_ids:
            news["token_ids"] = piece.token_ids
        if piece.text:
            yield ChunkChoice(index=piece.index, delta=Delta(content=piece.text), **news)
            news = {}
        if piece.reason:
            end: dict[str, Any] = {"finish_reason": piece.reason, "stop_reason": piece.stop}
            yield ChunkChoice(index=piece.index, delta=Delta(), **end, **news)

    def event(self, choices: list[ChunkChoice], **more: Any) -> ChatCompletionChunk:
        more |= self._prompt  # once
        self._prompt = {}
        return ChatCompletionChunk(**self._head, choices=choices, **more)

    def whole(self, pieces: Sequence[Piece], usage: UsageInfo, **more: Any) -> ChatCompletion:
        choices = [
            ChatChoice(
                index=piece.index,
                message=AnswerMessage(piece.text),
                logprobs=self._logprobs(piece.logprobs, whole=True),
                finish_reason=piece.reason,  # type: ignore[arg-type]  # whatever else ended it was raised
                stop_reason=piece.stop,
                **({"token_ids": piece.token_ids} if self._has_ids else {}),
            )
            for piece in pieces
        ]
        return ChatCompletion(**self._head, choices=choices, usage=usage, **self._prompt, **more)

    def _logprobs(self, scores: Sequence[TokenLogprob], *, whole: bool = False) -> ChatLogprobs | None:
        if not self._has_logprobs or self._tokenizer is None or not (scores or whole):
            return None
        return chat_logprobs(scores, self._tokenizer)
