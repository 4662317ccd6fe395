"""Continuous batching: who takes part in the next step, with how many tokens, in which blocks, and why not.

`plan` decides and reserves; `commit_slice` makes a result stand; `rollback` undoes a plan whose step failed. Order of
service is (priority, arrival): running sequences first, each at least one token, then the queue under what is left.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field

from mini_infer.cache.block_pool import BlockPool
from mini_infer.cache.prefix_cache import PrefixCache
from mini_infer.observe.events import Wait
from mini_infer.scheduler.plan import Admission, Preemption, Rows, Slice, StepPlan
from mini_infer.scheduler.sequence import Sequence, Status
from mini_infer.scheduler.waiting import WaitingQueue
from mini_infer.speculative.drafting import DraftPlanner, Wants, draft_start

MAX_BYPASS = 8
"""How often later sequences may be admitted before one that leads the queue and does not fit."""


@dataclass(slots=True)
class _Draft:
    """A plan in the making."""

    left: int  # tokens of the budget not yet given away or promised
    slices: list[Slice] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    reserved: list[tuple[str, int]] = field(default_factory=list)
    replaced: list[tuple[str, int, int]] = field(default_factory=list)
    admitted: list[Admission] = field(default_factory=list)
    preempted: list[Preemption] = field(default_factory=list)
    exhausted: list[str] = field(default_factory=list)
    for_drafts: int = 0  # blocks that only drafts need


class ContinuousScheduler:
    """Owns the sequences, the queue and the pool's bookkeeping. No tensor and no token's value is known here."""

    def __init__(
        self, pool: BlockPool, prefix: PrefixCache, *, max_running: int, max_batch_tokens: int, max_chunk: int
    ) -> None:
        if max_batch_tokens < max_running:
            raise ValueError(f"max_batch_tokens {max_batch_tokens} is below max_running {max_running}")
        self.pool = pool
        self.prefix = prefix
        self.max_running = max_running
        self.max_batch_tokens = max_batch_tokens
        self.max_chunk = max_chunk
        self.step = 0  # steps committed
        self.paused = False
        self.sequences: dict[str, Sequence] = {}
        self.running: list[Sequence] = []  # in order of service
        self.queue = WaitingQueue()
        self.preemptions = 0
        self.draft_has_kv = False  # the proposer is a model, whose KV lives in the same blocks

    @property
    def size(self) -> int:
        return self.pool.block_size

    @property
    def seats(self) -> int:
        """Seats taken of `max_running`: a sequence that will be forked takes one per choice from the start."""
        return sum(s.n for s in self.running)

    def add(self, seq: Sequence) -> None:
        self.sequences[seq.seq_id] = seq
        self.queue.add(seq)
        if self.paused:
            self.queue.pause_one(seq)

    def remove(self, seq: Sequence, *, poisoned: bool = False) -> list[int]:
        """End a sequence and free its blocks. Returns the blocks to zero where its rows are `poisoned`.

        Poisoned rows (NaN, Inf) may still be read by a masked product, so its blocks lose their keys (those of a prefix
        hit too: nobody knows where the poison began), and every unpublished block that nobody holds any more is to be
        zeroed before its next use.
        """
        if seq.status is Status.RUNNING:
            self.running.remove(seq)
        elif seq.status is Status.WAITING:
            self.queue.remove(seq)
        blocks = list(seq.table.blocks)
        if poisoned:
            for block in blocks:
                self.prefix.unpublish(block)
        seq.table.trim(0)
        seq.status = Status.FINISHED
        del self.sequences[seq.seq_id]
        return [b for b in blocks if self.pool.ref[b] == 0 and self.pool.key[b] is None] if poisoned else []

    def set_paused(self, paused: bool) -> None:
        """State that nobody is served until resumed. A single step taken meanwhile plans as always."""
        self.paused = paused
        if paused:
            self.queue.pause()
        else:
            self.queue.resume()

    # --- plan -------------------------------------------------------------------------------------------------------

    def plan(self, only: str | None = None, wants: Wants | None = None) -> StepPlan:
        """The next step. `only` restricts it to one sequence, which then preempts nobody (a retry after a fault).

        `wants` is the drafting policy; without one nothing is drafted.
        """
        self.prefix.step = self.step + 1
        if self.paused:  # a single step: say why each really waits
            self.queue.resume()
        chosen = [s for s in self.running if only is None or s.seq_id == only]
        draft = _Draft(left=self.max_batch_tokens - len(chosen))  # one token is promised to each
        # Decodes (and verifies) before chunks: a long prompt never delays an answer that is being written.
        ready = []
        for seq in [s for s in chosen if s.remaining == 1] + [s for s in chosen if s.remaining > 1]:
            if seq.is_running and self._make_room(draft, seq, may_preempt=only is None):
                ready.append(seq)
            else:  # preempted, by itself or by one before it, or at its end
                draft.left += 1
        planner = (
            DraftPlanner(self.pool, wants, self.max_batch_tokens if self.draft_has_kv else None) if wants else None
        )
        for seq in ready:
            n_draft, seq.k_why = 0, None
            # Not before a fork, whose choices are drawn from one row. Whoever comes next needs a token to be admitted.
            if planner is not None and seq.remaining == 1 and seq.n == 1:
                n_draft = planner.choose(seq, max(0, draft.left - bool(self.queue)))
            self._plan_slice(draft, seq, seq.num_computed, 1 + draft.left, n_draft)
        if only is None:
            self._admit(draft)
        elif only in self.sequences and self.sequences[only].status is Status.WAITING:
            self._admit_one(draft, self.sequences[only])
        return StepPlan(
            step=self.step + 1,
            slices=tuple(draft.slices),
            draft_slices=tuple(planner.slices) if planner is not None else (),
            copies=tuple(draft.copies),
            reserved=tuple(draft.reserved),
            replaced=tuple(draft.replaced),
            admitted=tuple(draft.admitted),
            preempted=tuple(draft.preempted),
            exhausted=tuple(draft.exhausted),
        )

    def _plan_slice(self, draft: _Draft, seq: Sequence, start: int, allowed: int, n_draft: int = 0) -> None:
        n_new = min(seq.num_tokens - start, self.max_chunk, allowed)
        seq.k = n_draft
        draft.left -= n_new - 1 + n_draft
        missing = seq.table.missing(start + n_new + n_draft)
        if missing:
            draft.for_drafts += missing if n_draft else 0
            draft.reserved.append((seq.seq_id, len(seq.table)))
            seq.table.grow(missing)
        rows: Rows = "last"
        if seq.score_prompt and max(start, seq.num_scored) < min(start + n_new, seq.num_prompt - 1):
            rows = "all"
        draft.slices.append(Slice(seq.seq_id, start, n_new, n_draft, rows))

    def _make_room(self, draft: _Draft, seq: Sequence, may_preempt: bool) -> bool:
        """Blocks for the rows a running sequence writes next. False: it was preempted, or it ends here."""
        index = seq.num_computed // self.size
        shared = index < len(seq.table) and self.pool.ref[seq.table.blocks[index]] > 1
        # A chunk's blocks were all reserved at its admission; only a decode grows, by at most one.
        missing = seq.table.missing(seq.num_computed + 1)
        while self.pool.num_free < missing + shared:
            if len(self.running) == 1:
                draft.exhausted.append(seq.seq_id)
                return False
            if not may_preempt:
                return False
            victim = self.victim()
            draft.preempted.append(self._preempt(victim, cause=seq.seq_id))
            if victim is seq:
                return False
            shared = shared and self.pool.ref[seq.table.blocks[index]] > 1
        if shared:  # the last holder writes in place, every other one into a copy
            old, new = seq.table.blocks[index], self.pool.take()
            seq.table.replace(index, new)
            draft.copies.append((old, new))
            draft.replaced.append((seq.seq_id, index, old))
        if missing:
            draft.reserved.append((seq.seq_id, len(seq.table)))
            seq.table.grow(missing)
        return True

    def victim(self) -> Sequence:
        """Who gives way when blocks run out: the lowest priority, then the newest.

        It is the last in order of service, so in planning order it is never already planned.
        """
        return self.running[-1]

    def _preempt(self, seq: Sequence, cause: str) -> Preemption:
        """Free a running sequence's blocks; their keys stay, so that resuming is mostly a prefix hit."""
        record = Preemption(seq.seq_id, seq.num_computed, len(seq.table), cause)
        self.preemptions += 1
        seq.preemptions += 1
        seq.lost, seq.num_computed, seq.num_computed_draft = seq.num_computed, 0, 0
        self._back_to_queue(seq)
        return record

    def _back_to_queue(self, seq: Sequence) -> None:
        seq.k, seq.k_why = 0, None
        seq.table.trim(0)
        self.running.remove(seq)
        self.queue.add(seq)

    # --- admission --------------------------------------------------------------------------------------------------

    def _admit(self, draft: _Draft) -> None:
        """Admit from the queue in order. The first that does not fit may be passed by at most `MAX_BYPASS` times."""
        blocked: Sequence | None = None
        index = 0
        self.queue.begin()
        while index < len(self.queue) and index <= MAX_BYPASS:
            seq = self.queue[index]
            wait = Wait("COOLDOWN") if draft.preempted else self._obstacle(seq, draft)
            if wait is None:
                self._admit_one(draft, seq)
                if blocked is not None:
                    blocked.bypassed += 1
            else:
                self.queue.explain(seq, wait)
                blocked = blocked or seq
                index += 1
            if wait is not None and wait.kind in ("TOKENS", "COOLDOWN"):
                break  # nobody behind could do better
            if blocked is not None and blocked.bypassed >= MAX_BYPASS:
                break
        self.queue.settle()

    def _obstacle(self, seq: Sequence, draft: _Draft) -> Wait | None:
        """Why this sequence cannot be admitted now, or None."""
        if draft.left <= 0:
            return Wait("TOKENS", need=1, have=0)
        seats = self.seats
        if seats + seq.n > self.max_running:
            return Wait("SEQS", need=seq.n, have=self.max_running - seats)
        _, need, have = self._blocks_needed(seq)
        # A watermark of one block per running sequence keeps an admission from forcing a preemption at once; those
        # that drafts took are part of it.
        need += max(0, seats - draft.for_drafts)
        return Wait("BLOCKS", need=need, have=have) if need > have else None

    def _blocks_needed(self, seq: Sequence) -> tuple[list[int], int, int]:
        """(its hits, blocks to take for the rest of its tokens and the tails of its forks, blocks there are for that).

        Never more than the whole pool: it was not refused as too long, and whoever ran beside others left them a block.
        """
        hits = self.prefix.match(seq.block_keys(seq.hit_cap(self.size), self.size), seq.tokens)
        need = -(-seq.num_tokens // self.size) - len(hits) + seq.n - 1
        return hits, need, self.pool.num_free - sum(self.pool.ref[b] == 0 for b in hits)

    def _admit_one(self, draft: _Draft, seq: Sequence) -> None:
        """Give it a seat, the blocks of its cached prefix, and fresh ones for all the rest of its tokens."""
        hits, need, have = self._blocks_needed(seq)
        if need > have or draft.left <= 0:  # a retry alone may find less than the step that failed
            return
        cached = len(hits) * self.size
        miss = None
        if seq.num_cached is None and not seq.score_prompt:
            keys = seq.block_keys(seq.num_tokens // self.size, self.size)
            miss = self.prefix.explain(keys, seq.root, seq.tokens, len(hits))
        self.queue.remove(seq)
        draft.reserved.append((seq.seq_id, 0))
        for block in hits:
            seq.table.share(block)
        seq.table.grow(seq.table.missing(seq.num_tokens))
        seq.status = Status.RUNNING
        insort(self.running, seq, key=lambda s: s.order)
        draft.admitted.append(Admission(seq.seq_id, cached, seq.num_cached is None, miss))
        draft.left -= 1
        self._plan_slice(draft, seq, cached, 1 + draft.left)

    # --- after the step ---------------------------------------------------------------------------------------------

    def begin_commit(self, plan: StepPlan) -> None:
        """The plan's step stands: count it, and what its admissions hit."""
        self.step = plan.step
        for a in plan.admitted:
            seq = self.sequences[a.seq_id]
            if a.first:
                seq.num_cached, seq.miss = a.cached, a.miss
            else:
                seq.recomputed += max(0, seq.lost - a.cached)
            seq.lost = 0
            seq.num_computed = a.cached
            if self.draft_has_kv:
                seq.num_computed_draft = draft_start(seq, self.pool)
            seq.bypassed = 0

    def commit_slice(self, s: Slice, accepted: int = 0) -> None:
        """The slice's known rows are computed, and those of the first `accepted` of its drafts, already appended.

        The rows of all other drafts are forgotten. Blocks that are full now are published: only rows that are
        computed may be shared, and the newest token has no KV yet.
        """
        seq = self.sequences[s.seq_id]
        before, seq.num_computed = seq.num_computed // self.size, s.start + s.n_new + accepted
        if seq.remaining <= 1:  # no chunk is left, whose blocks are reserved: all beyond was for drafts
            seq.table.trim(-(-seq.num_computed // self.size))
        full = seq.num_computed // self.size
        if self.prefix.enabled and full > before:
            keys = seq.block_keys(full, self.size)
            for i in range(before, full):
                tokens = tuple(seq.tokens[i * self.size : (i + 1) * self.size])
                parent = keys[i - 1] if i else seq.root
                self.prefix.publish(seq.table.blocks[i], keys[i], parent, tokens, seq.seq_id, i)

    def fork(self, parent: Sequence, children: list[Sequence]) -> None:
        """The last prompt row is computed: the children share every block with their parent from here on."""
        parent.n = 1
        for child in children:
            for block in parent.table.blocks:
                child.table.share(block)
            self.sequences[child.seq_id] = child
            insort(self.running, child, key=lambda s: s.order)

    def rollback(self, plan: StepPlan) -> list[int]:
        """Undo the reservations of a plan whose step failed. What was evicted or preempted stays so.

        Returns the blocks that are free again: whatever the failed step wrote there is to be zeroed.
        """
        admitted = {a.seq_id for a in plan.admitted}
        given_back: list[int] = []
        for seq_id, length in reversed(plan.reserved):
            seq = self.sequences[seq_id]
            given_back += seq.table.blocks[length:]
            if seq_id in admitted:
                self._back_to_queue(seq)
            else:
                seq.table.trim(length)
        for seq_id, index, shared in reversed(plan.replaced):
            # The last holder of a shared block needs no block to go on, so it never gave way in the step that copied.
            seq = self.sequences[seq_id]
            given_back.append(seq.table.blocks[index])
            self.pool.hold(shared)
            seq.table.replace(index, shared)
        return [b for b in given_back if self.pool.ref[b] == 0 and self.pool.key[b] is None]

    def reset(self) -> None:
        """After a fault in the bookkeeping itself: forget every sequence and begin with an empty pool and index."""
        old = self.pool
        self.pool = BlockPool(old.num_blocks, old.block_size)
        self.pool.evictions = old.evictions
        self.prefix = PrefixCache(self.pool, self.prefix.enabled)
        self.sequences, self.running = {}, []
        changed, self.queue = self.queue.changed, WaitingQueue()
        if changed is not None:
            self.pool.moves, self.queue.changed = [], {}
