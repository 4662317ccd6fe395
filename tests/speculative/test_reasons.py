"""Why a sequence has no drafts: every reason of the closed set comes from a scene of its own, and is true there."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import pytest

from mini_infer.observe.events import KReason
from mini_infer.sampling.params import SamplingParams
from mini_infer.speculative.adaptive import Adaptive, Costs, StepTimes
from tests.support.engines import expected_greedy, preempt_when, prompt
from tests.support.speculation import DRAFTS, SpecRun, Stub, spec_engine

MODELS = ("good", "near", "bad")


class Measured(Costs):
    """Costs that stay as they are, whatever this machine takes."""

    def add(self, times: StepTimes) -> None:
        pass


def greedy(count: int, **more: object) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=count, **more)


def chosen(run: SpecRun, seq_id: str) -> tuple[int, KReason | None]:
    seq = run.engine.scheduler.sequences[seq_id]
    assert run.mirror.state is not None
    seen = run.mirror.state.sequences[seq_id]
    assert (seen.k, seen.k_why, seen.num_computed_draft) == (seq.k, seq.k_why, seq.num_computed_draft)
    return seq.k, seq.k_why


def decode(run: SpecRun, seq_id: str, until: Callable[[], bool] = lambda: False) -> None:
    """Step until the sequence has drawn its first token by itself, or `until`."""
    seq = run.engine.scheduler.sequences[seq_id]
    while seq.steps < 2 and not until():
        run.step()


def test_the_set_is_the_one_that_is_tried_here():
    scenes = {name.rpartition("_")[2] for name in globals() if name.startswith("test_k_is_0_")}
    want = {reason.rpartition("_")[2].lower() for reason in get_args(KReason)} - {"grammar"}  # not offered yet
    assert scenes == want


def test_while_a_prompt_is_read_there_is_neither_k_nor_reason():
    run = SpecRun(spec_engine("good", 4, max_chunk=8))
    run.add(prompt(28), greedy(9))
    for _ in range(4):
        run.step()
        assert chosen(run, "r1") == (0, None)
    run.step()
    assert chosen(run, "r1") == (0, "LAG")
    (result,) = run.finish()
    assert result.usage.rounds


@pytest.mark.parametrize("draft", DRAFTS)
def test_nothing_is_drafted_before_a_fork(draft):
    """Even where the prompt's last row is a chunk of its own, which looks like a decode."""
    for n in (1, 3):
        run = SpecRun(spec_engine(draft, 4, max_chunk=15))
        ids = [5, 6] * 8
        run.add(ids, greedy(9, n=n))
        run.step()
        run.step()
        (last,) = run.reports[-1].sched
        assert (last.start, last.n_new) == (15, 1)
        assert (last.n_draft > 0) == (n == 1)
        (result,) = run.finish()
        assert all(list(c.token_ids) == expected_greedy(ids, 9) for c in result.choices)


def test_a_request_preempted_while_it_reads_its_prompt_is_told_anew():
    """It resumes on the same blocks, whose draft rows are there: as it was before, but not as observers last saw it."""
    run = SpecRun(spec_engine("good", 4, max_chunk=8))
    head = prompt(40)
    run.add(head, greedy(12))
    run.finish()
    run.add(head + prompt(60, 1), greedy(12))
    engine = run.engine
    preempt_when(engine, lambda seq, at=engine.scheduler.step + 3: engine.scheduler.step + 1 == at)
    (_, result) = run.finish()
    assert result.usage.preemptions == 1
    assert list(result.token_ids) == expected_greedy(head + prompt(60, 1), 12)


@pytest.mark.parametrize("draft", DRAFTS)
def test_k_is_0_off(draft):
    """`--draft-tokens 0`: the proposer is there, but silent; a draft model never reads a prompt."""
    run = SpecRun(spec_engine(draft, 0))
    run.add(prompt(20), greedy(10))
    decode(run, "r1")
    assert chosen(run, "r1") == (0, "OFF")
    (result,) = run.finish()
    assert (result.usage.rounds, result.usage.off_reason) == (0, "OFF")
    assert not any(run.engine.scheduler.pool.draft_valid)


