"""What the sampler is asked and what it answers: plain values, no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mini_infer.observe.events import TokenLogprob
from mini_infer.sampling.params import SamplingParams, Shaping


@dataclass(frozen=True, slots=True)
class RowContext:
    """One row of logits and everything that shapes its distribution. `drafts` before it count as output."""

    row: int  # index into the logits
    shaping: Shaping
    tokens: Sequence[int]  # prompt and output so far; read only
    num_prompt: int
    stop_ids: frozenset[int]
    drafts: tuple[int, ...] = ()

    @property
    def bans_end(self) -> bool:
        """Too little output yet: the ids that would end the answer are masked."""
        return len(self.tokens) - self.num_prompt + len(self.drafts) < self.shaping.min_tokens

    @property
    def edits_logits(self) -> bool:
        """Single logits change before the temperature applies."""
        return self.shaping.has_penalties or bool(self.shaping.logit_bias) or self.bans_end


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

    def context(self, judged: int = 0) -> RowContext:
        """The row that decides the token after the first `judged` drafts."""
        return RowContext(
            self.row + judged,
            self.params.shaping,
            self.tokens,
            self.num_prompt,
            self.stop_ids,
            self.drafts[:judged],
        )

    @property
    def is_coupled(self) -> bool:
        """Explicitly seeded and not greedy: target and draft invert their distributions at the same number."""
        return self.params.seed is not None and not self.params.is_greedy


@dataclass(frozen=True, slots=True)
class Judgement:
    """One draft that was judged. Sampled rounds have p and u (q where the proposer gave one), greedy ones the gap."""

    draft: int
    accepted: bool
    p: float | None = None  # the target's probability of the draft
    q: float | None = None  # the proposer's; 1 for a proposer that names one token
    u: float | None = None  # the number it was judged by
    gap: float | None = None  # the target's best logit minus the draft's; filled where asked for


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer for one `SampleRow`: at least one token, or the reason why this row fails by itself."""

    seq_id: str
    tokens: tuple[int, ...] = ()  # accepted drafts, then the target's own token
    logprobs: tuple[TokenLogprob, ...] = ()  # one per token where asked for
    error: str | None = None
    non_finite: bool = False  # the error was NaN or Inf: its KV rows may be poisoned
    judged: tuple[Judgement, ...] = ()  # the drafts up to the first that was rejected
