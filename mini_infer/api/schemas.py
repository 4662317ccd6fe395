"""The JSON of requests and answers. A field that is null counts as left out."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

FinishReason = Literal["stop", "length"]


# --- requests -------------------------------------------------------------------------------------------------------


class StreamOptions(Struct):
    include_usage: Annotated[bool | None, Meta(description="One last chunk with the usage and no choices.")] = None
    continuous_usage_stats: Annotated[bool | None, Meta(description="The usage so far in every chunk.")] = None


class Generation(Struct, kw_only=True):
    """What both generation routes take."""

    model: str | None = None
    temperature: Annotated[float | None, Meta(description="0 to 2; 0 is greedy.")] = None
    top_p: Annotated[float | None, Meta(description="0 to 1; 1 is off, 0 keeps only the best token.")] = None
    top_k: Annotated[int | None, Meta(description="Keep the k likeliest tokens; 0 or -1 is off.")] = None
    min_p: Annotated[float | None, Meta(description="0 to 1: a share of the best token's probability.")] = None
    repetition_penalty: Annotated[float | None, Meta(description="Above 0; 1 is off.")] = None
    presence_penalty: Annotated[float | None, Meta(description="-2 to 2.")] = None
    frequency_penalty: Annotated[float | None, Meta(description="-2 to 2.")] = None
    logit_bias: Annotated[dict[str, float] | None, Meta(description="Token id to -100 … 100.")] = None
    seed: Annotated[int | None, Meta(description="The same request and seed give the same answer.")] = None
    n: Annotated[int | None, Meta(description="How many answers to each prompt.")] = None
    max_tokens: int | None = None
    max_completion_tokens: Annotated[int | None, Meta(description="Wins over max_tokens.")] = None
    min_tokens: int | None = None
    stop: Annotated[str | list[str] | None, Meta(description="One text, or up to 16.")] = None
    stop_token_ids: list[int] | None = None
    ignore_eos: Annotated[bool | None, Meta(description="The model's own end tokens do not end the answer.")] = None
    include_stop_str_in_output: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: Annotated[bool | None, Meta(description="Ids of the prompt and of each answer.")] = None
    cache_salt: Annotated[str | None, Meta(description="Only requests with the same salt share cached blocks.")] = None
    priority: Annotated[int | None, Meta(description="0 goes first; a larger number gives way to smaller ones.")] = None


class ContentPart(Struct):
    type: str
    text: str | None = None


class Message(Struct):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class ChatRequest(Generation, kw_only=True):
    """POST /v1/chat/completions"""

    messages: list[Message]
    logprobs: bool | None = None
    top_logprobs: Annotated[int | None, Meta(description="0 to 20; needs logprobs.")] = None
    reasoning_effort: Annotated[str | None, Meta(description="Handed to the chat template.")] = None
    chat_template_kwargs: Annotated[dict[str, Any] | None, Meta(description="Further names for the template.")] = None
    add_generation_prompt: bool | None = None
    continue_final_message: Annotated[
        bool | None, Meta(description="The answer goes on where the last message, the assistant's, ends.")
    ] = None


class CompletionRequest(Generation, kw_only=True):
    """POST /v1/completions"""

    prompt: Annotated[
        str | list[str | int | list[int]],
        Meta(description="A text, token ids, or a list of texts or of lists of token ids."),
    ]
    logprobs: Annotated[int | None, Meta(description="0 to 20 alternatives to each token.")] = None
    add_special_tokens: Annotated[bool | None, Meta(description="A begin token, where the model has one.")] = None


class TokenizeRequest(Struct):
    """POST /tokenize. One of `prompt`, `content` (the same) and `messages`."""

    model: str | None = None
    prompt: str | None = None
    content: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool | None = None
    add_special: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeRequest(Struct):
    """POST /detokenize"""

    tokens: list[int]
    model: str | None = None


# --- answers --------------------------------------------------------------------------------------------------------


class PromptTokensDetails(Struct):
    cached_tokens: int = 0


class UsageInfo(Struct):
    """`completion_tokens` counts every generated token, the end token included."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class TimingsInfo(Struct):
    """Milliseconds: `queued_ms` before the engine took the request in, `prompt_ms` to the first token, then the rest.

    `draft_n` and `draft_n_accepted` are there where tokens were drafted.
    """

    queued_ms: float
    prompt_n: int
    cache_n: int
    prompt_ms: float
    prompt_per_second: float | None
    predicted_n: int
    predicted_ms: float
    predicted_per_second: float | None
    draft_n: int | UnsetType = UNSET
    draft_n_accepted: int | UnsetType = UNSET


class TopLogprob(Struct):
    token: str
    logprob: float
    bytes: list[int] | None


class ChatLogprob(Struct):
    """`bytes` are the token's part of the text: null for control tokens, which the text does not show."""

    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Struct):
    content: list[ChatLogprob]
    refusal: None = None


class AnswerMessage(Struct):
    content: str
    role: Literal["assistant"] = "assistant"
    refusal: None = None


class ChatChoice(Struct, kw_only=True):
    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason
    stop_reason: str | int | None = None
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(Struct, kw_only=True):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: UsageInfo
    timings: TimingsInfo | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class Delta(Struct):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChunkChoice(Struct, kw_only=True):
    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletionChunk(Struct, kw_only=True):
    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChunkChoice]
    usage: UsageInfo | UnsetType | None = UNSET
    timings: TimingsInfo | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class CompletionLogprobs(Struct):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(Struct, kw_only=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class Completion(Struct, kw_only=True):
    """Also each chunk of a stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: UsageInfo | UnsetType | None = UNSET
    timings: TimingsInfo | UnsetType = UNSET


class ModelCard(Struct, kw_only=True):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "mini-infer"
    root: str
    parent: None = None
    max_model_len: int


class ModelList(Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[ModelCard]


class Health(Struct, kw_only=True, omit_defaults=True):
    status: str
    engine: str
    version: str
    paused: bool
    faults: Annotated[int, Meta(description="How often the engine failed and was rebuilt.")]


class Ready(Struct):
    status: Literal["ready", "loading", "paused", "draining", "stalled", "dead"]


class Version(Struct):
    version: str


class Tokens(Struct):
    tokens: list[int]
    count: int
    max_model_len: int


class Text(Struct):
    """The text under the names that different clients look for."""

    prompt: str
    content: str
