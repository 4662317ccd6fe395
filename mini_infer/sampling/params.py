"""What a request may ask for: every parameter checked once, frozen, free of torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, TypeVar

from mini_infer.checks import Check, boolean, integer, is_integer, number, refuse
from mini_infer.errors import UserError, is_utf8

MAX_TEMPERATURE = 2.0
MAX_STOP_TEXTS = 16
MAX_LOGPROBS = 20
GREEDY_TEMPERATURE = 1e-5
"""At or below this temperature the distribution is its largest entry for all practical purposes: plain argmax."""

T = TypeVar("T")
_FROM_CHECKPOINT = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@dataclass(frozen=True, slots=True)
class Shaping:
    """What turns raw logits into the distribution that is sampled; nothing unset. The order is `distribution.py`'s."""

    temperature: float
    top_p: float  # 1 = off
    top_k: int  # 0 = off
    min_p: float  # 0 = off
    repetition_penalty: float  # 1 = off
    presence_penalty: float  # 0 = off
    frequency_penalty: float  # 0 = off
    logit_bias: tuple[tuple[int, float], ...]
    min_tokens: int

    @property
    def is_greedy(self) -> bool:
        """Only the best token can be drawn: no random number is needed."""
        return self.temperature <= GREEDY_TEMPERATURE or self.top_k == 1 or self.top_p == 0.0

    @property
    def has_penalties(self) -> bool:
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    @property
    def edits_logits(self) -> bool:
        """Something changes single logits before the temperature does: penalties, bias or a ban on early ends."""
        return self.has_penalties or bool(self.logit_bias) or self.min_tokens > 0

    @property
    def is_plain_greedy(self) -> bool:
        """The argmax of the raw logits, and nothing else."""
        return self.is_greedy and not self.edits_logits


@dataclass(frozen=True)
class SamplingParams:
    """How one request wants its tokens drawn and when it ends. `None` means unset: see `with_defaults`.

    Args:
        temperature: 0 to 2; 0 (and anything up to 1e-5) is greedy. Unset: the checkpoint's, else 1.
        top_p: 0 to 1: the fewest most likely tokens whose mass reaches it; 1 is off, 0 keeps only the best token.
        top_k: keep the k most likely tokens; 0 or -1 is off.
        min_p: 0 to 1: drop tokens less likely than this share of the best one's probability; 0 is off.
        repetition_penalty: over 0, 1 is off. Logits of tokens seen in prompt or output are divided by it where
            positive and multiplied where negative (Keskar et al. 2019, CTRL).
        presence_penalty: -2 to 2: subtracted once from the logit of each token already in the output.
        frequency_penalty: -2 to 2: subtracted from that logit as often as the token occurs in the output.
        logit_bias: {token id: -100 to 100}, added to the logits. Stored as pairs in id order.
        seed: any integer, taken modulo 2**64. Unset: a new one for every request.
        n: how many answers, at least 1.
        max_tokens: at most so many tokens; unset: as many as fit. 0 only with `prompt_logprobs`.
        min_tokens: the answer may not end before so many tokens.
        stop: one text or up to 16; the answer ends before the first that occurs.
        stop_token_ids: token ids that end the answer besides the checkpoint's own.
        ignore_eos: the checkpoint's own end tokens do not end the answer.
        logprobs: report the log-probability of each token and of so many (0 to 20) likeliest alternatives.
        prompt_logprobs: the same for the tokens of the prompt.

    Raises:
        UserError: names the parameter, its value and what is allowed.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...] = ()
    seed: int | None = None
    n: int = 1
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: Sequence[str] = ()  # a single text is a Sequence[str] too; stored as a tuple
    stop_token_ids: Sequence[int] = ()  # stored as a tuple
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            checked = field.default if value is None else _CHECKS[field.name](field.name, value)
            object.__setattr__(self, field.name, checked)
        if self.max_tokens == 0 and self.prompt_logprobs is None:
            raise UserError("max_tokens must be at least 1, not 0 (0 is allowed only with prompt_logprobs)")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise UserError(f"min_tokens must be at most max_tokens ({self.max_tokens}), not {self.min_tokens}")

    @classmethod
    def greedy(cls, max_tokens: int | None = None) -> SamplingParams:
        """The most likely token each time, whatever the checkpoint's defaults are."""
        return cls(temperature=0.0, max_tokens=max_tokens)

    def with_defaults(self, generation: Mapping[str, Any]) -> SamplingParams:
        """Fills what is unset from a checkpoint's `generation_config.json`, given as its mapping.

        Only what shapes the distribution is taken. An explicit temperature of 0 asks for the plain argmax: then
        nothing is. `do_sample: false` there means temperature 0 for requests that name none.

        Raises:
            UserError: a value in the file is out of range.
        """
        if self.temperature is not None and self.temperature <= GREEDY_TEMPERATURE:
            return self
        found = {name: generation.get(name) for name in _FROM_CHECKPOINT}
        if generation.get("do_sample") is False:
            found["temperature"] = 0.0
        unset = {name: v for name, v in found.items() if v is not None and getattr(self, name) is None}
        try:
            return replace(self, **unset) if unset else self
        except UserError as error:
            raise UserError(f"generation_config.json: {error}") from None

    def check_vocab(self, vocab_size: int) -> None:
        """Refuses token ids the model does not have. Raises UserError."""
        biased = [token for token, _ in self.shaping.logit_bias]
        for name, ids in (("logit_bias", biased), ("stop_token_ids", self.stop_token_ids)):
            for token in ids:
                if token >= vocab_size:
                    raise UserError(f"{name} must name token ids from 0 to {vocab_size - 1}, not {token}")

    @cached_property
    def shaping(self) -> Shaping:
        """The part the sampler reads, with neutral values for what is unset."""
        return Shaping(
            temperature=_or(self.temperature, 1.0),
            top_p=_or(self.top_p, 1.0),
            top_k=max(_or(self.top_k, 0), 0),
            min_p=_or(self.min_p, 0.0),
            repetition_penalty=_or(self.repetition_penalty, 1.0),
            presence_penalty=_or(self.presence_penalty, 0.0),
            frequency_penalty=_or(self.frequency_penalty, 0.0),
            logit_bias=tuple(self.logit_bias),  # type: ignore[arg-type]  # __post_init__ made it pairs
            min_tokens=self.min_tokens,
        )

    @property
    def is_greedy(self) -> bool:
        return self.shaping.is_greedy

    @property
    def is_plain_greedy(self) -> bool:
        return self.shaping.is_plain_greedy