def test_k_is_0_lag():
    """A prompt of 100 rows under a drafting budget of 32 is read in four steps, while the answer goes on without."""
    run = SpecRun(spec_engine("good", 4, max_batch_tokens=32, max_chunk=32))
    ids = prompt(100)
    run.add(ids, greedy(30))
    seq = run.engine.scheduler.sequences["r1"]
    while seq.steps < 1:
        run.step()
    assert seq.num_computed_draft == 0
    for rows in (32, 64, 96):
        run.step()
        assert chosen(run, "r1") == (0, "LAG")
        assert seq.num_computed_draft == rows <= seq.num_computed
    run.step()
    assert chosen(run, "r1") == (4, None)
    (result,) = run.finish()
    assert list(result.token_ids) == expected_greedy(ids, 30)
    assert result.usage.drafted == result.usage.accepted > 0


def test_several_sequences_share_the_drafting_budget_and_no_block_has_two_writers():
    run = SpecRun(spec_engine("good", (0, 4, 4, 4), max_batch_tokens=48, max_chunk=48))
    run.add(prompt(64), greedy(4))
    run.finish()  # cached, without draft rows
    for n in range(3):
        run.add(prompt(64) + prompt(3, n), greedy(20))
    plan = run.engine.scheduler.plan
    written: list[int] = []

    def watched(*args, **kwargs):
        made = plan(*args, **kwargs)
        tables = {i: s.table.blocks for i, s in run.engine.scheduler.sequences.items()}
        blocks = [b for s in made.draft_slices for b in tables[s.seq_id][s.start // 16 : -(-(s.start + s.n_new) // 16)]]
        assert len(blocks) == len(set(blocks)), "two writers of one block"
        assert sum(s.n_new for s in made.draft_slices if s.rows == "none") <= 48
        written.extend(blocks)
        return made

    run.engine.scheduler.plan = watched
    run.step()
    prompt_blocks = run.engine.scheduler.running[0].table.blocks[:4]
    assert all(s.table.blocks[:4] == prompt_blocks for s in run.engine.scheduler.running)
    results = run.finish()
    for n, result in enumerate(results[1:]):
        assert list(result.token_ids) == expected_greedy(prompt(64) + prompt(3, n), 20)
        assert result.usage.drafted == result.usage.accepted > 0
    assert [written.count(b) for b in prompt_blocks] == [1, 1, 1, 1], "one of them reads the prompt for all"


@pytest.mark.parametrize("draft", DRAFTS)
def test_k_is_0_budget(draft):
    """Drafts get what is left of the step's tokens after one for each running sequence."""
    params = greedy(20, frequency_penalty=-2)
    run = SpecRun(spec_engine(draft, 4, max_batch_tokens=3, max_running=3, max_chunk=3))
    for _ in range(3):
        run.add([5, 6, 5, 6, 5, 6], params)
    seqs = run.engine.scheduler.sequences
    while any(s.steps < 2 for s in seqs.values()):
        run.step()
        assert sum(s.n_new + s.n_draft for s in run.reports[-1].sched) <= 3
    reasons = [chosen(run, s)[1] for s in seqs]
    assert set(reasons) <= {"BUDGET", "NO_MATCH"}
    assert "BUDGET" in reasons
    run.finish()


@pytest.mark.parametrize("draft", MODELS)
def test_a_waiting_request_gets_its_token_before_drafts_do(draft):
    run = SpecRun(spec_engine(draft, 8, max_batch_tokens=6, max_running=6, max_chunk=6))
    run.add(prompt(4), greedy(100))
    decode(run, "r1")
    run.step()
    assert run.reports[-1].sched[0].n_draft == 5
    run.add(prompt(4, 1), greedy(5))
    run.step()
    assert [s.seq_id for s in run.reports[-1].sched] == ["r1", "r2"]
    run.finish()


@pytest.mark.parametrize("draft", MODELS)
def test_k_is_0_blocks(draft):
    """No block is free without preempting: drafts are the first to go, and nobody is preempted for them."""
    run = SpecRun(spec_engine(draft, 4, num_blocks=3, block_size=8, prefix_cache=False))
    for n in range(2):
        run.add(prompt(7, n), greedy(5))
    seen = set()
    while run.engine.has_work:
        run.step()
        pool = run.engine.scheduler.pool
        for seq in run.engine.scheduler.running:
            seen.add((seq.k > 0, seq.k_why))
        assert pool.num_free >= 0
    assert (False, "BLOCKS") in seen


@pytest.mark.parametrize("draft", MODELS)
def test_drafts_evict_no_cached_block_while_others_are_free(draft):
    engine = spec_engine(draft, 8, num_blocks=30, block_size=4, max_running=4)
    run = SpecRun(engine)
    pool, take = engine.scheduler.pool, engine.scheduler.pool.take

    def watched() -> int:
        unhashed = pool.num_free - pool.num_cached
        before = pool.evictions
        block = take()
        assert not (unhashed and pool.evictions > before), "a cached block went while others were free"
        return block

    pool.take = watched
    for n in range(6):
        run.add(prompt(9 + n, n), greedy(20))
    run.finish()
    assert pool.evictions > 0


def test_k_is_0_tail():
    """The last token that is allowed needs no draft."""
    for draft in DRAFTS:
        run = SpecRun(spec_engine(draft, 4))
        run.add([5, 6, 5, 6, 5, 6, 5], greedy(2))
        decode(run, "r1", until=lambda run=run: not run.engine.has_work)
        assert not run.rounds
        (result,) = run.finish()
        assert result.usage.off_reason in ("TAIL", "NO_MATCH" if draft == "ngram" else "TAIL")
    engine = spec_engine("good", 8, max_model_len=20)
    run = SpecRun(engine)
    run.add(prompt(12), SamplingParams(temperature=0))
    run.finish()
    assert max(s.start + s.n_new + s.n_draft for report in run.reports for s in report.sched) <= 19


def test_k_is_0_match():
    """NO_MATCH: nothing like the last two tokens has been seen."""
    run = SpecRun(spec_engine("ngram", 4))
    run.add([1, 2, 3, 4, 5], greedy(6))
    decode(run, "r1")
    assert chosen(run, "r1") == (0, "NO_MATCH")
    (result,) = run.finish()
    assert result.usage.off_reason == "NO_MATCH"


def test_k_is_0_adaptive():
    """A draft as slow as its target never pays; it is tried again every 64 tokens, with two drafts."""
    policy = Adaptive(costs=Measured())
    for rows in (1, 2, 5, 9):
        times = StepTimes(1, rows, verify_s=1.0 + 0.01 * rows, draft_forwards=1, draft_rows=1, draft_s=1.0)
        Costs.add(policy.costs, times)
    engine = spec_engine("bad")
    engine.proposer.policy = policy
    run = SpecRun(engine)
    run.add(prompt(8), greedy(200))
    decode(run, "r1")
    assert chosen(run, "r1") == (0, "ADAPTIVE")
    (result,) = run.finish()
    assert result.usage.off_reason == "ADAPTIVE"
    assert result.usage.rounds == 3  # at 64, 128 and 192 tokens
    assert [len(r.draft) for r in run.rounds] == [1, 1, 1]
    assert result.usage.drafted == 6
    at = [s.num_tokens for report in run.reports for s in report.sched if s.n_draft]
    assert [b - a for a, b in zip([8, *at], at, strict=False)] == [65, 65, 65]  # a step to catch up


def test_k_is_0_failed():
    def broken(tokens):
        raise RuntimeError("no such draft")

    run = SpecRun(spec_engine(Stub(broken)))
    run.add(prompt(8), greedy(10))
    decode(run, "r1")
    assert chosen(run, "r1") == (0, "FAILED")
    (result,) = run.finish()
    assert list(result.token_ids) == expected_greedy(prompt(8), 10)
    assert result.usage.off_reason == "FAILED"
