"""Which drafts stay: speculative sampling that leaves the target's distribution exactly as it is.

Named as in Leviathan, Kalman and Matias 2023, "Fast Inference from Transformers via Speculative Decoding": p is the
target's distribution, q the one the draft was drawn from. A draft x is kept while u < min(1, p(x) / q(x)); the first
that is not is replaced by a draw from norm(max(0, p - q)); where all are kept the target adds a bonus token from p.

Greedy and explicitly seeded requests are judged by the coupled rule instead: the target's own token, the argmax or
the inversion of p at the number that plain sampling would use there, is always what is emitted, and a draft is kept
while it equals that token. The answer is then token for token the one without speculation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch

from mini_infer.sampling.distribution import Categorical, Distributions
from mini_infer.sampling.random import Purpose
from mini_infer.sampling.rows import Judgement


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """The drafts of one sequence and what they are judged by.

    `q[j]` is the distribution `drafts[j]` was drawn from, at most as wide as the target's vocabulary; None where the
    proposer names one token (q is then 1 there and 0 elsewhere). `number(j, purpose)` is the random number of the
    j-th position from the first draft's on.
    """

    first: int  # key of the distribution that judges the first draft; the next ones follow
    drafts: tuple[int, ...]
    q: Sequence[Categorical] | None
    number: Callable[[int, Purpose], float]
    coupled: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """The accepted drafts and after them the target's own token, and how each draft that was looked at fared."""

    tokens: tuple[int, ...]
    judged: tuple[Judgement, ...]


def verify(p: Distributions, rounds: Sequence[Round]) -> list[Outcome]:
    """One outcome per round, in order; rounds may have any number of drafts.

    `p` holds the target's distribution under the keys first … first + len(drafts) of each round. Greedy rounds (their
    rows are certain tokens) cost no pass over the vocabulary; the others one where they reject, or for the bonus.
    """
    is_coupled = [r.coupled or r.first in p.certain for r in rounds]
    coupled = iter(_coupled(p, [r for r, is_one in zip(rounds, is_coupled, strict=True) if is_one]))
    others = iter(_rejection(p, [r for r, is_one in zip(rounds, is_coupled, strict=True) if not is_one]))
    return [next(coupled) if is_one else next(others) for is_one in is_coupled]


def _coupled(p: Distributions, rounds: Sequence[Round]) -> list[Outcome]:
    """Drafts are kept while they are what the target draws itself."""
    numbers = {
        r.first + j: 0.0 if r.first + j in p.certain else r.number(j, Purpose.SAMPLE)
        for r in rounds
        for j in range(len(r.drafts) + 1)
    }
    target = p.draw(numbers)
    known = _probabilities(p, [r for r in rounds if r.first not in p.certain])
    outcomes = []
    for r in rounds:
        own = [target[r.first + j] for j in range(len(r.drafts) + 1)]
        kept = _leading(token == draft for token, draft in zip(own, r.drafts, strict=False))
        judged = []
        for j, draft in enumerate(r.drafts[: kept + 1]):
            of_p, of_q = known.get(r.first + j, (None, None))
            judged.append(Judgement(draft, j < kept, of_p, of_q, None if of_p is None else numbers[r.first + j]))
        outcomes.append(Outcome(tuple(own[: kept + 1]), tuple(judged)))
    return outcomes


def _rejection(p: Distributions, rounds: Sequence[Round]) -> list[Outcome]:
    """Leviathan et al., algorithm 1."""
    known = _probabilities(p, rounds)
    judgements: list[tuple[Judgement, ...]] = []
    bonus: dict[int, float] = {}
    rejected: list[tuple[Round, int]] = []
    for r in rounds:
        judged: list[Judgement] = []
        for j, draft in enumerate(r.drafts):
            of_p, of_q = known[r.first + j]
            u = r.number(j, Purpose.ACCEPT)
            judged.append(Judgement(draft, u * of_q < of_p, of_p, of_q, u))
            if not judged[-1].accepted:
                rejected.append((r, j))
                break
        else:
            bonus[r.first] = r.number(len(r.drafts), Purpose.SAMPLE)
        judgements.append(tuple(judged))
    ends = {r.first: r.first + len(r.drafts) for r in rounds}
    drawn = p.draw({ends[first]: number for first, number in bonus.items()})
    own = {first: drawn[ends[first]] for first in bonus} | _replacements(p, rejected)
    outcomes = []
    for r, judged_ones in zip(rounds, judgements, strict=True):
        kept = tuple(one.draft for one in judged_ones if one.accepted)
        outcomes.append(Outcome((*kept, own[r.first]), judged_ones))
    return outcomes


def _replacements(p: Distributions, rejected: Sequence[tuple[Round, int]]) -> dict[int, int]:
    """For each round, by its first key, a draw from the residual norm(max(0, p - q)) of the draft that was rejected."""
    tokens: dict[int, int] = {}
    by_key = {r.first + j: (r, j) for r, j in rejected}
    for group in p.select(by_key):
        chosen = [by_key[key] for key in group.keys]
        residual = torch.empty_like(group.probs)
        for g, (r, j) in enumerate(chosen):
            ids = None if group.ids is None else group.ids[g]
            q = r.q[j] if r.q is not None else Categorical.one_hot(r.drafts[j], like=group.probs)
            torch.sub(group.probs[g], q.at(ids, p.vocab_size), out=residual[g])
        residual.clamp_(min=0.0)
        nothing_left = residual.amax(-1, keepdim=True) == 0.0  # p = q but for rounding
        residual = torch.where(nothing_left, group.probs, residual)
        tokens |= replace(group, probs=residual).draw([r.number(j, Purpose.RESIDUAL) for r, j in chosen])
    return {r.first: tokens[r.first + j] for r, j in rejected}


def _probabilities(p: Distributions, rounds: Sequence[Round]) -> dict[int, tuple[float, float]]:
    """p and q of every draft, by the key of its row, read from the device in one go."""
    drafts = [(r, j, draft) for r in rounds for j, draft in enumerate(r.drafts)]
    if not drafts:
        return {}
    of_p = torch.stack([p[r.first + j].prob(draft) for r, j, draft in drafts]).tolist()
    modelled = [r.q[j].prob(draft) for r, j, draft in drafts if r.q is not None]
    of_q = iter(torch.stack(modelled).tolist() if modelled else [])
    return {r.first + j: (of_p[i], 1.0 if r.q is None else next(of_q)) for i, (r, j, _) in enumerate(drafts)}


def _leading(flags: Iterable[bool]) -> int:
    """How many are true before the first that is not."""
    count = 0
    for flag in flags:
        if not flag:
            break
        count += 1
    return count