def _or(value: T | None, neutral: T) -> T:
    return neutral if value is None else value


_token_id = integer(0)
_bias = number(-100.0, 100.0)


def _seed(name: str, value: Any) -> int:
    if not is_integer(value):
        raise refuse(name, value, "an integer")
    return int(value) % 2**64


def _stop(name: str, value: object) -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, (list, tuple)) or not all(isinstance(text, str) for text in texts):
        raise refuse(name, value, "a text or a list of texts")
    if not all(texts):
        raise refuse(name, "", "texts of at least one character")
    if half := next((text for text in texts if not is_utf8(text)), None):
        raise refuse(name, half, "text in UTF-8, of whole characters")
    if len(texts) > MAX_STOP_TEXTS:
        raise UserError(f"{name} must be at most {MAX_STOP_TEXTS} texts, not {len(texts)}")
    return tuple(texts)


def _token_ids(name: str, value: Any) -> tuple[int, ...]:
    if isinstance(value, (str, bytes, Mapping)) or not hasattr(value, "__iter__"):
        raise refuse(name, value, "a list of token ids")
    return tuple(_token_id(f"each of {name}", token) for token in value)


def _logit_bias(name: str, value: object) -> tuple[tuple[int, float], ...]:
    pairs = list(value.items()) if isinstance(value, Mapping) else value
    if not isinstance(pairs, (list, tuple)) or not all(isinstance(p, (list, tuple)) and len(p) == 2 for p in pairs):
        raise refuse(name, value, "a mapping of token id to bias")
    found: dict[int, float] = {}
    for key, bias in pairs:
        # the keys of a JSON object are always texts
        plain = int(key) if isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 20 else key
        token = _token_id(f"each token id of {name}", plain)
        if token in found:
            raise UserError(f"{name} must name each token once, not {token} twice")
        found[token] = _bias(f"{name} of token {token}", bias)
    return tuple(sorted(found.items()))


_CHECKS: Mapping[str, Check] = {
    "temperature": number(0.0, MAX_TEMPERATURE),
    "top_p": number(0.0, 1.0),
    "top_k": integer(-1, allowed="an integer of at least 1, or 0 or -1 for no limit"),
    "min_p": number(0.0, 1.0),
    "repetition_penalty": number(0.0, above=True),
    "presence_penalty": number(-2.0, 2.0),
    "frequency_penalty": number(-2.0, 2.0),
    "logit_bias": _logit_bias,
    "seed": _seed,
    "n": integer(1),
    "max_tokens": integer(0, allowed="an integer of at least 1"),
    "min_tokens": integer(0),
    "stop": _stop,
    "stop_token_ids": _token_ids,
    "ignore_eos": boolean,
    "logprobs": integer(0, MAX_LOGPROBS),
    "prompt_logprobs": integer(0, MAX_LOGPROBS),
}
