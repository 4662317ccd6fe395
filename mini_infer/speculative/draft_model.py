"""Drafts from a smaller model, for all sequences of a batch at once.

Its KV lives in the same blocks as the target's: a second tensor, the same tables and slots. A round is one forward over
the rows each sequence lacks (`plan.draft_slices`: one when in step, two after a full acceptance), then K - 1 forwards
of one row per sequence. A wrong draft row can only cost acceptance: whatever q is, it is the q that was sampled from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch.nn.functional as F
from torch import Tensor

from mini_infer.batch import Batch, Span, make_batch, slot_index
from mini_infer.models.runner import ModelRunner
from mini_infer.observe.events import KReason
from mini_infer.sampling.distribution import Categorical, shape_logits
from mini_infer.sampling.random import Purpose, uniform
from mini_infer.sampling.rows import RowContext, SampleRow
from mini_infer.scheduler.plan import StepPlan
from mini_infer.scheduler.sequence import Sequence as Seq
from mini_infer.speculative.adaptive import Policy, StepTimes, is_measured
from mini_infer.speculative.proposer import Drafts


class DraftModel:
    """A draft model with its own KV.

    `vocab_size` is the target's. Heads of one tokenizer may be padded to different widths: logits beyond the target's
    are cut off, and ids beyond the draft's own are never proposed.
    """

    name = "draft"
    has_kv = True

    def __init__(self, runner: ModelRunner, policy: Policy, vocab_size: int) -> None:
        self.runner = runner
        self.policy = policy
        self.vocab_size = vocab_size
        self.known = runner.config.vocab_size  # ids that have an embedding
        self.forwards = 0  # of the last round, and their rows: what the policy's cost model is fed with
        self.rows = 0

    def wants(self, seq: Seq) -> tuple[int, KReason | None]:
        return self.policy.choose(seq)

    def propose(self, plan: StepPlan, sequences: Mapping[str, Seq], rows: Mapping[str, SampleRow]) -> Drafts:
        size = self.runner.kv.block_size
        first = StepPlan(plan.step, plan.draft_slices, copies=plan.copies)
        batch = make_batch(first, sequences, {}, size)
        self.forwards = self.rows = 0
        wanted = {s.seq_id: s.n_draft for s in plan.slices if s.n_draft}
        active = [s.seq_id for s in plan.draft_slices if s.rows == "last"]
        tokens: dict[str, tuple[int, ...]] = dict.fromkeys(active, ())
        q: dict[str, list[Categorical]] = {}
        if not batch.token_ids:  # nobody drafts: only the copies of this step
            self.runner.kv.copy(plan.copies)
        while batch.token_ids:
            if self.known < self.vocab_size:  # a prompt may hold padding ids: any row will do for them
                batch = replace(batch, token_ids=tuple(min(i, self.known - 1) for i in batch.token_ids))
            hidden = self.runner.run(batch)
            self.forwards += 1
            self.rows += len(batch.token_ids)
            if not active:
                break
            drawn = self._draw(self.runner.logits(hidden), [rows[i] for i in active], tokens, q)
            active = [i for i in active if i in drawn]
            for seq_id in active:
                tokens[seq_id] += (drawn[seq_id],)
            active = [i for i in active if len(tokens[i]) < wanted[i]]
            batch = _next_batch([sequences[i] for i in active], tokens, size)
        return Drafts(tokens, q)

    def observe(self, plan: StepPlan, *, draft_s: float, verify_s: float) -> None:
        if is_measured(plan):
            forwards = self.forwards if all(s.n_new <= 2 for s in plan.draft_slices) else 0  # catching up is no round
            self.policy.costs.add(StepTimes(len(plan.slices), plan.num_tokens, verify_s, forwards, self.rows, draft_s))
        self.forwards = self.rows = 0

    def zero_blocks(self, blocks: Sequence[int]) -> None:
        self.runner.zero_blocks(blocks)

    def _draw(
        self,
        logits: Tensor,
        rows: Sequence[SampleRow],
        tokens: Mapping[str, tuple[int, ...]],
        q: dict[str, list[Categorical]],
    ) -> dict[str, int]:
        """The next draft of each row, from its own shaped distribution; a row that has none drafts no further."""
        logits = logits[:, : self.vocab_size]
        if self.known < self.vocab_size:
            logits = F.pad(logits, (0, self.vocab_size - self.known), value=-math.inf)
        contexts = [
            RowContext(i, r.params.shaping, r.tokens, r.num_prompt, r.stop_ids, tokens[r.seq_id])
            for i, r in enumerate(rows)
        ]
        dists = shape_logits(logits, contexts)
        numbers: dict[int, float] = {}
        for i, r in enumerate(rows):
            if i in dists.faults:
                continue
            purpose = Purpose.SAMPLE if r.is_coupled else Purpose.DRAFT
            ahead = len(tokens[r.seq_id])
            numbers[i] = 0.0 if i in dists.certain else uniform(r.seed, r.choice, r.position + ahead, purpose)
            if i not in dists.certain:
                q.setdefault(r.seq_id, []).append(dists[i])
        return {rows[i].seq_id: token for i, token in dists.draw(numbers).items()}


def _next_batch(sequences: Sequence[Seq], tokens: Mapping[str, tuple[int, ...]], size: int) -> Batch:
    """One row per sequence: its newest draft, behind those before it."""
    ids, positions, slots, spans = [], [], [], []
    for row, seq in enumerate(sequences):
        drafts = tokens[seq.seq_id]
        position = seq.num_tokens + len(drafts) - 1
        blocks = tuple(seq.table.blocks[: position // size + 1])
        ids.append(drafts[-1])
        positions.append(position)
        slots += slot_index(blocks, position, position + 1, size)
        spans.append(Span(seq.seq_id, row, 1, position + 1, blocks))
    return Batch(tuple(ids), tuple(positions), tuple(slots), tuple(spans), tuple(range(len(ids))), (), size)
