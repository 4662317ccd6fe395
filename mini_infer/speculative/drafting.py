"""How many tokens are drafted for a sequence in a step, and which rows the draft model must compute for it.

The draft model's KV lives in the same blocks as the target's. A sequence's draft rows are valid up to
`num_computed_draft`; a block whose draft rows are all valid has a bit for it, so that a prefix hit knows where the
draft has to begin. Drafting never takes a block or a token of the budget from anybody: K shrinks instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from mini_infer.cache.block_pool import BlockPool
from mini_infer.observe.events import KReason
from mini_infer.scheduler.plan import Slice, StepPlan
from mini_infer.scheduler.sequence import Sequence

Wants = Callable[[Sequence], tuple[int, KReason | None]]
"""The policy: how many drafts a sequence should have, and why none where that is 0."""


@dataclass(slots=True)
class DraftPlanner:
    """The drafts of one step. `left`: rows the draft model may still catch up on; None where it has no KV."""

    pool: BlockPool
    wants: Wants
    left: int | None
    slices: list[Slice] = field(default_factory=list)
    _claimed: set[int] = field(default_factory=set)  # shared blocks whose draft rows somebody writes in this step

    def choose(self, seq: Sequence, budget: int) -> int:
        """K for a sequence whose own next row has its block. `budget`: tokens of the step not promised to anybody.

        States in `seq.k_why` why none where that is 0.
        """
        k, why = self.wants(seq) if seq.may_draft else (0, "FAILED")
        limits: tuple[tuple[int, KReason], ...] = (
            (seq.max_tokens - (seq.num_tokens - seq.num_prompt) - 1, "TAIL"),  # the context's end is in `max_tokens`
            (budget, "BUDGET"),
            (self._free_rows(seq), "BLOCKS"),
        )
        for most, reason in limits:
            if k > max(most, 0):
                k, why = max(most, 0), reason
        if k and self.left is not None and not self._catch_up(seq):
            k, why = 0, "LAG"
        seq.k_why = None if k else why
        if k:
            seq.last_drafted = seq.num_tokens
        return k

    def _free_rows(self, seq: Sequence) -> int:
        """Rows after the next one that fit into its table and the free blocks."""
        blocks = len(seq.table) + self.pool.num_free
        return blocks * self.pool.block_size - (seq.num_computed + 1)

    def _catch_up(self, seq: Sequence) -> bool:
        """Plan the draft model's first rows for this sequence; True if it can draft after them.

        Its first forward takes all rows it lacks, up to a block; a longer lag is worked off in slices first.
        """
        assert self.left is not None
        size = self.pool.block_size
        start = draft_start(seq, self.pool)
        lag = seq.num_tokens - start
        drafts = lag <= size
        n = lag if drafts else min(seq.num_computed - start, self.left)
        blocks = seq.table.blocks[start // size : -(-(start + n) // size)]
        shared = {b for b in blocks if self.pool.ref[b] > 1}
        if n <= 0 or shared & self._claimed:  # one writer per block and step
            return False
        self._claimed |= shared
        self.left -= 0 if drafts else n
        self.slices.append(Slice(seq.seq_id, start, n, 0, "last" if drafts else "none"))
        return drafts


def draft_start(seq: Sequence, pool: BlockPool) -> int:
    """The first row the draft model lacks: others may have filled blocks since this sequence last looked."""
    size = pool.block_size
    index = seq.num_computed_draft // size
    while (index + 1) * size <= seq.num_computed and pool.draft_valid[seq.table.blocks[index]]:
        index += 1
    return max(seq.num_computed_draft, index * size)


def settle(
    plan: StepPlan, drafted: Mapping[str, tuple[int, ...]] | None, sequences: Mapping[str, Sequence]
) -> StepPlan:
    """The plan with the number of drafts that there really are; None: the proposer failed as a whole.

    A sequence that got none though some were planned has no distribution to draft from (NaN): it is not asked again.
    """
    for s in plan.slices:
        got = len(drafted.get(s.seq_id, ())) if drafted is not None else 0
        if got < s.n_draft:
            seq = sequences[s.seq_id]
            seq.k = got
            if not got:
                seq.k_why, seq.may_draft = "FAILED", drafted is None
    return plan.with_drafts(drafted or {})


def commit_drafts(
    plan: StepPlan, drafted: Mapping[str, tuple[int, ...]], sequences: Mapping[str, Sequence], pool: BlockPool
) -> None:
    """The draft model's rows of this step are computed. Called after the target's: the draft never runs ahead of it.

    Of k drafted tokens the first k - 1 have rows; those of rejected ones are past `num_computed` and forgotten.
    """
    size = pool.block_size
    for s in plan.draft_slices:
        seq = sequences.get(s.seq_id)
        if seq is None or not seq.is_running or not seq.may_draft:  # ended, or its rows are not to be trusted
            continue
        end = s.start + s.n_new + max(0, len(drafted.get(s.seq_id, ())) - 1)
        seq.num_computed_draft = min(end, seq.num_computed)
        for i in range(s.start // size, seq.num_computed_draft // size):
            pool.draft_valid[seq.table.blocks[i]] = True
