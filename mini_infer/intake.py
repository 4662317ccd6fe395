"""From a caller's prompt and parameters to what can be scheduled, or one line that says why it cannot."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import Any

from mini_infer.checks import is_integer, refuse
from mini_infer.errors import UserError, is_utf8
from mini_infer.sampling.params import SamplingParams


def settle_params(
    params: SamplingParams | None, max_tokens: int | None, generation: Mapping[str, Any]
) -> SamplingParams:
    """The parameters of a request: greedy ones where it has none; what they leave unset, `generation` fills."""
    if params is None:
        params = SamplingParams.greedy()
    elif isinstance(params, SamplingParams):
        params = params.with_defaults(generation)
    else:
        raise UserError(f"params must be SamplingParams(temperature=0, ...), not {type(params).__name__}")
    return params if max_tokens is None else replace(params, max_tokens=max_tokens)


def _token_ids(prompt: Any) -> list[int]:
    """A list of its own, of plain integers; those of numpy and torch count."""
    try:
        tokens = [] if isinstance(prompt, str | bytes | Mapping) else list(prompt)
        if (not tokens and prompt) or any(isinstance(token, bool) for token in tokens):
            raise TypeError
        return [operator.index(token) for token in tokens]
    except TypeError:
        shown = repr(prompt)
        raise UserError(
            f"the prompt must be a list of token ids, whole numbers, not {shown[:60]}{'…' * (len(shown) > 60)}"
        ) from None


class ContextLengthError(UserError):
    """The prompt leaves no room for one token. Carries both numbers, in tokens, for an error object.

    `by_cache`: the KV cache sets the limit, not the model.
    """

    def __init__(self, message: str, prompt_tokens: int, limit: int, *, by_cache: bool = False) -> None:
        super().__init__(message)
        self.prompt_tokens = prompt_tokens
        self.limit = limit
        self.by_cache = by_cache


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request must fit into."""

    vocab_size: int
    max_model_len: int  # tokens of prompt and answer
    max_running: int
    num_blocks: int
    block_size: int
    has_tokenizer: bool

    def check(
        self, prompt_tokens: Seq[int], params: SamplingParams, priority: int = 0, cache_salt: str = ""
    ) -> list[int]:
        """The prompt as a list of its own. Raises UserError, or ContextLengthError for what can never fit."""
        prompt = _token_ids(prompt_tokens)
        if not prompt:
            raise UserError("the prompt is empty: give at least one token")
        bad = next((t for t in prompt if not 0 <= t < self.vocab_size), None)
        if bad is not None:
            remedy = "; if the tokenizer made it, tokenizer.json and config.json are not of one model: fetch both again"
            raise UserError(
                f"token id {bad} is not in the model's vocabulary (0 to {self.vocab_size - 1})"
                + remedy * self.has_tokenizer
            )
        if not is_integer(priority) or abs(priority) >= 2**63:
            raise refuse("priority", priority, "an integer of 64 bits")
        if not isinstance(cache_salt, str) or not is_utf8(cache_salt):
            raise UserError("cache_salt must be a text in UTF-8")
        params.check_vocab(self.vocab_size)
        if params.stop and not self.has_tokenizer:
            raise UserError("stop strings need a tokenizer: give the engine one, or use stop_token_ids")
        if params.n > self.max_running:
            raise UserError(
                f"n must be at most {self.max_running}, the sequences that run at once (max_running), not {params.n}"
            )
        self._check_length(len(prompt), params.n)
        return prompt

    def _check_length(self, length: int, n: int) -> None:
        # One token must be generated, and each fork needs a tail block of its own beside the shared ones.
        rows = (self.num_blocks - (n - 1)) * self.block_size
        for limit, what, remedy in (
            (self.max_model_len, "the context length", "shorten it"),
            (rows, "the room in the KV cache", "shorten it, or give the cache more blocks"),
        ):
            if length + 1 > limit:
                raise ContextLengthError(
                    f"the prompt has {length} tokens, but {what} is {limit} tokens, "
                    f"of which at least one is for the answer: {remedy}",
                    length,
                    limit,
                    by_cache=limit < self.max_model_len,
                )
