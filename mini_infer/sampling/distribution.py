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
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from mini_infer.sampling.penalties import edit_logits_, widest_float
from mini_infer.sampling.rows import RowContext

Fault = Literal["non-finite", "masked"]
"""Why a row has no distribution: its largest logit is NaN or infinite, or bans and biases left no token."""

_WIDTHS = (64, 1024, 16384)
"""How many of the largest logits the filters look at, in turn, before the whole vocabulary is sorted."""


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
                ids = None if group.ids is None else _take(group.ids, rows)
                yield Group([group.keys[g] for g in rows], _take(group.probs, rows), ids)


def invert(probs: Tensor, numbers: Sequence[float]) -> Tensor:
    """For each row of `probs` [G, C], the first column at which the cumulative sum exceeds number * total: [G].

    Never a column of probability 0, however the sums were rounded.
    """
    sums = probs.cumsum(-1, dtype=widest_float(probs.device))
    total = sums[:, -1:].contiguous()
    target = torch.tensor(numbers, dtype=sums.dtype, device=sums.device)[:, None] * total
    last = torch.searchsorted(sums, total)  # the last column that adds anything
    return torch.minimum(torch.searchsorted(sums, target, right=True), last)[:, 0]


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
    edited: list[int] = []
    plain: list[int] = []
    for key, context in enumerate(contexts):
        if not math.isfinite(best[context.row]):
            faults[key] = "non-finite"
        elif context.edits_logits:
            edited.append(key)
        elif is_greedy[key]:
            certain[key] = best_ids[context.row]
        else:
            plain.append(key)
    groups: list[Group] = []
    if edited:
        work = edited_logits(logits, [contexts[key] for key in edited])
        best, best_ids = _peaks(work, any(is_greedy[key] for key in edited))
        sampled: list[int] = []
        for g, key in enumerate(edited):
            if best[g] == -math.inf:
                faults[key] = "masked"
            elif is_greedy[key]:
                certain[key] = best_ids[g]
            else:
                sampled.append(g)
        groups += _shape(_take(work, sampled), [edited[g] for g in sampled], contexts)
    if plain:
        groups += _shape(_copy(logits, [contexts[key].row for key in plain]), plain, contexts)
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
    return _take(logits, rows).to(work_type)


def _peaks(logits: Tensor, with_ids: bool) -> tuple[list[float], list[int]]:
    """The largest value of each row (NaN where there is one) and, where wanted, the lowest id that has it."""
    if not with_ids:
        return logits.amax(-1).tolist(), []  # several times faster
    values, ids = logits.max(-1)
    return values.tolist(), ids.tolist()


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


def _take(tensor: Tensor, rows: Sequence[int]) -> Tensor:
    """`tensor[rows]` along the first dimension, without a copy where that is all of it in order."""
    if list(rows) == list(range(tensor.shape[0])):
        return tensor
    return tensor[torch.tensor(rows, dtype=torch.long).to(tensor.device)]


def _shape(logits: Tensor, keys: Sequence[int], contexts: Sequence[RowContext]) -> list[Group]:
    """Temperature and filters. `logits` [G, V] may be overwritten; row g belongs to `contexts[keys[g]]`."""
    vocab_size = logits.shape[1]
    filtered = [g for g, key in enumerate(keys) if _is_cut(contexts[key], vocab_size)]
    rest = [g for g, key in enumerate(keys) if not _is_cut(contexts[key], vocab_size)]
    groups = []
    if rest:
        chosen = [keys[g] for g in rest]
        scaled = _scale_(_take(logits, rest), [contexts[key] for key in chosen])
        _mask_min_p_(scaled, [contexts[key] for key in chosen])
        groups.append(Group(chosen, scaled.softmax(-1)))
    if filtered:
        chosen = [keys[g] for g in filtered]
        groups += _filter(_take(logits, filtered), chosen, [contexts[key] for key in chosen])
    return groups


def _is_cut(context: RowContext, vocab_size: int) -> bool:
    """Top-k or top-p has something to do: the row needs its largest logits in order."""
    return 0 < context.shaping.top_k < vocab_size or context.shaping.top_p < 1.0


