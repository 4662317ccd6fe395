"""A draft at fault costs speed, never an answer: it raises, it gives NaN, it is interrupted, it says too much."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from mini_infer.batch import Batch, slot_index
from mini_infer.engine import InferenceEngine
from mini_infer.sampling.params import SamplingParams
from tests.support.engines import Hooks, expected, expected_greedy, prompt
from tests.support.fake import idle
from tests.support.speculation import SpecRun, Stub, spec_engine, totals

GREEDY = SamplingParams(temperature=0, max_tokens=40)
JOBS = [(prompt(length, seed=length), GREEDY) for length in (3, 16, 33)]


def check(run: SpecRun) -> None:
    for (ids, params), result in zip(JOBS, run.finish(), strict=True):
        assert list(result.token_ids) == expected(ids, params)
        assert result.finish_reason == "length"
    assert idle(run.engine)


def start(engine: InferenceEngine) -> SpecRun:
    run = SpecRun(engine)
    for ids, params in JOBS:
        run.add(ids, params)
    return run


def break_draft(engine: InferenceEngine, when: Callable[[int], bool], error: type[BaseException] = RuntimeError) -> Any:
    """The draft model's forward passes of which `when(number)` is true raise, after they wrote their rows."""
    runner = engine.proposer.runner
    original, calls = runner.run, []

    def run(batch: Batch) -> Any:
        hidden = original(batch)
        calls.append(batch)
        if when(len(calls)):
            raise error
        return hidden

    runner.run = run
    return calls


@pytest.mark.parametrize("number", [1, 2, 5, 9, 10])
def test_one_failure_costs_one_step_and_nothing_else(number):
    engine = spec_engine("good", 4)
    break_draft(engine, lambda n: n == number)
    run = start(engine)
    check(run)
    failed = [c for report in run.reports for c in report.k if c.why == "FAILED"]
    assert failed
    assert all(c.k == 0 for c in failed)
    assert totals(engine)["drafted"] == totals(engine)["accepted"] > 0


def test_failures_count_only_in_a_row():
    engine = spec_engine("good", 1)
    calls = break_draft(engine, lambda n: n % 3 != 0)  # two, then one that works
    run = start(engine)
    check(run)
    assert len(calls) > 12
    assert totals(engine)["accepted"] > 0


def test_three_failures_in_a_row_end_drafting_for_all(caplog):
    engine = spec_engine("good", 4)
    calls = break_draft(engine, lambda n: n > 4)
    run = start(engine)
    check(run)
    assert len(calls) == 7
    assert [c.why for c in run.reports[-2].k] in ([], ["FAILED"] * len(run.reports[-2].k))
    later = run.add(prompt(9), replace(GREEDY, n=3))  # forks copy blocks: still nothing is asked of the draft
    result = run.finish()[-1]
    assert [c.token_ids for c in result.choices] == [tuple(expected_greedy(prompt(9), 40))] * 3
    assert (result.usage.rounds, result.usage.off_reason) == (0, "FAILED")
    assert len(calls) == 7
    assert later in run.results
    assert caplog.text.count("drafting failed") == 3
    assert caplog.text.count("no drafts from now on") == 1


def test_the_policy_and_the_clock_may_fail_too():
    for name in ("wants", "observe"):
        engine = spec_engine("good", 4)

        def broken(*args: Any, **kwargs: Any) -> Any:
            raise ZeroDivisionError

        setattr(engine.proposer, name, broken)
        check(start(engine))


def test_a_draft_that_fails_in_the_step_of_a_copy_or_after_it():
    """The copy of a shared block is made by the draft's own pass; where that raised there is none."""
    ids = prompt(21)
    for number in range(1, 9):
        engine = spec_engine("good", 4)
        first = SpecRun(engine)
        first.add(ids, replace(GREEDY, max_tokens=1))
        first.finish()
        break_draft(engine, lambda n, number=number: n == number)
        run = SpecRun(engine)
        run.add(ids, SamplingParams(temperature=1, seed=number, max_tokens=40, n=3))
        (result,) = run.finish()
        assert [list(c.token_ids) for c in result.choices] == [
            expected(ids, SamplingParams(temperature=1, seed=number, max_tokens=40), choice=c) for c in range(3)
        ]
        assert result.usage.drafted == result.usage.accepted > 0


def test_ctrl_c_while_drafting_undoes_the_step_and_loses_nobody():
    for number in (1, 2, 6):
        engine = spec_engine("good", 4)
        break_draft(engine, lambda n, number=number: n == number, KeyboardInterrupt)
        run = start(engine)
        with pytest.raises(KeyboardInterrupt):
            run.finish()
        before = dict(totals(engine))
        assert before["faults"] == 0
        check(run)
        assert totals(engine)["drafted"] == totals(engine)["accepted"] > 0


# --- the target at fault --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("draft", ["good", "near", "ngram"])
def test_a_failed_verify_is_taken_again_without_drafts(draft):
    for number in range(2, 12):
        engine = spec_engine(draft, 4)
        hooks = Hooks(engine)
        calls = 0

        def before(batch: Batch, number: int = number) -> None:
            nonlocal calls
            calls += 1
            if calls == number:
                raise RuntimeError("once")

        hooks.before = before
        check(start(engine))
        if draft == "good":
            assert totals(engine)["drafted"] == totals(engine)["accepted"] > 0


