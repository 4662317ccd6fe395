"""What is asked: endless conversations of one kind, the same ones for the same seed.

Times and figures know nothing of this; `tokens` is how a workload makes prompts of exact length without a tokenizer.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Literal, Protocol, get_args

from mini_infer.errors import UserError
from mini_infer.load.phrases import FOLLOW_UPS, MANNERS, TASKS, TOPICS, WORDS
from mini_infer.load.records import Ask, Conversation, Message

Kind = Literal["chat", "random", "shared-prefix", "multi-turn", "file"]
KINDS: tuple[Kind, ...] = get_args(Kind)

EXACT = ("random", "shared-prefix")
"""The kinds that need token ids: their lengths are exact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadOptions:
    """Sizes, all in tokens. `ignore_eos` None: where lengths are meant to be exact. Raises UserError."""

    kind: Kind = "chat"
    input_tokens: int = 128
    output_tokens: int = 64
    prefix_tokens: int = 512
    prefixes: int = 1
    turns: int = 3
    temperature: float | None = 0.0
    ignore_eos: bool | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UserError(f"--workload is {self.kind!r}: it must be one of {', '.join(KINDS)}")
        for name in ("input_tokens", "output_tokens", "prefix_tokens", "prefixes", "turns"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name.replace('_', '-')} is {getattr(self, name)}: it must be at least 1")

    @property
    def exact(self) -> bool:
        """Whether answers must have exactly `output_tokens`."""
        return self.kind in EXACT if self.ignore_eos is None else self.ignore_eos


@dataclass(frozen=True, slots=True)
class TokenSource:
    """Ids that a server's own tokenizer gave for plain words; empty where the server has no /tokenize.

    Without ids, a prompt is a text of as many common words, and its length is near the truth, not exact.
    """

    ids: tuple[int, ...] = ()

    def prompt(self, count: int, rng: random.Random) -> str | tuple[int, ...]:
        if self.ids:
            return tuple(rng.choices(self.ids, k=count))
        return " ".join(rng.choices(WORDS, k=count))


class Workload(Protocol):
    """Endless conversations. A seed gives the same ones each time, and another seed others."""

    def conversations(self, seed: str) -> Iterator[Conversation]: ...


def make_workload(
    options: WorkloadOptions, tokens: TokenSource | None = None, recorded: Sequence[Conversation] = ()
) -> Workload:
    """`tokens` is for the exact kinds, `recorded` (see `load.dataset`) for `file`."""
    match options.kind:
        case "chat":
            return Chat(options, turns=1)
        case "multi-turn":
            return Chat(options, turns=options.turns)
        case "file":
            if not recorded:
                raise UserError("--workload file needs --file FILE with at least one prompt")
            return Recorded(recorded)
        case _:
            return Exact(options, tokens or TokenSource())


@dataclass(frozen=True, slots=True)
class Chat:
    """Short questions such as people ask, and follow-ups to the answers."""

    options: WorkloadOptions
    turns: int = 1

    def conversations(self, seed: str) -> Iterator[Conversation]:
        rng, options = random.Random(seed), self.options
        while True:
            said = rng.choice(TASKS).format(topic=rng.choice(TOPICS), how=rng.choice(MANNERS))
            first = Ask(
                messages=(Message("user", said),),
                max_tokens=options.output_tokens,
                ignore_eos=options.exact,
                temperature=options.temperature,
            )
            yield Conversation(first, tuple(rng.choices(FOLLOW_UPS, k=self.turns - 1)))


@dataclass(frozen=True, slots=True)
class Exact:
    """Prompts of exactly `input_tokens`, answers of exactly `output_tokens`, by /v1/completions.

    With `shared-prefix`, each prompt has one of `prefixes` beginnings of `prefix_tokens` in front; the beginnings are
    the seed's own, so that another seed meets no cache that is warm from before.
    """

    options: WorkloadOptions
    tokens: TokenSource = field(default_factory=TokenSource)

    def conversations(self, seed: str) -> Iterator[Conversation]:
        rng, options = random.Random(seed), self.options
        shared = options.kind == "shared-prefix"
        count = options.prefixes if shared else 0
        prefixes = [self.tokens.prompt(options.prefix_tokens, rng) for _ in range(count)]
        length = options.input_tokens + (options.prefix_tokens if shared else 0)
        while True:
            prompt = self.tokens.prompt(options.input_tokens, rng)
            if shared:
                prompt = _join(rng.choice(prefixes), prompt)
            yield Conversation(
                Ask(
                    prompt=prompt,
                    max_tokens=options.output_tokens,
                    ignore_eos=options.exact,
                    temperature=options.temperature,
                    prompt_tokens=length if self.tokens.ids else None,
                )
            )


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a file holds, in its order, over and over."""

    recorded: Sequence[Conversation]

    def conversations(self, seed: str) -> Iterator[Conversation]:
        return cycle(self.recorded)


def _join(prefix: str | tuple[int, ...], prompt: str | tuple[int, ...]) -> str | tuple[int, ...]:
    if isinstance(prefix, tuple) and isinstance(prompt, tuple):
        return prefix + prompt
    return f"{prefix} {prompt}"
