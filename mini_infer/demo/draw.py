"""Drawing from word lists with a seeded generator, and the few rules of English that slots need."""

from __future__ import annotations

import functools
import hashlib
import itertools
import random
import re
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

_SYLLABLES = [c + v for c in "b d f g k l m n p r s t v z br dr gr kl pl tr".split() for v in "aeiou"]


@functools.cache
def _cumulative(n: int, skew: float) -> tuple[float, ...]:
    return tuple(itertools.accumulate(1 / (i + 1) ** skew for i in range(n)))


def pick(rng: random.Random, options: Sequence[T], skew: float = 0.7) -> T:
    """One of `options`, the i-th with a weight of 1 / (i+1)^skew (Zipf): a small model learns which come first."""
    return rng.choices(options, cum_weights=_cumulative(len(options), skew))[0]


def made_up(rng: random.Random) -> str:
    """A word of two or three syllables that no dictionary has: what is copied must be copied letter by letter."""
    word = "".join(rng.choice(_SYLLABLES) for _ in range(rng.choice((2, 2, 3))))
    return word + rng.choice(("", "", "n", "x", "l", "r"))


def article(noun: str) -> str:
    """ "an owl", "a fox", "a unicorn"."""
    return f"{'an' if noun[0] in 'aeiou' and not noun.startswith('uni') else 'a'} {noun}"


def sentence(text: str) -> str:
    """With its first letter capital, which may stand behind a quotation mark."""
    return re.sub(r"[a-zA-Z]", lambda match: match[0].upper(), text, count=1)


def joined(items: Sequence[str], word: str = "and") -> str:
    """ "a", "a and b", "a, b and c"."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} {word} {items[-1]}"


def held_out(*key: str, one_in: int = 10) -> bool:
    """Whether this combination is kept away from training. The same on every machine and in every process."""
    digest = hashlib.sha256("\x1f".join(key).encode()).digest()
    return int.from_bytes(digest[:4], "big") % one_in == 0


def words(text: str) -> list[str]:
    """The words of a text in lower case, without punctuation."""
    return re.findall(r"[a-z]+(?:'[a-z]+)*", text.lower())
