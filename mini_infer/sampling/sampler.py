"""From logits to tokens: the pure end of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from mini_infer.sampling.distribution import Fault, shape_logits
from mini_infer.sampling.logprobs import token_logprobs
from mini_infer.sampling.random import Purpose, uniform
from mini_infer.sampling.rows import SampleRow, Verdict

_MESSAGES: Mapping[Fault, str] = {
    "non-finite": "the model's logits are not finite (NaN or infinity)",
    "masked": "no token is left to choose from: every one is banned",
}


class Sampler:
    """Chooses the next token(s) of every row. Stateless: the same arguments give the same answer.

    `vocab_size` cuts logits that are wider than it, as a head padded for the hardware makes them.
    """

    def __init__(self, vocab_size: int | None = None) -> None:
        self.vocab_size = vocab_size

    def resolve(self, logits: Tensor, rows: Sequence[SampleRow]) -> list[Verdict]:
        """One verdict per row, in order. `logits` is [R, V]; rows may share one of its rows (a fork's first token).

        A row without a distribution gets an error and leaves the others as they are.
        """
        if self.vocab_size is not None and logits.shape[1] > self.vocab_size:
            logits = logits[:, : self.vocab_size]
        dists = shape_logits(logits, [row.context() for row in rows])
        numbers = {key: _sample_number(row) for key, row in enumerate(rows) if key not in dists.faults}
        drawn = dists.draw(numbers)
        verdicts = []
        for key, row in enumerate(rows):
            fault = dists.faults.get(key)
            if fault is None:
                verdicts.append(Verdict(row.seq_id, (drawn[key],)))
            else:
                verdicts.append(Verdict(row.seq_id, error=_MESSAGES[fault], non_finite=fault == "non-finite"))
        return _with_logprobs(logits, rows, verdicts)


def _sample_number(row: SampleRow) -> float:
    if row.params.is_greedy:
        return 0.0
    return uniform(row.seed, row.choice, row.position, Purpose.SAMPLE)


def _with_logprobs(logits: Tensor, rows: Sequence[SampleRow], verdicts: list[Verdict]) -> list[Verdict]:
    """The verdicts with the raw log-probabilities of their tokens, where the request asks for them."""
    asked = [
        (index, row.row + j, token, row.params.logprobs)
        for index, row in enumerate(rows)
        if row.params.logprobs is not None
        for j, token in enumerate(verdicts[index].tokens)
    ]
    if not asked:
        return verdicts
    places = torch.tensor([place for _, place, _, _ in asked]).to(logits.device)
    scores = token_logprobs(logits[places], [token for _, _, token, _ in asked], [n for *_, n in asked])
    for (index, *_), score in zip(asked, scores, strict=True):
        verdicts[index] = replace(verdicts[index], logprobs=(*verdicts[index].logprobs, score))
    return verdicts
