"""POST /v1/completions"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from litestar import post
from litestar.openapi import ResponseSpec
from litestar.params import JSONBody
from litestar.response.base import ASGIResponse

from mini_infer.api.answers import Call, Head, Piece, answer, longest_answer, sampling_params, submit
from mini_infer.api.errors import ErrorBody, bad, too_long
from mini_infer.api.lengths import check_ids, check_length
from mini_infer.api.logprobs import characters, completion_logprobs
from mini_infer.api.request import ApiRequest
from mini_infer.api.schemas import Completion, CompletionChoice, CompletionRequest, UsageInfo
from mini_infer.api.serving import Serving

if TYPE_CHECKING:
    from mini_infer.text.tokenizer import Tokenizer

DEFAULT_MAX_TOKENS = 16
"""OpenAI's own for this route."""


@post(
    ["/v1/completions", "/completions"],
    status_code=200,
    summary="Continue a text",
    tags=["openai"],
    responses={
        200: ResponseSpec(Completion, description="The answer; with stream, server-sent events of its chunks."),
        400: ResponseSpec(ErrorBody, description="What is wrong with the request."),
    },
)
async def completions(request: ApiRequest, data: JSONBody[CompletionRequest]) -> ASGIResponse:
    serving: Serving = request.app.state.serving
    serving.names.check(data.model)
    with serving.preparing():
        params = sampling_params(data, serving, longest_answer(data) or DEFAULT_MAX_TOKENS, data.logprobs)
        most = (serving.engine.options.max_running or 1) + serving.options.max_waiting
        _check_size(data.prompt, serving.engine.max_model_len, most)
        given = split_prompt(data.prompt)
        if len(given) * params.n > most:
            raise bad(f"prompts times n must be at most {most} on this server, not {len(given) * params.n}", "prompt")
        length = sum(map(len, given))
        around = data.add_special_tokens is not False
        prompts = await serving.encode(lambda: [_encode(p, serving, around) for p in given], length)
        call = Call(prompts=prompts, params=params, asked=data)
        shape = CompletionShape(call, Head.new(serving, "cmpl"), serving.engine.tokenizer)
        stream = await submit(serving, call)
    return await answer(request, serving, call, shape, stream)


def _check_size(prompt: str | list[Any], limit: int, most: int) -> None:
    """Raises ApiError for a list so long that it can be neither a prompt nor a list of them: a body may hold millions
    of ids, and looking at each takes long."""
    if isinstance(prompt, list) and len(prompt) > max(limit, most):
        if isinstance(prompt[0], int):
            raise too_long(len(prompt), limit, "prompt")
        raise bad(f"prompts times n must be at most {most} on this server, not {len(prompt)}", "prompt")


def split_prompt(prompt: str | list[Any]) -> list[str | list[int]]:
    """A prompt in any of its four forms as a list of texts or lists of ids. Raises ApiError."""
    if isinstance(prompt, str) or all(isinstance(item, int) for item in prompt):
        prompt = [prompt]
    elif not (all(isinstance(p, str) for p in prompt) or all(isinstance(p, list) for p in prompt)):
        raise bad("prompt must be a text, token ids, or a list of texts or of lists of token ids", "prompt")
    if not prompt or not all(prompt):
        raise bad("prompt is empty: give at least one character or token", "prompt")
    return prompt


def _encode(prompt: str | list[int], serving: Serving, around: bool) -> list[int]:
    """A raw prompt is taken as it stands: control tokens spelled out in it are control tokens."""
    limit = serving.engine.max_model_len
    if isinstance(prompt, list):
        if len(prompt) >= limit:
            raise too_long(len(prompt), limit, "prompt")
        check_ids(prompt, serving.engine.limits.vocab_size, "prompt")
        return prompt
    check_length([prompt], serving.tokenizer, limit, "prompt")
    return serving.tokenizer.encode(prompt, allow_special=True, add_special_tokens=around)


class CompletionShape:
    """Answers of the completions route. The choices of one prompt stand together, in the order of the prompts."""

    def __init__(self, call: Call, head: Head, tokenizer: Tokenizer | None) -> None:
        self._head = {name: getattr(head, name) for name in head.__slots__}
        self._call = call
        self._tokenizer = tokenizer
        self._offsets = dict.fromkeys(range(call.choices), 0)  # characters of text before the next token

    def chunks(self, piece: Piece) -> Iterator[CompletionChoice]:
        """Text and end together, in one event."""
        if piece.text or piece.reason:
            yield self._choice(piece, **({"stop_reason": piece.stop} if piece.reason else {}))

    def event(self, choices: list[CompletionChoice], **more: Any) -> Completion:
        return Completion(**self._head, choices=choices, **more)

    def whole(self, pieces: Sequence[Piece], usage: UsageInfo, **more: Any) -> Completion:
        choices = [self._choice(piece, stop_reason=piece.stop) for piece in pieces]
        return Completion(**self._head, choices=choices, usage=usage, **more)

    def _choice(self, piece: Piece, **more: Any) -> CompletionChoice:
        if self._call.params.logprobs is not None and self._tokenizer is not None:
            more["logprobs"] = completion_logprobs(piece.logprobs, self._tokenizer, self._offsets[piece.index])
            self._offsets[piece.index] += sum(characters(s.token_id, self._tokenizer) for s in piece.logprobs)
        if self._call.asked.return_token_ids:
            more["token_ids"] = piece.token_ids
            if piece.begins:
                more["prompt_token_ids"] = list(self._call.prompts[piece.index // self._call.params.n])
        return CompletionChoice(index=piece.index, text=piece.text, finish_reason=piece.reason, **more)  # type: ignore[arg-type]
