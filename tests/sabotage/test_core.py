"""Named one-line faults in cache, scheduler, commit and reports: a test of the default suite fails for each of them.

A row names the fault, puts it into the code, and names the test that must fail and what it must say. That the same
test passes without the fault is asserted first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from mini_infer import engine, forward
from mini_infer.audience import Audience
from mini_infer.cache.block_pool import BlockPool
from mini_infer.cache.block_table import BlockTable
from mini_infer.cache.prefix_cache import PrefixCache
from mini_infer.commit import Committer
from mini_infer.recorder import Recorder
from mini_infer.scheduler.continuous import ContinuousScheduler as Scheduler
from mini_infer.scheduler.integrity import IntegrityError
from mini_infer.scheduler.sequence import Sequence
from mini_infer.scheduler.waiting import WaitingQueue
from tests.cache import test_prefix_cache as prefix
from tests.engine import test_fake_cases as cases
from tests.engine import test_fake_faults as faults
from tests.engine import test_fake_fork as forks
from tests.engine import test_fake_observers as observers
from tests.scheduler import test_preemption as preemption
from tests.scheduler import test_service as service
from tests.scheduler import test_waiting_reasons as reasons
from tests.support.sabotage import break_line

all_hit = partial(cases.test_S01_an_all_hit_prompt_computes_its_last_block_again, 32, 16)
two_choices = partial(forks.test_each_choice_answers_as_it_would_alone, n=2, length=3)
undone = partial(faults.test_no_counter_moves_in_a_step_that_was_undone, "after_run")
big_and_small = partial(service.test_S08_a_big_request_and_small_ones_under_endless_arrivals, 1)
PUBLISH = (
    "[self.prefix.publish(seq.table.blocks[i], key, seq.keys[i - 1] if i else seq.root, "
    "tuple(seq.tokens[i * self.size : (i + 1) * self.size]), seq.seq_id, i) "
    "for i, key in enumerate(seq.block_keys((start + n_new) // self.size, self.size))]"
)


@dataclass(frozen=True)
class Sabotage:
    fault: str
    owner: Any
    name: str
    old: str
    new: str
    caught_by: Callable[[], None]
    says: str  # what the failure must say


SABOTAGE = [
    # --- cache ---
    Sabotage("publish at num_tokens", Scheduler, "commit_slice",
             "full = seq.num_computed // self.size", "full = seq.num_tokens // self.size",
             cases.test_S15_a_follow_up_hits_prompt_and_answer_but_not_the_newest_token, "before it is computed"),
    Sabotage("hit cap n", Sequence, "hit_cap", "self.num_tokens - 1", "self.num_tokens", all_hit, "0 == 16"),
    Sabotage("duplicates become canonical", PrefixCache, "publish", "key in self.entries or ", "",
             cases.test_S01_the_block_computed_again_is_one_of_its_own, "blocks have a key, the index holds"),
    Sabotage("a hit does not compare tokens", PrefixCache, "match",
             " or entry.tokens != tuple(tokens[i * size : (i + 1) * size])", "",
             prefix.test_a_collision_of_keys_is_no_hit, r"\[0\] == \[\]"),
    Sabotage("salt ignored", engine, "root_key", "(identity.encode(), salt.encode())", "(identity.encode(),)",
             cases.test_why_each_request_missed, "SALT"),
    Sabotage("evictions are forgotten", PrefixCache, "_forget_evicted", "self._evicted[key] = self.step", "pass",
             cases.test_why_each_request_missed, "EVICTED"),
    Sabotage("evictions are remembered for ever", PrefixCache, "_forget_evicted",
             "len(self._evicted) > EVICTED_KEPT", "False",
             prefix.test_the_last_1024_evicted_keys_are_remembered, "EVICTED"),
    Sabotage("free to the wrong end of the list", BlockPool, "_link",
             "(self._prev[end], end) if hashed else (end, self._next[end])",
             "(self._prev[end], end) if not hashed else (end, self._next[end])",
             cases.test_S21_partial_tails_do_not_push_cached_prefixes_out, "unhashed block stands behind a hashed one"),
    Sabotage("leak a reference", BlockTable, "trim", "self.pool.drop(block)", "len(self) and self.pool.drop(block)",
             two_choices, "the engine was rebuilt"),
    # --- forks ---
    Sabotage("write into a shared block", Scheduler, "_make_room", "if shared:", "if False:", two_choices,
             "not written to a slot of its own"),
    Sabotage("skip the copy at a fork", forward, "make_batch", "plan.copies", "()", two_choices, "r1/0 .* got"),
    Sabotage("copy for the last holder too", Scheduler, "_make_room",
             "index < len(seq.table) and self.pool.ref[seq.table.blocks[index]] > 1", "index < len(seq.table)",
             forks.test_four_choices_copy_the_tail_three_times_and_the_last_writes_in_place, "4 == 3"),
    Sabotage("a fork takes one seat", Scheduler, "seats", "sum(s.n for s in self.running)", "len(self.running)",
             reasons.test_seqs_counts_a_seat_for_each_choice, "5 seats taken of 4"),
    Sabotage("no spare tails for a fork", Scheduler, "_blocks_needed", " + seq.n - 1", "",
             service.test_n_choices_wait_for_n_seats_and_for_their_tail_blocks, "None == Wait"),
    # --- undoing a step ---
    Sabotage("publish at reserve", Scheduler, "_plan_slice", "rows))", f"rows)); {PUBLISH}", undone, "BlockState"),
    Sabotage("rollback forgets copies", Scheduler, "rollback", "reversed(plan.replaced)", "()",
             forks.test_a_failed_step_gives_the_shared_tail_back, "0, 1, 3"),
    Sabotage("rollback forgets reservations", Scheduler, "rollback", "reversed(plan.reserved)", "()", undone, "r3"),
    Sabotage("an undone step is no news", Recorder, "pending", "n.planned or ", "",
             observers.test_a_sink_that_comes_after_an_undone_step_does_not_see_its_moves_twice, "does not see"),
    Sabotage("leave NaN rows of a failed step", Scheduler, "rollback", "for b in given_back if", "for b in () if",
             faults.test_rows_that_a_failed_step_wrote_do_not_reach_whoever_gets_its_blocks, "'error' == 'length'"),
    # --- poison ---
    Sabotage("leave NaN rows of a failed request", Scheduler, "remove", "if poisoned else []", "if False else []",
             faults.test_M13_a_hundred_requests_through_the_same_blocks_are_right, "At index 1 diff: 'error'"),
    Sabotage("forget to unpublish poisoned blocks", Scheduler, "remove", "self.prefix.unpublish(block)", "pass",
             faults.test_M13_a_cached_prefix_that_went_bad_fails_once_and_is_forgotten, "'error' == 'length'"),
    Sabotage("publish an unfinished prompt unseen", engine, "execute", "if not finite:", "if False:",
             faults.test_M13_it_is_found_in_the_chunk_that_brings_it_and_nothing_of_it_is_published, "'r1': 'error'"),
    # --- who is served ---
    Sabotage("victim = first", Scheduler, "victim", "self.running[-1]", "self.running[0]",
             preemption.test_the_newest_gives_way, "'r1' != 'r3'"),
    Sabotage("priority ignored", Sequence, "order", "self.priority, self.arrival", "0, self.arrival",
             service.test_lower_priority_numbers_go_first_then_earlier_arrivals, "'r1' != 'r2'"),
    Sabotage("preempted keeps num_computed", Scheduler, "_preempt",
             "= seq.num_computed, 0, 0", "= seq.num_computed, seq.num_computed, 0",
             preemption.test_R12_eight_requests_in_a_tiny_pool_answer_as_each_alone, "waits, but holds blocks or rows"),
    Sabotage("ignore the budget", Scheduler, "_plan_slice", "self.max_chunk, allowed)", "self.max_chunk)",
             service.test_chunks_are_capped_by_request_and_by_step, "over the budget"),
    Sabotage("ignore the cap", Scheduler, "_plan_slice", "self.max_chunk, allowed)", "allowed)",
             service.test_chunks_are_capped_by_request_and_by_step, "over the cap"),
    Sabotage("chunks before decodes", Scheduler, "plan",
             "if s.remaining == 1] + [s for s in chosen if s.remaining > 1]",
             "if s.remaining > 1] + [s for s in chosen if s.remaining == 1]",
             service.test_S19_a_long_prompt_delays_no_decode, "a chunk before a decode"),
    Sabotage("no bypass bound", Scheduler, "_admit", "blocked is not None and blocked.bypassed >= MAX_BYPASS", "False",
             big_and_small, "25 <= 8"),
    Sabotage("no bypass at all", Scheduler, "_admit", "wait is not None and wait.kind in", "wait is not None or",
             big_and_small, "1 <= 0"),
    Sabotage("no watermark", Scheduler, "_obstacle", "need += max(0, seats - draft.for_drafts)", "pass",
             service.test_the_watermark_keeps_an_admission_from_forcing_a_preemption, "preemptions=1"),
    Sabotage("admit in a step that preempted", Scheduler, "_admit", "if draft.preempted else", "if False else",
             reasons.test_cooldown_in_a_step_that_preempted, "COOLDOWN"),
    # --- reasons and reports ---
    Sabotage("reason always ORDER", WaitingQueue, "explain", "self._set(seq, wait)",
             'self._set(seq, Wait("ORDER", behind="r1"))',
             reasons.test_tokens_where_the_budget_of_the_step_is_given_away, "TOKENS"),
    Sabotage("a stale ORDER when the one ahead leaves", WaitingQueue, "remove", "self._stand_behind(index)", "pass",
             reasons.test_order_follows_when_the_one_ahead_leaves_or_another_comes_between, "behind='r3'"),
    Sabotage("a stale reason of one no longer looked at", WaitingQueue, "settle",
             "self._stand_behind(self._index(seq))", "pass",
             service.test_a_head_that_does_not_fit_is_passed_eight_times_and_then_waited_for, "does not see"),
    Sabotage("drop one report from the fold", Audience, "tell",
             "in tuple(self._sinks)", "in tuple(self._sinks) if report.seq != 3 else ()", all_hit, "does not see"),
    Sabotage("a block leaves a table unseen", BlockTable, "trim", 'self._note("free", block, len(self.blocks))', "pass",
             preemption.test_the_record_says_what_was_lost_and_the_state_beside_the_reason, "does not see"),
    Sabotage("hits counted at every admission", Recorder, "committed", "if a.first:", "if True:",
             cases.test_S15_hits_are_counted_at_the_first_admission_only, "does not see"),
    Sabotage("tokens counted that nobody got", Committer, "_give", "self.recorder.output(", "(lambda output: None)(",
             all_hit, "nobody got|does not see"),
    Sabotage("no look at the pool when idle", Committer, "commit", "check_idle(self.scheduler)", "pass",
             faults.test_a_leaked_block_is_noticed_when_idle_and_the_pool_is_whole_again, "1 of 8 blocks are in use"),
    Sabotage("a rebuild that keeps the old pool", Committer, "rebuild", "self.scheduler.reset()", "pass",
             faults.test_a_leaked_block_is_noticed_when_idle_and_the_pool_is_whole_again, "1 of 8 blocks are in use"),
]  # fmt: skip


@pytest.mark.parametrize("one", SABOTAGE, ids=lambda one: one.fault)
def test_a_fault_is_caught(one, monkeypatch):
    one.caught_by()
    break_line(monkeypatch, one.owner, one.name, one.old, one.new)
    with pytest.raises((AssertionError, IntegrityError), match=one.says):
        one.caught_by()
