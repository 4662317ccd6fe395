"""One-line faults in speculation: each is put into the code, and the tests named beside it must fail."""

from __future__ import annotations
import __future__

import inspect
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

from mini_infer.cache.block_pool import BlockPool
from mini_infer.commit import Committer, cut
from mini_infer.engine import InferenceEngine
from mini_infer.recorder import Recorder
from mini_infer.sampling.random import Purpose
from mini_infer.scheduler.continuous import ContinuousScheduler
from mini_infer.scheduler.integrity import IntegrityError
from mini_infer.speculative import draft_model, drafting, prompt_lookup
from mini_infer.speculative.draft_model import DraftModel
from mini_infer.speculative.drafting import DraftPlanner
from tests.speculative import test_acceptance as acceptance
from tests.speculative import test_answers as answers
from tests.speculative import test_distribution as distribution
from tests.speculative import test_exact_greedy as greedy
from tests.speculative import test_faults as faults
from tests.speculative import test_prompt_lookup as lookup
from tests.speculative import test_reasons as reasons
from tests.speculative.test_verify_in_sampler import SABOTAGE
from tests.support.distribution import exact, p_value, pair, sample

Patch = Callable[..., None]


@pytest.fixture
def sabotage(monkeypatch: pytest.MonkeyPatch) -> Patch:
    """Replaces one passage of a function or method, in its owner and in the modules that took it from there."""

    def patch(owner: Any, name: str, old: str, new: str, *more_owners: Any) -> None:
        function = inspect.getattr_static(owner, name)
        source = textwrap.dedent(inspect.getsource(function))
        assert source.count(old) == 1, f"{old!r} is {source.count(old)} times in {name}"
        flags = __future__.annotations.compiler_flag
        names: dict[str, Any] = {}
        exec(compile(source.replace(old, new), f"<{name}>", "exec", flags), function.__globals__, names)
        for place in (owner, *more_owners):
            monkeypatch.setattr(place, name, names[name])

    return patch


def fails(test: Callable[..., Any], *arguments: Any) -> None:
    with pytest.raises((AssertionError, IntegrityError)):
        test(*arguments)


# --- what is verified -----------------------------------------------------------------------------------------------


def noticed() -> bool:
    """By the test of `test_distribution`, on a third of its answers."""
    models = pair(32, 0.05)
    found, _ = sample(models, distribution.SHAPED, distribution.COUNT // 3, ks=(1, 2))
    return p_value(found, exact(models, distribution.SHAPED, 3)) < 1e-6


@pytest.mark.parametrize("fault", SABOTAGE)
def test_a_verifier_at_fault_gives_another_distribution(monkeypatch, fault):
    monkeypatch.setattr(*SABOTAGE[fault])
    assert noticed()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("else Purpose.DRAFT", "else Purpose.ACCEPT"),  # drafted and judged by one number
        ("r.position + ahead, purpose", "r.position, purpose"),  # all drafts of a round by one number
        (".append(dists[i])", ".insert(0, dists[i])"),  # the distributions of a round in the wrong order
    ],
)
def test_drafts_drawn_otherwise_than_said_give_another_distribution(sabotage, old, new):
    sabotage(DraftModel, "_draw", old, new)
    assert noticed()


def test_drafts_before_a_fork(sabotage):
    sabotage(ContinuousScheduler, "plan", "seq.n == 1", "seq.n >= 1")
    fails(reasons.test_nothing_is_drafted_before_a_fork, "good")


def test_coupled_drafts_by_a_number_of_their_own(sabotage):
    sabotage(DraftModel, "_draw", "Purpose.SAMPLE if r.is_coupled else Purpose.DRAFT", "Purpose.DRAFT")
    assert Purpose.DRAFT != Purpose.SAMPLE
    fails(acceptance.test_300_tokens_without_a_rejection, acceptance.SEEDED, 4)


def test_penalties_of_the_draft_without_the_drafts_before(sabotage):
    sabotage(DraftModel, "_draw", "tokens[r.seq_id])\n        for", "())\n        for")
    fails(acceptance.test_300_tokens_without_a_rejection, acceptance.SHAPED, 4)


# --- the draft's rows -----------------------------------------------------------------------------------------------


def test_a_validity_bit_that_outlives_its_block(sabotage):
    sabotage(BlockPool, "take", "self.draft_valid[block] = False", "pass")
    fails(acceptance.test_draft_rows_of_valid_blocks_are_those_of_their_tokens)


def test_a_validity_bit_that_is_never_set(sabotage):
    from mini_infer import commit

    sabotage(drafting, "commit_drafts", "pool.draft_valid[seq.table.blocks[i]] = True", "pass", commit)
    fails(acceptance.test_draft_rows_of_valid_blocks_are_those_of_their_tokens)


def test_a_hit_whose_draft_rows_are_taken_for_granted(sabotage):
    from mini_infer.scheduler import continuous

    sabotage(drafting, "draft_start", " and pool.draft_valid[seq.table.blocks[index]]", "", continuous)
    fails(acceptance.test_after_a_prefix_hit_too, acceptance.GREEDY)


def test_the_draft_ahead_of_the_target(sabotage):
    from mini_infer import commit

    sabotage(drafting, "commit_drafts", "min(end, seq.num_computed)", "end", commit)
    fails(greedy.test_every_k_in_a_batch_of_8, "bad")


