"""What the sampler is asked and what it answers: plain values, no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mini_infer.sampling.params import SamplingParams


@dataclass(frozen=True, slots=True)
class SampleRow:
    """One sequence that wants its next token(s): where its logits are and all that may shape them."""

    seq_id: str
    row: int  # its row of the logits; a verify owns rows row … row + len(drafts)
    params: SamplingParams
    seed: int  # resolved: the request's own, or the one drawn at arrival
    choice: int  # 0 … n - 1, part of the random key
    position: int  # absolute position of the token to draw (= tokens so far)
    num_prompt: int
    tokens: Sequence[int]  # prompt and output so far; read only
    stop_ids: frozenset[int]  # ids that would end the answer (banned while below min_tokens)
    drafts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural logarithms of the raw distribution (before temperature, penalties and filters)."""

    token_id: int
    logprob: float
    rank: int  # 1 = the most likely token of the vocabulary
    top: tuple[tuple[int, float], ...]  # (id, logprob), best first, as many as were asked for


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer for one `SampleRow`: at least one token, or the reason why this row fails by itself."""

    seq_id: str
    tokens: tuple[int, ...] = ()  # accepted drafts, then the target's own token
    logprobs: tuple[TokenLogprobs, ...] = ()  # one per token where asked for
    error: str | None = None
    non_finite: bool = False  # the error was NaN or Inf: its KV rows may be poisoned
