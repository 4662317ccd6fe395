"""Drafts without a model: what followed the last few tokens when they occurred before, in the prompt or the answer.

Prompt lookup decoding (Saxena 2023): shines where the answer repeats its input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from weakref import WeakKeyDictionary

from mini_infer.observe.events import KReason
from mini_infer.sampling.rows import SampleRow
from mini_infer.scheduler.plan import StepPlan
from mini_infer.scheduler.sequence import Sequence as Seq
from mini_infer.speculative.adaptive import Policy, StepTimes, is_measured
from mini_infer.speculative.proposer import Drafts

LONGEST, SHORTEST = 4, 2
"""Lengths of the n-grams that are looked up, the longest first."""


class _Index:
    """Where each n-gram of one sequence ended last, before its very end. Grows with the sequence: O(1) per token."""

    def __init__(self) -> None:
        self.length = 0
        self.ends: dict[tuple[int, ...], int] = {}  # n-gram -> position after its latest occurrence

    def update(self, tokens: Sequence[int]) -> None:
        # The n-grams that end with the newest token are entered one step later, so that they do not find themselves.
        for end in range(max(self.length, SHORTEST), len(tokens)):
            for n in range(SHORTEST, min(LONGEST, end) + 1):
                self.ends[tuple(tokens[end - n : end])] = end
        self.length = max(self.length, len(tokens))

    def lookup(self, tokens: Sequence[int], k: int) -> tuple[int, ...]:
        """Up to `k` tokens that followed the longest matching n-gram; they may run into what is drafted itself."""
        for n in range(min(LONGEST, len(tokens)), SHORTEST - 1, -1):
            at = self.ends.get(tuple(tokens[-n:]))
            if at is not None:
                drafts = list(tokens[at : at + k])
                period = len(tokens) - at
                while len(drafts) < k:  # a repetition that reaches the end goes on
                    drafts.append(drafts[len(drafts) - period])
                return tuple(drafts)
        return ()


class PromptLookup:
    """The n-gram proposer. `policy` decides how many drafts; none are wanted where nothing matches."""

    name = "ngram"
    has_kv = False

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._indexes: WeakKeyDictionary[Seq, _Index] = WeakKeyDictionary()

    def wants(self, seq: Seq) -> tuple[int, KReason | None]:
        k, why = self.policy.choose(seq)
        if k and not self._drafts(seq, k):
            return 0, "NO_MATCH"
        return k, why

    def propose(self, plan: StepPlan, sequences: Mapping[str, Seq], rows: Mapping[str, SampleRow]) -> Drafts:
        return Drafts({s.seq_id: self._drafts(sequences[s.seq_id], s.n_draft) for s in plan.slices if s.n_draft})

    def observe(self, plan: StepPlan, *, draft_s: float, verify_s: float) -> None:
        if is_measured(plan):
            self.policy.costs.add(StepTimes(len(plan.slices), plan.num_tokens, verify_s))

    def zero_blocks(self, blocks: Sequence[int]) -> None:
        """There are no rows to clear."""

    def _drafts(self, seq: Seq, k: int) -> tuple[int, ...]:
        index = self._indexes.setdefault(seq, _Index())
        index.update(seq.tokens)
        return index.lookup(seq.tokens, k)
