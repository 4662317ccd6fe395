"""Sampling as one would write it on a blackboard: one row, plain Python, float64, every step over the vocabulary."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from scipy.stats import chisquare

from mini_infer.sampling.params import SamplingParams


def edited(
    logits: Sequence[float],
    params: SamplingParams,
    tokens: Sequence[int] = (),
    num_prompt: int = 0,
    stop_ids: Sequence[int] = (),
) -> list[float]:
    """The logits after penalties, bias and the ban on an early end."""
    s = params.shaping
    output = list(tokens)[num_prompt:]
    counts = Counter(output)
    scores = list(logits)
    for i in set(tokens):
        scores[i] = scores[i] / s.repetition_penalty if scores[i] > 0 else scores[i] * s.repetition_penalty
    for i, count in counts.items():
        scores[i] -= s.presence_penalty + s.frequency_penalty * count
    for i, bias in s.logit_bias:
        scores[i] += bias
    if len(output) < s.min_tokens:
        for i in stop_ids:
            scores[i] = -math.inf
    return scores


def distribution(logits, params, tokens=(), num_prompt=0, stop_ids=()) -> list[float]:
    """The probabilities of every id, in the order the engine documents: temperature, top-k, top-p, min-p."""
    s = params.shaping
    scores = edited(logits, params, tokens, num_prompt, stop_ids)
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    if s.is_greedy:
        return [float(i == order[0]) for i in range(len(scores))]
    best = scores[order[0]]
    weights = [math.exp((score - best) / s.temperature) for score in scores]
    kept = order[: s.top_k] if s.top_k else order
    mass = math.fsum(weights[i] for i in kept)
    nucleus, before = [], 0.0
    for i in kept:
        if s.top_p < 1.0 and before / mass >= s.top_p:
            break
        nucleus.append(i)
        before += weights[i]
    final = {i for i in nucleus if weights[i] >= s.min_p * weights[order[0]]}
    mass = math.fsum(weights[i] for i in final)
    return [weights[i] / mass if i in final else 0.0 for i in range(len(scores))]


def draw(probs: Sequence[float], u: float) -> int:
    """The first id at which the cumulative sum exceeds u."""
    total = 0.0
    for i, p in enumerate(probs):
        total += p
        if total > u:
            return i
    return max(i for i, p in enumerate(probs) if p > 0)


def p_value(drawn: Sequence[int], probs: Sequence[float], least: float = 20.0) -> float:
    """Chi-square p-value of draws against a distribution, cells pooled to at least `least` expected; 0 where
    something was drawn that cannot be."""
    counts = Counter(drawn)
    if any(probs[i] == 0.0 for i in counts):
        return 0.0
    cells, observed, expected = [], 0, 0.0
    for i in sorted(range(len(probs)), key=lambda i: probs[i]):
        observed, expected = observed + counts[i], expected + probs[i] * len(drawn)
        if expected >= least:
            cells.append((observed, expected))
            observed, expected = 0, 0.0
    if expected:
        last = cells.pop()
        cells.append((last[0] + observed, last[1] + expected))
    if len(cells) == 1:
        return 1.0
    scale = len(drawn) / sum(e for _, e in cells)
    return float(chisquare([o for o, _ in cells], [e * scale for _, e in cells]).pvalue)
