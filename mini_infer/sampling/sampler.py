"""From logits to tokens: the pure end of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from mini_infer.sampling.distribution import Categorical, Distributions, Fault, logit_gaps, shape_logits
from mini_infer.sampling.logprobs import token_logprobs
from mini_infer.sampling.random import Purpose, uniform
from mini_infer.sampling.rows import RowContext, SampleRow, Verdict
from mini_infer.speculative.verifier import Round, verify

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

    def resolve(
        self,
        logits: Tensor,
        rows: Sequence[SampleRow],
        q: Mapping[str, Sequence[Categorical]] | None = None,
        *,
        explain: bool = False,
    ) -> list[Verdict]:
        """One verdict per row, in order. A row without a distribution gets an error and leaves the others as they are.

        Args:
            logits: [R, V]; several rows may share one of its rows (a fork's first token).
            rows: one with drafts owns 1 + len(drafts) rows of the logits and is verified.
            q: by sequence, the distribution each draft was drawn from; none for proposers that name one token.
            explain: fill what only an observer needs (the logit gaps of greedy rounds).
        """
        if self.vocab_size is not None and logits.shape[1] > self.vocab_size:
            logits = logits[:, : self.vocab_size]
        contexts: list[RowContext] = []
        firsts: list[int] = []
        for row in rows:
            firsts.append(len(contexts))
            contexts += [row.context(j) for j in range(len(row.drafts) + 1)]
        dists = shape_logits(logits, contexts)
        verdicts: dict[int, Verdict] = {}  # by the key of the row's first distribution
        names: dict[int, str] = {}
        plain: dict[int, float] = {}
        rounds: list[Round] = []
        for row, first in zip(rows, firsts, strict=True):
            fault = dists.faults.get(first)
            names[first] = row.seq_id
            if fault is not None:
                verdicts[first] = Verdict(row.seq_id, error=_MESSAGES[fault], non_finite=fault == "non-finite")
            elif row.drafts:
                rounds.append(_round(row, first, dists, (q or {}).get(row.seq_id)))
            else:
                plain[first] = 0.0 if first in dists.certain else _number(row, 0, Purpose.SAMPLE)
        for first, token in dists.draw(plain).items():
            verdicts[first] = Verdict(names[first], (token,))
        if rounds:
            for r, outcome in zip(rounds, verify(dists, rounds), strict=True):
                verdicts[r.first] = Verdict(names[r.first], outcome.tokens, judged=outcome.judged)
            if explain:
                _add_gaps(verdicts, [r.first for r in rounds if r.first in dists.certain], dists, logits, contexts)
        return _with_logprobs(logits, rows, [verdicts[first] for first in firsts])


def _number(row: SampleRow, ahead: int, purpose: Purpose) -> float:
    return uniform(row.seed, row.choice, row.position + ahead, purpose)


def _round(row: SampleRow, first: int, dists: Distributions, q: Sequence[Categorical] | None) -> Round:
    """What is judged of a row's drafts: those before a row that has no distribution (the next step will name it)."""
    usable = next((j for j in range(len(row.drafts) + 1) if first + j in dists.faults), len(row.drafts) + 1)
    return Round(first, row.drafts[: usable - 1], q, lambda j, purpose: _number(row, j, purpose), row.is_coupled)


def _add_gaps(
    verdicts: dict[int, Verdict],
    firsts: Sequence[int],
    dists: Distributions,
    logits: Tensor,
    contexts: Sequence[RowContext],
) -> None:
    """Fills in by how much the target preferred its own token to each draft."""
    judged = [(first, j, one.draft) for first in firsts for j, one in enumerate(verdicts[first].judged)]
    keys = [first + j for first, j, _ in judged]
    best = [dists.certain[key] for key in keys]
    gaps = iter(logit_gaps(logits, [contexts[key] for key in keys], best, [draft for *_, draft in judged]))
    for first in firsts:
        explained = tuple(replace(one, gap=next(gaps)) for one in verdicts[first].judged)
        verdicts[first] = replace(verdicts[first], judged=explained)


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
