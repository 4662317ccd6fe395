"""Top-k, top-p and min-p, looking at as few of the largest logits as decide a row.

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
        scaled.masked_fill_(scaled < column((_log(shaping.min_p) for shaping in shapings), scaled), -torch.inf)


def cut(scaled: Tensor, shapings: Sequence[Shaping]) -> Iterator[Cut]:
    """The distributions that top-k, top-p and min-p leave of `scaled` [G, V]: (logit - max) / temperature."""
    vocab_size = scaled.shape[1]
    limits = _Limits.of(shapings, scaled)
    pending = list(range(len(shapings)))
    for width in _widths(vocab_size):
        values, ids = _ordered(take_rows(scaled, pending), width)
        count, decided = limits.take(pending).apply(values, vocab_size)
        verdicts = decided.tolist()
        done = [g for g, is_decided in enumerate(verdicts) if is_decided]
        if done:
            values, ids, count = take_rows(values, done), take_rows(ids, done), take_rows(count, done)
            dropped = torch.arange(width, device=values.device) >= count[:, None]
            probs = values.masked_fill(dropped, -torch.inf).softmax(-1)
            ids, order = ids.sort(dim=-1)
            yield Cut([pending[g] for g in done], probs.gather(1, order), None if width == vocab_size else ids)
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


def _log(value: float) -> float:
    return math.log(value) if value > 0.0 else -math.inf


class _Limits(NamedTuple):
    """What the filters of each row keep: [G] each."""

    top_k: Tensor  # the vocabulary's size where off
    top_p: Tensor
    floor: Tensor  # log(min_p)
    mass: Tensor  # sum of exp(scaled logit) over the vocabulary; read only where top-k is off

    @classmethod
    def of(cls, shapings: Sequence[Shaping], scaled: Tensor) -> _Limits:
        wide = widest_float(scaled.device)
        vocab_size = scaled.shape[1]
        top_k = torch.tensor([min(s.top_k or vocab_size, vocab_size) for s in shapings], device=scaled.device)
        top_p = torch.tensor([s.top_p for s in shapings], dtype=wide, device=scaled.device)
        floor = column((_log(s.min_p) for s in shapings), scaled)[:, 0]
        mass = torch.ones_like(top_p)
        whole = [g for g, s in enumerate(shapings) if not 0 < s.top_k < vocab_size]
        if whole:  # the best token's exp is 1, so its probability is 1 / mass; a plain sum may depend on the batch
            mass[torch.tensor(whole).to(mass.device)] = 1.0 / take_rows(scaled, whole).softmax(-1).amax(-1).to(wide)
        return cls(top_k, top_p, floor, mass)

    def take(self, rows: Sequence[int]) -> _Limits:
        return _Limits(*(take_rows(part, rows) for part in self))

    def apply(self, values: Tensor, vocab_size: int) -> tuple[Tensor, Tensor]:
        """How many of `values` [G, W], scaled logits in falling order, stay, and whether W were enough to tell."""
        width = values.shape[1]
        within_k = torch.arange(width, device=values.device) < self.top_k[:, None]
        sums = (values.exp() * within_k).cumsum(-1, dtype=self.mass.dtype)
        has_k = self.top_k < vocab_size
        total = torch.where(has_k, sums[:, -1], self.mass)
        before = sums.roll(1, dims=-1)
        before[:, 0] = 0.0
        within_p = (before < (self.top_p * total)[:, None]) | (self.top_p >= 1.0)[:, None]
        possible = (values >= self.floor[:, None]) & ~values.isneginf()
        # every condition holds for a leading stretch, and the best token always stays
        count = (within_k & within_p & possible).sum(-1).clamp(min=1)
        smallest = values[:, -1]
        knows_mass = ~has_k | (self.top_k <= width) | smallest.isneginf()
        last = values.gather(1, count[:, None] - 1)[:, 0]
        return count, (last > smallest) & knows_mass if width < vocab_size else torch.ones_like(has_k)
