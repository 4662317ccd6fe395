"""Log-probabilities of a prompt's own tokens, without ever holding the logits of all of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from mini_infer.observe.events import TokenLogprob
from mini_infer.sampling.logprobs import token_logprobs

ROWS_AT_ONCE = 64


class NonFiniteLogits(ArithmeticError):
    """A row's largest logit is NaN or infinite: it has no probabilities."""


def prompt_logprobs(
    hidden: Tensor, next_tokens: Sequence[int], num_top: int, logits_of: Callable[[Tensor], Tensor]
) -> list[TokenLogprob]:
    """What the model thought of `next_tokens[i]` at row i of `hidden` [P, hidden size], for each i.

    `logits_of` turns rows of hidden states [r, hidden size] into logits [r, V]; it is given 64 rows at a time.

    Raises:
        NonFiniteLogits: a row has no distribution.
    """
    found: list[TokenLogprob] = []
    for first in range(0, len(next_tokens), ROWS_AT_ONCE):
        tokens = next_tokens[first : first + ROWS_AT_ONCE]
        logits = logits_of(hidden[first : first + len(tokens)])
        if not bool(logits.amax(-1).isfinite().all()):
            raise NonFiniteLogits("the largest logit of a prompt token is not finite")
        found += token_logprobs(logits, tokens, [num_top] * len(tokens))
    return found
