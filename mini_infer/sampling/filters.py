"""Top-k, top-p and min-p, looking at as few of the likeliest tokens as decide a row.

A sort of a whole vocabulary of 150,000 costs a hundred times what finding its 64 largest does. So the filters look at
the 64 largest, then at 1,024 and 16,384 where those leave a row undecided, and sort everything only for what is left.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mini_infer.sampling.params import Shaping
from mini_infer.sampling.tensors import column, take_rows, widest_float

_WIDTHS = (64, 1024, 16384)


class Cut(NamedTuple):
    """Filtered rows of one width: `probs` [g, C] of the ascending `ids` [g, C], or of every id where that is None."""

    rows: list[int]
    probs: Tensor
    ids: Tensor | None


def needs_order(shaping: Shaping, vocab_size: int) -> bool:
    """Top-k or top-p has something to do. (Min-p alone is a threshold.)"""
    return 0 < shaping.top_k < vocab_size or shaping.top_p < 1.0


def mask_min_p_(scaled: Tensor, shapings: Sequence[Shaping]) -> None:
    """Drops what is less likely than min_p times the best; the best of each row of `scaled` [G, V] is 0."""
    if any(shaping.min_p > 0.0 for shaping in shapings):
        floors = column((math.log(s.min_p) if s.min_p > 0.0 else -math.inf for s in shapings), scaled)
        scaled.masked_fill_(scaled < floors, -torch.inf)


def cut(probs: Tensor, shapings: Sequence[Shaping]) -> Iterator[Cut]:
    """What top-k, then top-p among what that left, then min-p leave of the distributions `probs` [G, V]."""
    vocab_size = probs.shape[1]
    limits = _Limits.of(shapings, probs)
    pending = list(range(len(shapings)))
    for width in _widths(vocab_size):
        values, ids = _ordered(take_rows(probs, pending), width)
        kept, decided = limits.take(pending).apply(values, vocab_size)
        verdicts = decided.tolist()
        done = [g for g, is_decided in enumerate(verdicts) if is_decided]
        if done:
            ids, order = take_rows(ids, done).sort(dim=-1)
            every = width == vocab_size
            yield Cut([pending[g] for g in done], take_rows(kept, done).gather(1, order), None if every else ids)
        pending = [row for row, is_decided in zip(pending, verdicts, strict=True) if not is_decided]
        if not pending:
            return


def largest(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest of each row of [G, V] and their ids, largest first, ties by lowest id: [G, count] each."""
    count = min(count, logits.shape[1])
    for width in _widths(logits.shape[1], count):
        values, ids = _ordered(logits, width)
        if width == logits.shape[1] or bool((values[:, count - 1] > values[:, -1]).all()):
            break
    return values[:, :count], ids[:, :count]


def _widths(vocab_size: int, least: int = 1) -> list[int]:
    return [width for width in _WIDTHS if least < width < vocab_size] + [vocab_size]


def _ordered(values: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The `width` largest of each row, largest first, equal ones by id.

    Which of several equal to the smallest are among them is left to `topk`: a cut there is not to be trusted.
    """
    if width == values.shape[1]:
        return torch.sort(values, dim=-1, descending=True, stable=True)
    ids = values.topk(width, dim=-1).indices.sort(dim=-1).values
    found, order = torch.sort(values.gather(1, ids), dim=-1, descending=True, stable=True)
    return found, ids.gather(1, order)


class _Limits(NamedTuple):
    """What the filters of each row keep: [G, 1] each."""

    top_k: Tensor  # the vocabulary's size where off
    top_p: Tensor
    min_p: Tensor

    @classmethod
    def of(cls, shapings: Sequence[Shaping], probs: Tensor) -> _Limits:
        vocab_size = probs.shape[1]
        wide = probs.new_empty(0, dtype=widest_float(probs.device))
        top_k = column((min(s.top_k or vocab_size, vocab_size) for s in shapings), wide.long())
        return cls(top_k, column((s.top_p for s in shapings), wide), column((s.min_p for s in shapings), probs))

    def take(self, rows: Sequence[int]) -> _Limits:
        return _Limits(*(take_rows(part, rows) for part in self))

    def apply(self, values: Tensor, vocab_size: int) -> tuple[Tensor, Tensor]:
        """The W largest probabilities [G, W], in falling order, after the filters, and whether W were enough: [G].

        Sums are running sums: unlike plain ones they come out the same whatever rows are beside a row.
        """
        width = values.shape[1]
        rank = torch.arange(width, device=values.device)
        has_k = self.top_k < vocab_size
        sums = (values * (rank < self.top_k)).cumsum(-1, dtype=self.top_p.dtype)
        total = torch.where(has_k, sums[:, -1:], 1.0)
        before = sums.roll(1, dims=-1)
        before[:, 0] = 0.0
        within_p = (before < self.top_p * total) | (self.top_p >= 1.0)
        within = (rank < self.top_k) & within_p & (values >= self.min_p * values[:, :1]) & (values > 0)
        # every condition holds for a leading stretch, and the best token always stays
        count = within.sum(-1, keepdim=True).clamp(min=1)
        kept = (values / sums.gather(1, count - 1)).to(values.dtype) * (rank < count)
        last, smallest = values.gather(1, count - 1), values[:, -1:]
        decided = (last > smallest) & (~has_k | (self.top_k <= width) | (smallest == 0))
        return kept, decided[:, 0] if width < vocab_size else torch.ones_like(decided[:, 0])