def _column(values: Iterable[float], like: Tensor) -> Tensor:
    return torch.tensor(list(values), dtype=like.dtype, device=like.device)[:, None]


def _scale_(logits: Tensor, contexts: Sequence[RowContext]) -> Tensor:
    """(l - max) / temperature, in place: the subtraction first, so that no temperature can overflow."""
    logits.sub_(logits.amax(-1, keepdim=True))
    if any(context.shaping.temperature != 1.0 for context in contexts):
        logits.div_(_column((context.shaping.temperature for context in contexts), logits))
    return logits


def _mask_min_p_(scaled: Tensor, contexts: Sequence[RowContext]) -> None:
    """Drops what is less likely than min_p times the best, whose scaled logit is 0."""
    if any(context.shaping.min_p > 0.0 for context in contexts):
        floor = _column((_log(context.shaping.min_p) for context in contexts), scaled)
        scaled.masked_fill_(scaled < floor, -torch.inf)


def _log(value: float) -> float:
    return math.log(value) if value > 0.0 else -math.inf


def _filter(logits: Tensor, keys: Sequence[int], contexts: Sequence[RowContext]) -> list[Group]:
    """Top-k, top-p and min-p of [G, V], looking at as few of the largest logits as decide each row."""
    scaled = _scale_(logits, contexts)
    vocab_size = scaled.shape[1]
    limits = _Limits.of(contexts, scaled)
    pending = list(range(len(keys)))
    groups = []
    for width in _widths(vocab_size):
        values, ids = _ordered(_take(scaled, pending), width)
        count, decided = limits.take(pending).apply(values, vocab_size)
        verdicts = decided.tolist()
        done = [g for g, is_decided in enumerate(verdicts) if is_decided]
        if done:
            values, ids, count = _take(values, done), _take(ids, done), _take(count, done)
            dropped = torch.arange(width, device=values.device) >= count[:, None]
            probs = values.masked_fill(dropped, -torch.inf).softmax(-1)
            ids, order = ids.sort(dim=-1)
            every = width == vocab_size
            groups.append(Group([keys[pending[g]] for g in done], probs.gather(1, order), None if every else ids))
        pending = [row for row, is_decided in zip(pending, verdicts, strict=True) if not is_decided]
        if not pending:
            break
    return groups


class _Limits(NamedTuple):
    """What the filters of each row keep: [G] each."""

    top_k: Tensor  # the vocabulary's size where off
    top_p: Tensor
    floor: Tensor  # log(min_p)
    mass: Tensor  # sum of exp(scaled logit) over the vocabulary

    @classmethod
    def of(cls, contexts: Sequence[RowContext], scaled: Tensor) -> _Limits:
        wide = widest_float(scaled.device)
        shapings = [context.shaping for context in contexts]
        vocab_size = scaled.shape[1]
        top_k = torch.tensor([min(s.top_k or vocab_size, vocab_size) for s in shapings], device=scaled.device)
        top_p = torch.tensor([s.top_p for s in shapings], dtype=wide, device=scaled.device)
        floor = _column((_log(s.min_p) for s in shapings), scaled)[:, 0]
        mass = torch.ones_like(top_p)
        whole = [g for g, s in enumerate(shapings) if not 0 < s.top_k < vocab_size]
        if whole:  # the best token's exp is 1, so its probability is 1 / mass; a plain sum may depend on the batch
            mass[torch.tensor(whole).to(mass.device)] = 1.0 / _take(scaled, whole).softmax(-1).amax(-1).to(wide)
        return cls(top_k, top_p, floor, mass)

    def take(self, rows: Sequence[int]) -> _Limits:
        return _Limits(*(_take(part, rows) for part in self))

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
        # every condition holds for a leading stretch, and the best token always stays
        count = (within_k & within_p & (values >= self.floor[:, None])).sum(-1).clamp(min=1)
        if width == vocab_size:
            return count, torch.ones_like(has_k)
        last = values.gather(1, count[:, None] - 1)[:, 0]
        return count, (last > values[:, -1]) & (~has_k | (self.top_k <= width))