def test_the_row_of_the_last_draft_is_taken_for_computed(sabotage):
    from mini_infer import commit

    sabotage(drafting, "commit_drafts", "len(drafted.get(s.seq_id, ())) - 1", "len(drafted.get(s.seq_id, ()))", commit)
    fails(acceptance.test_300_tokens_without_a_rejection, acceptance.GREEDY, 4)


def test_two_writers_of_one_block(sabotage):
    sabotage(DraftPlanner, "_catch_up", " or shared & self._claimed", "")
    fails(reasons.test_several_sequences_share_the_drafting_budget_and_no_block_has_two_writers)


def test_a_draft_row_in_the_wrong_place(sabotage):
    sabotage(draft_model, "_next_batch", "seq.num_tokens + len(drafts) - 1", "seq.num_tokens + len(drafts)")
    fails(acceptance.test_300_tokens_without_a_rejection, acceptance.GREEDY, 4)


# --- how many drafts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "test", "arguments"),
    [
        (" - 1, \"TAIL\")", " + 1, \"TAIL\")", reasons.test_k_is_0_tail, ()),
        ("(budget, \"BUDGET\")", "(99, \"BUDGET\")", reasons.test_k_is_0_budget, ("good",)),
        ("(self._free_rows(seq), \"BLOCKS\")", "(99, \"BLOCKS\")", reasons.test_k_is_0_blocks, ("good",)),
        ("max(most, 0), reason", "max(most, 0), \"LAG\"", reasons.test_k_is_0_blocks, ("good",)),
        ("k, why = 0, \"LAG\"", "k, why = 0, \"ADAPTIVE\"", reasons.test_k_is_0_lag, ()),
        ("seq.last_drafted = seq.num_tokens", "pass", reasons.test_k_is_0_adaptive, ()),
    ],
)  # fmt: skip
def test_a_limit_of_k_or_its_reason(sabotage, old, new, test, arguments):
    sabotage(DraftPlanner, "choose", old, new)
    fails(test, *arguments)


def test_drafts_that_keep_a_newcomer_out(sabotage):
    sabotage(ContinuousScheduler, "plan", "draft.left - bool(self.queue)", "draft.left")
    fails(reasons.test_a_waiting_request_gets_its_token_before_drafts_do, "good")


def test_a_reason_that_stays_when_the_request_waits(sabotage):
    sabotage(ContinuousScheduler, "_back_to_queue", "seq.k, seq.k_why = 0, None", "pass")
    fails(greedy.test_preempted_once_at_every_step, "good", False)


def test_a_preempted_request_whose_draft_rows_are_still_told(sabotage):
    sabotage(Recorder, "preempted", "self._told_k.pop(p.seq_id, None)", "pass")
    fails(reasons.test_a_request_preempted_while_it_reads_its_prompt_is_told_anew)


def test_an_n_gram_that_finds_itself(sabotage):
    sabotage(prompt_lookup._Index, "update", "len(tokens)):", "len(tokens) + 1):")
    with pytest.raises(IndexError):  # there is nothing behind the end
        lookup.test_what_followed_the_same_tokens_is_proposed()


# --- what is committed ----------------------------------------------------------------------------------------------


def test_rows_of_refused_drafts_that_stand(sabotage):
    sabotage(Committer, "_give", "accepted=len(kept.tokens) - 1", "accepted=s.n_draft")
    fails(answers.test_published_blocks_hold_tokens_of_answers_and_never_a_refused_draft, "bad", 4)


def test_an_answer_cut_one_token_late(sabotage):
    from mini_infer import commit

    sabotage(commit, "cut", "tokens[:taken]", "tokens[: taken + 1]")
    assert cut is not commit.cut
    fails(greedy.test_P05_an_end_token_inside_an_accepted_run_ends_the_answer_there, "good")


def test_drafts_after_the_end_that_count(sabotage):
    sabotage(Committer, "_count_round", "if len(kept.tokens) <= accepted:", "if False:")
    fails(greedy.test_P05_an_end_token_inside_an_accepted_run_ends_the_answer_there, "good")


def test_choices_that_count_into_one_list(sabotage):
    sabotage(Committer, "_fork", "judged_by_position=[], accepted_by_position=[],", "")
    fails(answers.test_usage_counts_what_the_rounds_reported)


# --- faults ---------------------------------------------------------------------------------------------------------


def test_a_draft_that_is_asked_for_ever(monkeypatch):
    from mini_infer import engine

    monkeypatch.setattr(engine, "MAX_DRAFT_FAILURES", 30)
    fails(faults.test_three_failures_in_a_row_end_drafting_for_all, None)


def test_failures_that_add_up_over_time(sabotage):
    sabotage(InferenceEngine, "_draft", "self._draft_failures = 0", "pass")
    fails(faults.test_failures_count_only_in_a_row)


def test_ctrl_c_while_drafting_that_is_taken_for_broken_bookkeeping(sabotage):
    sabotage(InferenceEngine, "_draft", "raise self._undo(plan, error) from error", "raise")
    fails(faults.test_ctrl_c_while_drafting_undoes_the_step_and_loses_nobody)


def test_nan_in_the_draft_that_is_asked_again_and_again(sabotage):
    from mini_infer import engine

    sabotage(drafting, "settle", '"FAILED", drafted is None', '"FAILED", True', engine)
    fails(faults.test_nan_in_the_draft_ends_the_drafts_of_that_sequence_alone)


def test_drafting_rows_are_looked_at_where_nobody_drafts(sabotage):
    sabotage(ContinuousScheduler, "begin_commit", "if self.draft_has_kv:", "if True:")
    fails(answers.test_with_none_nothing_in_speculative_is_called, acceptance.GREEDY)
