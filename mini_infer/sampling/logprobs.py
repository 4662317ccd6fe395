"""Log-probabilities of the raw distribution: what the model said before any parameter of the request had its say."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mini_infer.observe.events import TokenLogprob
from mini_infer.sampling.filters import largest

IMPOSSIBLE = -9999.0
"""The log-probability of a token the model rules out: infinities have no JSON, and APIs know this number."""


def token_logprobs(logits: Tensor, tokens: Sequence[int], num_top: Sequence[int]) -> list[TokenLogprob]:
    """For each row of `logits` [r, V]: its token's log-probability and rank, and its `num_top` likeliest tokens.

    The rank is 1 + the number of tokens that are strictly likelier; the list is in falling order, ties by lowest id.
    """
    if not tokens:
        return []
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    chosen = torch.tensor(tokens, device=logits.device)[:, None]
    ranks = (logits > logits.gather(1, chosen)).sum(-1) + 1
    scores = logits.log_softmax(-1).clamp_(min=IMPOSSIBLE)
    own = scores.gather(1, chosen)[:, 0].tolist()
    top: list[list[tuple[int, float]]] = [[] for _ in tokens]
    if count := max(num_top):
        _, ids = largest(logits, count)
        pairs = zip(ids.tolist(), scores.gather(1, ids).tolist(), strict=True)
        top = [list(zip(row_ids, values, strict=True)) for row_ids, values in pairs]
    return [
        TokenLogprob(token, logprob, rank, tuple(best[:n]))
        for token, logprob, rank, best, n in zip(tokens, own, ranks.tolist(), top, num_top, strict=True)
    ]