def test_a_request_that_fails_alone_takes_nobody_with_it():
    engine = spec_engine("good", 4)
    hooks = Hooks(engine)

    def before(batch: Batch) -> None:
        if any(s.seq_id == "r2" and s.kv_len > 24 for s in batch.spans):
            raise RuntimeError("r2 is cursed")

    hooks.before = before
    run = start(engine)
    first, second, third = run.finish()
    assert second.finish_reason == "error"
    assert list(second.token_ids) == expected_greedy(JOBS[1][0], 40)[: len(second.token_ids)]
    for job, result in ((JOBS[0], first), (JOBS[2], third)):
        assert list(result.token_ids) == expected(*job)
    assert idle(engine)


# --- NaN ------------------------------------------------------------------------------------------------------------


def spoil_draft(engine: InferenceEngine, seq_id: str, batch: Batch) -> None:
    data = engine.proposer.runner.kv.data.flatten(2, 3)
    for span in batch.spans:
        if span.seq_id == seq_id:
            data[:, :, slot_index(span.blocks, 0, span.kv_len, batch.block_size)] = torch.nan


def test_nan_in_the_draft_ends_the_drafts_of_that_sequence_alone():
    engine = spec_engine("good", 4)
    runner, original = engine.proposer.runner, engine.proposer.runner.run
    passes: list[set[str]] = []

    def run_it(batch: Batch) -> Any:
        passes.append({s.seq_id for s in batch.spans})
        hidden = original(batch)
        if sum("r2" in names for names in passes) == 3:
            spoil_draft(engine, "r2", batch)
        return hidden

    runner.run = run_it
    run = start(engine)
    check(run)
    assert "FAILED" in [why for _, why in run.reasons("r2")]
    assert all(why != "FAILED" for name in ("r1", "r3") for _, why in run.reasons(name))
    assert run.results["r2"].usage.accepted < run.results["r1"].usage.accepted
    assert "r2" not in passes[-1]
    assert totals(engine)["drafted"] == totals(engine)["accepted"]


def test_nan_in_the_target_leaves_no_draft_rows_behind_either():
    """100 requests go through the blocks of one that ended on NaN."""
    engine = spec_engine("good", 4, num_blocks=12)
    hooks = Hooks(engine)
    run = SpecRun(engine)
    run.add(prompt(40), GREEDY)
    for _ in range(3):
        run.step()
    hooks.after = lambda batch: (hooks.spoil(batch, "r1"), spoil_draft(engine, "r1", batch))
    run.step()
    hooks.after = lambda batch: None
    (gone,) = run.finish()
    assert gone.finish_reason == "error"
    for n in range(100):
        run.add(prompt(5 + n % 30, n), replace(GREEDY, max_tokens=6))
    for n, result in enumerate(run.finish()[1:]):
        assert list(result.token_ids) == expected_greedy(prompt(5 + n % 30, n), 6)
    assert totals(engine)["drafted"] == totals(engine)["accepted"] > 100


# --- odd proposers --------------------------------------------------------------------------------------------------


def test_more_drafts_than_asked_for_are_cut():
    class Talkative(Stub):
        def propose(self, plan: Any, sequences: Any, rows: Any) -> Any:
            drafts = super().propose(plan, sequences, rows)
            return replace(drafts, tokens={i: (*tokens, 1, 2, 3) for i, tokens in drafts.tokens.items()})

    answers = {tuple(ids): expected_greedy(ids, 44) for ids, _ in JOBS}

    def oracle(tokens: list[int]) -> list[int]:
        (ids,) = [ids for ids in answers if tuple(tokens[: len(ids)]) == ids]
        return answers[ids][len(tokens) - len(ids) :][:3]

    engine = spec_engine(Talkative(oracle, 3))
    run = start(engine)
    check(run)
    assert totals(engine)["accepted"] == totals(engine)["drafted"] > 60


def test_P08_a_draft_that_always_proposes_the_end_token():
    ids = prompt(12, seed=4)
    whole = expected_greedy(ids, 60)
    end = next(t for t in range(384) if t not in whole)
    for params in (replace(GREEDY, max_tokens=60), SamplingParams(temperature=1, seed=2, max_tokens=60)):
        for k in (1, 4, 8):
            engine = spec_engine(Stub(lambda tokens: [end] * 8, k), eos=(end,))
            run = SpecRun(engine)
            run.add(ids, params)
            (result,) = run.finish()
            assert list(result.token_ids) == expected(ids, params, eos=(end,))
            assert result.usage.accepted == (result.finish_reason == "stop")
            assert result.usage.rounds > 10


# --- aborts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("draft", ["good", "near", "bad", "ngram"])
def test_an_abort_between_two_rounds_frees_everything_and_disturbs_nobody(draft):
    for steps in range(1, 9):
        engine = spec_engine(draft, 4)
        run = start(engine)
        extra = run.add(prompt(20, 5), replace(GREEDY, n=3))
        for _ in range(steps):
            run.step()
        assert engine.abort(extra)
        results = run.finish()
        assert results[3].finish_reason == "abort"
        for choice in results[3].choices:
            assert list(choice.token_ids) == expected_greedy(prompt(20, 5), 40)[: len(choice.token_ids)]
        for (ids, params), result in zip(JOBS, results, strict=False):
            assert list(result.token_ids) == expected(ids, params)
        assert idle(engine)
        run.add(prompt(20, 5), GREEDY)
        assert list(run.finish()[-1].token_ids) == expected_greedy(prompt(20, 5), 40)
