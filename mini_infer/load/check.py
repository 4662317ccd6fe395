"""Whether answers are the same under load: the greedy text of each prompt at every level against one at a time.

The measured levels are left alone: this asks again, with log-probabilities. Where two answers part, the two tokens may
have been so close that the order of a sum decided: that is a *tie*. Anything else is *wrong*.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from mini_infer.load.records import Ask, Conversation, Record

TIE = 0.25
"""Difference of two log-probabilities up to which bf16 may choose either: two steps of its grid at usual logits."""

CANDIDATES = 5
"""Log-probabilities asked for in each place: with two, a tie of three tokens would look wrong. No API gives fewer."""

_ROUNDING = 1e-4


class Divergence(Struct, frozen=True, kw_only=True):
    """Where an answer parted from the one asked alone. `token` counts from 0; `gap` is None where unknown."""

    level: str
    prompt: int
    kind: Literal["tie", "wrong"]
    token: int | None
    character: int
    alone: str
    found: str
    gap: float | None = None


class CheckedLevel(Struct, frozen=True, kw_only=True):
    level: str
    compared: int
    equal: int
    ties: int
    wrong: int
    failed: dict[str, int]
    unreconciled: list[int]
    """Prompts whose usage counts other tokens than were streamed."""


class CheckReport(Struct, frozen=True, kw_only=True):
    prompts: int
    levels: list[CheckedLevel]
    divergences: list[Divergence]
    has_logprobs: bool

    @property
    def wrong(self) -> int:
        return sum(level.wrong for level in self.levels)

    @property
    def ties(self) -> int:
        return sum(level.ties for level in self.levels)

    @property
    def not_compared(self) -> int:
        """Answers that should have been compared and could not be."""
        return sum(self.prompts - level.compared for level in self.levels)


def asked_greedily(conversation: Conversation) -> Conversation:
    return replace(conversation, first=replace(conversation.first, temperature=0.0, logprobs=CANDIDATES))


def flatten(conversations: Sequence[Conversation], records: Sequence[Record]) -> list[tuple[Ask, Record]]:
    """Each request asked alone, one after another, with its record: later turns keep the answers they followed."""
    pairs, left = [], list(records)
    for conversation in conversations:
        answers: list[str] = []
        while left and len(answers) < conversation.turns:
            record = left.pop(0)
            pairs.append((conversation.ask(answers), record))
            answers.append(record.text)
            if not record.is_ok:
                break
    return pairs


def shuffled(count: int, seed: str) -> list[int]:
    """0 … count - 1 in an order that leaves none in its place (Sattolo, 1986), nor any two as neighbours but by chance.

    Other neighbours make other batches; and a server that fails every so many requests fails on others this time.
    """
    order, rng = list(range(count)), random.Random(seed)
    for i in range(count - 1, 0, -1):
        j = rng.randrange(i)
        order[i], order[j] = order[j], order[i]
    return order


def check_level(
    name: str, alone: Sequence[Record], under_load: Mapping[int, Record]
) -> tuple[CheckedLevel, list[Divergence]]:
    """Compares answers to the same prompts, by their number; those that failed on either side are not compared."""
    found: list[Divergence] = []
    pairs = {number: (record, under_load[number]) for number, record in enumerate(alone) if number in under_load}
    good = [(number, a, b) for number, (a, b) in pairs.items() if a.is_ok and b.is_ok]
    for number, a, b in good:
        if (divergence := compare(name, number, a, b)) is not None:
            found.append(divergence)
    ties = sum(d.kind == "tie" for d in found)
    level = CheckedLevel(
        level=name,
        compared=len(good),
        equal=len(good) - len(found),
        ties=ties,
        wrong=len(found) - ties,
        failed=dict(Counter(r.cause or r.outcome for pair in pairs.values() for r in pair if not r.is_ok)),
        unreconciled=[number for number, _, b in good if not is_reconciled(b)],
    )
    return level, found


def is_reconciled(record: Record) -> bool:
    """Whether usage and the stream agree: an entry for each token, but perhaps for the end token, which has no text."""
    if record.counted_by != "usage":
        return True
    if record.logprobs:
        return 0 <= record.tokens - len(record.logprobs) <= 1
    return len(record.pieces) <= record.tokens


def compare(level: str, prompt: int, alone: Record, found: Record) -> Divergence | None:
    """Where two answers part, and whether that was a tie. None where their texts are equal."""
    if alone.text == found.text:
        return None
    character = _first_difference(alone.text, found.text)
    token = _first_difference([t.text for t in alone.logprobs], [t.text for t in found.logprobs])
    located = bool(alone.logprobs or found.logprobs)
    gap = _gap(alone, found, token) if located else None
    return Divergence(
        level=level,
        prompt=prompt,
        kind="tie" if gap is not None and gap <= TIE + _ROUNDING else "wrong",
        token=token if located else None,
        character=character,
        alone=_excerpt(alone.text, character),
        found=_excerpt(found.text, character),
        gap=gap,
    )


def _gap(alone: Record, found: Record, at: int) -> float | None:
    """How far apart the two tokens at this place were, by whichever answer shows both."""
    mine = alone.logprobs[at] if at < len(alone.logprobs) else None
    theirs = found.logprobs[at] if at < len(found.logprobs) else None
    if mine is None or theirs is None:
        return _gap_to_end(mine or theirs) if mine or theirs else None
    for own, other in ((mine, theirs), (theirs, mine)):
        if other.text != own.text and other.text in own.top:
            return abs(own.logprob - own.top[other.text])
    return None


def _gap_to_end(token: object) -> float | None:
    """One answer goes on where the other ended: the runner-up here stands for the end token, which is not shown."""
    top = getattr(token, "top", {})
    others = [value for text, value in top.items() if text != getattr(token, "text", None)]
    return abs(getattr(token, "logprob", 0.0) - max(others)) if others else None


def _first_difference(a: Sequence[str], b: Sequence[str]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _excerpt(text: str, at: int, around: int = 24) -> str:
    return text[max(0, at - around) : at + around]
