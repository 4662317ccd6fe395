"""From logits to the distribution that is sampled: one function for the sampler, the verifier and the draft model.

Order: penalties, bias and bans on single logits (`penalties.py`); temperature; top-k; top-p among what top-k left;
min-p. Ties go to the lowest id: in the argmax, and where top-k or top-p cuts between equal logits. Probabilities are
float32 (float64 for float64 logits) whatever the model's type. No row's result depends on the rows beside it: only
operations that treat each row by itself are used.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mini_infer.sampling.filters import cut, mask_min_p_, needs_order
from mini_infer.sampling.params import Shaping
from mini_infer.sampling.penalties import edit_logits_
from mini_infer.sampling.rows import RowContext
from mini_infer.sampling.tensors import column, take_rows, widest_float

Fault = Literal["non-finite", "masked"]
"""Why a row has no distribution: its largest logit is NaN or infinite, or bans and biases left no token."""

_STRETCH = 512  # columns that are summed, or searched, at once
_LOGITS_AT_ONCE = 2_500_000  # shaped together on a CPU, where larger buffers cost more in page faults than in sums


@dataclass(frozen=True, slots=True, eq=False)
class Categorical:
    """One distribution: `probs` [C] of the ascending `ids` [C], or of every id where `ids` is None."""

    probs: Tensor
    ids: Tensor | None = None

    @classmethod
    def one_hot(cls, token: int, like: Tensor) -> Categorical:
        """All of the probability on one token; `like` gives type and device."""
        return cls(like.new_ones(1), torch.tensor([token], device=like.device))

    def prob(self, token: int) -> Tensor:
        """The probability of one token, as a tensor of no dimensions."""
        if self.ids is not None:
            return self.probs.dot((self.ids == token).to(self.probs.dtype))
        return self.probs[token] if token < self.probs.numel() else self.probs.new_zeros(())

    def dense(self, vocab_size: int) -> Tensor:
        """The probabilities of ids 0 … vocab_size - 1; ids this distribution does not know have none."""
        if self.ids is None and self.probs.numel() == vocab_size:
            return self.probs
        every = self.probs.new_zeros(vocab_size)
        if self.ids is None:
            every[: self.probs.numel()] = self.probs
        else:
            every[self.ids] = self.probs
        return every

    def at(self, ids: Tensor | None, vocab_size: int) -> Tensor:
        """The probabilities of the ascending `ids` [C], or of ids 0 … vocab_size - 1 where that is None."""
        if ids is None or self.ids is None:
            every = self.dense(vocab_size)
            return every if ids is None else every[ids]
        found = torch.searchsorted(self.ids, ids).clamp_(max=self.ids.numel() - 1)
        return self.probs[found] * (self.ids[found] == ids)


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Distributions of the same width: row g is that of key `keys[g]`. `ids` [G, C] ascending, None: every id."""

    keys: Sequence[int]
    probs: Tensor
    ids: Tensor | None = None

    def draw(self, numbers: Sequence[float]) -> dict[int, int]:
        """The token of each key, by `invert`."""
        tokens = invert(self.probs, numbers)
        if self.ids is not None:
            tokens = self.ids.gather(1, tokens[:, None])[:, 0]
        return dict(zip(self.keys, tokens.tolist(), strict=True))


class Distributions:
    """Many distributions under integer keys: certain tokens, groups of probabilities, and rows that have none."""

    def __init__(
        self, groups: Iterable[Group], certain: Mapping[int, int], faults: Mapping[int, Fault], like: Tensor
    ) -> None:
        self.groups = tuple(groups)
        self.certain = certain  # key → the only possible token
        self.faults = faults
        self.vocab_size = like.shape[-1]
        self._like = like  # device and type of the probabilities
        self._place = {key: (group, g) for group in self.groups for g, key in enumerate(group.keys)}

    def __getitem__(self, key: int) -> Categorical:
        """The distribution of one key. Raises KeyError for a faulty row."""
        if key in self.certain:
            return Categorical.one_hot(self.certain[key], self._like)
        group, g = self._place[key]
        return Categorical(group.probs[g], None if group.ids is None else group.ids[g])

    def draw(self, numbers: Mapping[int, float]) -> dict[int, int]:
        """The token of each key, by inverting its cumulative distribution, in id order, at the key's number in [0, 1).

        Raises KeyError for a faulty row.
        """
        drawn = {key: self.certain[key] for key in numbers if key not in self._place}
        for part in self.select(numbers):
            drawn.update(part.draw([numbers[key] for key in part.keys]))
        return drawn

    def select(self, keys: Container[int]) -> Iterator[Group]:
        """The groups cut down to some of the keys; certain tokens are in none. For reading only."""
        for group in self.groups:
            rows = [g for g, key in enumerate(group.keys) if key in keys]
            if len(rows) == len(group.keys):
                yield group
            elif rows:
                ids = None if group.ids is None else take_rows(group.ids, rows)
                yield Group([group.keys[g] for g in rows], take_rows(group.probs, rows), ids)


