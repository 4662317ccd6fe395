"""From a caller's prompt and parameters to what can be scheduled, or one line that says why it cannot."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from mini_infer.errors import UserError
from mini_infer.sampling.params import SamplingParams


class ContextLengthError(UserError):
    """The prompt leaves no room for one token. Carries both numbers, in tokens, for an error object."""

    def __init__(self, message: str, prompt_tokens: int, limit: int) -> None:
        super().__init__(message)
        self.prompt_tokens = prompt_tokens
        self.limit = limit


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request must fit into."""

    vocab_size: int
    max_model_len: int  # tokens of prompt and answer
    max_running: int
    num_blocks: int
    block_size: int
    has_tokenizer: bool

    def check(self, prompt_tokens: Seq[int], params: SamplingParams) -> list[int]:
        """The prompt as a list of its own. Raises UserError, or ContextLengthError for what can never fit."""
        prompt = [int(t) for t in prompt_tokens]
        if not prompt:
            raise UserError("the prompt is empty: give at least one token")
        bad = next((t for t in prompt if not 0 <= t < self.vocab_size), None)
        if bad is not None:
            raise UserError(f"token id {bad} is not in the model's vocabulary (0 to {self.vocab_size - 1})")
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
                )