def invert(probs: Tensor, numbers: Sequence[float]) -> Tensor:
    """For each row of `probs` [G, C], the first column at which the cumulative sum exceeds number * total: [G].

    Never a column of probability 0, however the sums were rounded. Wide rows are summed by stretches, and column by
    column only in the stretch that the number falls into.
    """
    wide = widest_float(probs.device)
    whole = probs.shape[1] // _STRETCH * _STRETCH
    parts = [
        probs[:, :whole].reshape(len(probs), whole // _STRETCH, _STRETCH).sum(-1),
        probs[:, whole:].sum(-1, keepdim=True),
    ]
    sums = torch.cat(parts, dim=1).cumsum(-1, dtype=wide)
    target = torch.tensor(numbers, dtype=wide, device=probs.device)[:, None] * sums[:, -1:]
    stretch = _first_above(sums, target)
    rest = target - torch.where(stretch > 0, sums.gather(1, (stretch - 1).clamp(min=0)), 0.0)
    columns = stretch * _STRETCH + torch.arange(_STRETCH, device=probs.device)
    inner = probs.gather(1, columns.clamp(max=probs.shape[1] - 1)) * (columns < probs.shape[1])
    return columns.gather(1, _first_above(inner.cumsum(-1, dtype=wide), rest.clamp(min=0.0)))[:, 0]


def _first_above(sums: Tensor, target: Tensor) -> Tensor:
    """The first column of running sums [G, C] above `target` [G, 1], at most the last that adds anything: [G, 1]."""
    last = torch.searchsorted(sums, sums[:, -1:].contiguous())
    return torch.minimum(torch.searchsorted(sums, target, right=True), last)


def shape_logits(logits: Tensor, contexts: Sequence[RowContext]) -> Distributions:
    """The distribution of each context (its index is the key) from its row of `logits` [R, V]; several may share one.

    A greedy row costs an argmax, and no copy unless its logits are edited.
    """
    work_type = torch.promote_types(logits.dtype, torch.float32)
    like = torch.empty(0, logits.shape[1], dtype=work_type, device=logits.device)
    is_greedy = [context.shaping.is_greedy for context in contexts]
    best, best_ids = _peaks(logits, any(is_greedy)) if contexts else ([], [])
    certain: dict[int, int] = {}
    faults: dict[int, Fault] = {}
    shaped: list[int] = []
    for key, context in enumerate(contexts):
        if not math.isfinite(best[context.row]):
            faults[key] = "non-finite"
        elif is_greedy[key] and not context.edits_logits:
            certain[key] = best_ids[context.row]
        else:
            shaped.append(key)
    groups: list[Group] = []
    at_once = max(1, _LOGITS_AT_ONCE // logits.shape[1] if logits.device.type == "cpu" else len(shaped))
    for first in range(0, len(shaped), at_once):
        keys = shaped[first : first + at_once]
        work = edited_logits(logits, [contexts[key] for key in keys])
        best, best_ids = _peaks(work, any(is_greedy[key] for key in keys))
        sampled: list[int] = []
        for g, key in enumerate(keys):
            if best[g] == -math.inf:
                faults[key] = "masked"
            elif is_greedy[key]:
                certain[key] = best_ids[g]
            else:
                sampled.append(g)
        if sampled:
            groups += _shape(take_rows(work, sampled), [keys[g] for g in sampled], contexts)
    return Distributions(groups, certain, faults, like)


def edited_logits(logits: Tensor, contexts: Sequence[RowContext]) -> Tensor:
    """A copy [G, V] of the contexts' rows after penalties, bias and bans, in at least float32."""
    work = _copy(logits, [context.row for context in contexts])
    edit_logits_(work, contexts)
    return work


def _copy(logits: Tensor, rows: Sequence[int]) -> Tensor:
    """A contiguous copy of the rows in at least float32."""
    work_type = torch.promote_types(logits.dtype, torch.float32)
    if list(rows) == list(range(logits.shape[0])):
        return logits.to(work_type, copy=True, memory_format=torch.contiguous_format)
    return take_rows(logits, rows).to(work_type)


def _peaks(logits: Tensor, with_ids: bool) -> tuple[list[float], list[int]]:
    """The largest value of each row (NaN where there is one) and, where wanted, the lowest id that has it."""
    if not with_ids:
        return logits.amax(-1).tolist(), []
    whole = logits.shape[1] // _STRETCH * _STRETCH
    parts = [logits[:, :whole].view(len(logits), -1, _STRETCH).amax(-1)] if whole else []
    parts += [logits[:, whole:].amax(-1, keepdim=True)] if whole < logits.shape[1] else []
    values, stretch = torch.cat(parts, dim=1).max(-1)  # `max` of whole rows would take several times as long as `amax`
    columns = stretch[:, None] * _STRETCH + torch.arange(_STRETCH, device=logits.device)
    inner = logits.gather(1, columns.clamp_(max=logits.shape[1] - 1)).max(-1, keepdim=True).indices
    return values.tolist(), columns.gather(1, inner)[:, 0].tolist()


def logit_gaps(
    logits: Tensor, contexts: Sequence[RowContext], best: Sequence[int], others: Sequence[int]
) -> list[float]:
    """For each context the logit of its `best` token minus that of its `others` token, as greedy sampling sees them."""
    if not contexts:
        return []
    if any(context.edits_logits for context in contexts):
        logits, rows = edited_logits(logits, contexts), list(range(len(contexts)))
    else:
        rows = [context.row for context in contexts]
    pairs = logits[torch.tensor([rows, rows]).to(logits.device), torch.tensor([best, others]).to(logits.device)]
    high, low = pairs.to(torch.promote_types(logits.dtype, torch.float32))
    return (high - low).tolist()  # type: ignore[no-any-return]


def _shape(logits: Tensor, keys: Sequence[int], contexts: Sequence[RowContext]) -> list[Group]:
    """Temperature and filters. `logits` [G, V] may be overwritten; row g belongs to `contexts[keys[g]]`."""
    shapings = [contexts[key].shaping for key in keys]
    filtered = [g for g, shaping in enumerate(shapings) if needs_order(shaping, logits.shape[1])]
    rest = [g for g, shaping in enumerate(shapings) if not needs_order(shaping, logits.shape[1])]
    groups = []
    if rest:
        chosen = [shapings[g] for g in rest]
        scaled = _scale_(take_rows(logits, rest), chosen)
        mask_min_p_(scaled, chosen)
        groups.append(Group([keys[g] for g in rest], _softmax_(scaled)))
    if filtered:
        chosen = [shapings[g] for g in filtered]
        for part in cut(_softmax_(_scale_(take_rows(logits, filtered), chosen)), chosen):
            groups.append(Group([keys[filtered[g]] for g in part.rows], part.probs, part.ids))
    return groups


def _scale_(logits: Tensor, shapings: Sequence[Shaping]) -> Tensor:
    """(l - max) / temperature, in place: the subtraction first, so that no temperature can overflow."""
    logits.sub_(logits.amax(-1, keepdim=True))
    if any(shaping.temperature != 1.0 for shaping in shapings):
        logits.div_(column((shaping.temperature for shaping in shapings), logits))
    return logits


def _softmax_(scaled: Tensor) -> Tensor:
    """In place: on a CPU the page faults of a fresh result would cost more than the softmax."""
    return torch.softmax(scaled, -1, out=scaled)
