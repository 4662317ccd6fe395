"""Who is at fault: one row, one request, everything, or the bookkeeping itself; and what still holds afterwards."""

from __future__ import annotations

import logging

import pytest

from mini_infer import commit as commit_module
from mini_infer.observe.state import EngineState
from mini_infer.scheduler.integrity import IntegrityError
from tests.support.fake import NAN, fake_answer, fake_engine, idle, prompts, raising
from tests.support.watch import Watch

POINTS = ["before_run", "after_run", "before_resolve"]


def busy(faults: int = 0) -> Watch:
    """One that decodes, one that reads its prompt, and one that has just come."""
    watch = Watch(fake_engine(num_blocks=40, max_running=4, max_batch_tokens=16, max_chunk=6), faults=faults)
    a, b, c = prompts(3, 15)
    watch.ask(a[:3], max_tokens=12)
    watch.ask(b, max_tokens=6)
    watch.step()
    watch.step()
    watch.ask(c[:5], max_tokens=6)
    return watch


def hook(watch: Watch, point: str, call) -> None:
    setattr(watch.engine.sampler if point == "before_resolve" else watch.engine.runner, point, call)


def tied_to(request_id: str):
    """Raises whenever that request takes part."""

    def raise_it(batch_or_rows) -> None:
        if any(part.seq_id.split("/")[0] == request_id for part in getattr(batch_or_rows, "spans", batch_or_rows)):
            raise RuntimeError(f"{request_id} is unlucky")

    return raise_it


def reasons(watch: Watch) -> dict[str, str]:
    return {seq_id: f.reason for seq_id, f in watch.finished.items()}


def counters(state: EngineState) -> dict[str, tuple[object, ...]]:
    return {s.seq_id: (s.num_computed, s.output, s.table, s.running, s.cached) for s in state.sequences.values()}


# --- the step raises ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", POINTS)
def test_a_step_that_fails_once_is_nobodys_fault(point):
    watch = busy()
    hook(watch, point, raising(RuntimeError))
    tokens = watch.engine.runner.tokens
    watch.step()
    assert len(watch.last.sched) == 3  # each of them ran alone, and advanced
    assert watch.engine.runner.tokens > tokens
    watch.run()
    assert set(reasons(watch).values()) == {"length"}
    assert watch.state.totals.faults == 0


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("unlucky", ["r1", "r2", "r3"])
def test_a_fault_tied_to_one_request_ends_that_one(point, unlucky):
    watch = busy()
    hook(watch, point, tied_to(unlucky))
    watch.run()
    assert reasons(watch) == {r: "error" if r == unlucky else "length" for r in ("r1", "r2", "r3")}
    assert watch.finished[unlucky].error == f"RuntimeError: {unlucky} is unlucky"
    assert idle(watch.engine)


@pytest.mark.parametrize("point", POINTS)
def test_a_fault_of_everything_ends_whoever_took_part_and_serving_goes_on(point):
    watch = busy()
    hook(watch, point, raising(RuntimeError, times=100))
    watch.run()
    assert set(reasons(watch).values()) == {"error"}
    hook(watch, point, lambda _: None)
    watch.ask([1, 2, 3])
    watch.run()
    assert reasons(watch)["r4"] == "length"
    assert watch.state.totals.faults == 0  # the bookkeeping was never in doubt


def test_a_fault_of_one_choice_ends_its_request():
    watch = busy()
    watch.ask(prompts(1, 6, seed=8)[0], n=2)
    hook(watch, "before_resolve", lambda rows: 1 / 0 if any(r.seq_id == "r4/1" for r in rows) else None)
    watch.run()
    assert reasons(watch) == {"r1": "length", "r2": "length", "r3": "length", "r4/0": "error"}  # at the fork


@pytest.mark.parametrize("point", POINTS)
def test_no_counter_moves_in_a_step_that_was_undone(point):
    watch = busy()
    watch.flush()
    before, pool = watch.state, watch.engine.scheduler.pool.free_list()
    hook(watch, point, raising(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        watch.step()
    watch.check_integrity()
    after = watch.engine.snapshot()
    assert counters(after) == counters(before)
    assert after.totals == before.totals
    assert after.blocks == before.blocks
    assert sorted(watch.engine.scheduler.pool.free_list()) == sorted(pool)
    watch.run()
    assert set(reasons(watch).values()) == {"length"}


def test_what_was_evicted_or_preempted_in_a_step_that_was_undone_stays_so():
    watch = Watch(fake_engine(num_blocks=8, block_size=4))
    for prompt in prompts(2, 11):
        watch.ask(prompt, max_tokens=9)
    while watch.engine.scheduler.pool.num_free:
        watch.step()
    while watch.engine.scheduler.running[0].remaining + watch.engine.scheduler.running[0].num_computed <= 16:
        watch.step()
    hook(watch, "after_run", raising(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        watch.step()
    assert watch.engine.scheduler.sequences["r2"].preemptions == 1
    watch.check_integrity()
    watch.flush()
    assert [p.seq_id for p in watch.last.preempted] == ["r2"]
    watch.check()
    watch.run()
    assert set(reasons(watch).values()) == {"length"}


def test_rows_that_a_failed_step_wrote_do_not_reach_whoever_gets_its_blocks():
    watch = Watch(fake_engine(num_blocks=8, block_size=4))
    watch.engine.runner.poison.add("r1")
    hook(watch, "after_run", tied_to("r1"))
    unlucky, other = prompts(2, 14)
    watch.ask(unlucky)
    watch.step()
    assert reasons(watch) == {"r1": "error"}
    watch.ask(other[:5])  # less than was written
    watch.run()
    assert reasons(watch)["r2"] == "length"


# --- a row fails --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", ["r1", "r2", "r3"])
def test_M13_a_row_that_is_not_finite_ends_its_own_request(bad):
    watch = busy()
    watch.engine.runner.poison.add(bad)
    watch.run()
    assert reasons(watch) == {r: "error" if r == bad else "length" for r in ("r1", "r2", "r3")}
    assert "not finite" in watch.finished[bad].error
    assert watch.state.totals.faults == 0


def test_M13_a_hundred_requests_through_the_same_blocks_are_right():
    watch = Watch(fake_engine(num_blocks=12, block_size=4))
    (bad,) = prompts(1, 22)
    watch.engine.runner.poison.add("r1")
    watch.ask(bad, max_tokens=9)
    watch.run()
    for i in range(100):
        watch.ask(bad if i % 10 == 9 else prompts(50, 22, seed=1)[i % 50][: 3 + i % 20], max_tokens=1 + i % 9)
        if i % 3 == 0:
            watch.run()
    watch.run()
    assert watch.engine.runner.tokens > 100
    assert list(reasons(watch).values()) == ["error"] + ["length"] * 100


def test_M13_it_is_found_in_the_chunk_that_brings_it_and_nothing_of_it_is_published():
    watch = Watch(fake_engine(num_blocks=20, block_size=4, max_batch_tokens=8, max_chunk=8))
    (prompt,) = prompts(1, 24)
    watch.ask(prompt)
    watch.step()
    good = watch.state.blocks
    watch.engine.runner.poison.add("r1")
    watch.step()
    assert reasons(watch) == {"r1": "error"}  # eight tokens before it would have answered
    assert watch.state.blocks == {}
    assert set(watch.engine.runner.rows) <= {0, -1}
    assert len(good) == 2
    watch.ask(prompt)
    watch.run()
    assert watch.finished["r2"].reason == "length"
    assert watch.finished["r2"].usage.cached_tokens == 0


@pytest.mark.parametrize("raises", [False, True])
def test_M13_rows_of_an_unfinished_prompt_hurt_nobody(raises):
    watch = Watch(fake_engine(num_blocks=10, block_size=4, max_running=2, max_batch_tokens=6, max_chunk=2))
    bad, other = prompts(2, 20)
    watch.ask(other[:15], max_tokens=12)
    while not watch.answer("r1"):
        watch.step()
    watch.engine.runner.poison.add("r2")
    watch.ask(bad, max_tokens=5)
    if raises:
        hook(watch, "after_run", tied_to("r2"))
    watch.run()
    watch.ask(bad, max_tokens=5)
    watch.run()
    assert (watch.finished["r1"].reason, watch.finished["r3"].reason) == ("length", "length")


def test_M13_a_cached_prefix_that_went_bad_fails_once_and_is_forgotten():
    watch = Watch(fake_engine(block_size=4))
    (prompt,) = prompts(1, 10)
    watch.ask(prompt)
    watch.run()
    watch.engine.runner.rows[4 * min(watch.state.blocks)] = NAN
    watch.ask(prompt)
    watch.ask(prompt)
    watch.run()
    assert reasons(watch) == {"r1": "length", "r2": "error", "r3": "error"}  # both had hit it
    watch.ask(prompt)
    watch.run()
    assert reasons(watch)["r4"] == "length"


def test_M13_a_row_that_fails_but_is_finite_keeps_its_prefix():
    watch = Watch(fake_engine(block_size=4))
    (prompt,) = prompts(1, 10)
    watch.engine.sampler.fail["r1"] = False
    watch.ask(prompt)
    watch.run()
    assert watch.finished["r1"].reason == "error"
    watch.ask(prompt)
    watch.run()
    assert watch.finished["r2"].usage.cached_tokens == 0  # the commit that failed published nothing
    assert watch.finished["r2"].reason == "length"


def test_M13_one_poisoned_choice_ends_all_of_its_request_and_nobody_else():
    watch = busy()
    watch.ask(prompts(1, 6, seed=8)[0], n=3, max_tokens=9)
    while "r4/2" not in watch.engine.scheduler.sequences:
        watch.step()
    watch.step()
    watch.engine.runner.poison.add("r4/1")
    watch.run()
    assert {r: why for r, why in reasons(watch).items() if why == "error"}.keys() == {"r4/0", "r4/1", "r4/2"}
    assert idle(watch.engine)
    watch.ask(prompts(1, 6, seed=8)[0], n=3, max_tokens=9)
    watch.run()
    assert watch.finished["r5/1"].reason == "length"


def test_a_text_that_cannot_be_made_ends_its_own_request(monkeypatch):
    cut = commit_module.cut
    monkeypatch.setattr(commit_module, "cut", lambda seq, *rest: 1 // 0 if seq.seq_id == "r2" else cut(seq, *rest))
    watch = busy()
    watch.run()
    assert reasons(watch) == {"r1": "length", "r2": "error", "r3": "length"}
    assert watch.finished["r2"].error.startswith("ZeroDivisionError")


# --- the bookkeeping fails ----------------------------------------------------------------------------------------

BOOKKEEPING = ["plan", "begin_commit", "commit_slice"]


@pytest.mark.parametrize("name", BOOKKEEPING)
@pytest.mark.parametrize("listening", [True, False])
def test_a_fault_in_plan_or_commit_ends_everything_in_flight_and_is_counted(name, listening, monkeypatch, caplog):
    watch = busy(faults=1)
    watch.ask([9], n=2)
    watch.ask([8], n=4)  # waits for seats
    watch.step()
    if not listening:
        watch.engine.detach(watch.mirrors.pop())
    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR):
        patch.setattr(watch.engine.scheduler, name, raising(RuntimeError))
        watch.step()
    assert set(reasons(watch).values()) == {"error"}
    assert all(f.error == "the engine failed and was rebuilt: RuntimeError: injected" for f in watch.finished.values())
    assert len(caplog.records) == 1
    assert caplog.records[0].exc_info
    assert not watch.engine.has_work
    assert all(watch.engine.is_finished(f"r{i}") for i in range(1, 6))
    assert idle(watch.engine)
    assert watch.engine.scheduler.prefix.entries == {}
    assert watch.engine.recorder.totals["faults"] == 1
    (prompt,) = prompts(1, 3)
    watch.ask(prompt)
    watch.run()
    assert watch.answer("r6") == fake_answer(prompt, 8)


def test_what_ended_before_a_commit_failed_keeps_its_end_and_no_token_is_counted_that_nobody_got(monkeypatch):
    watch = Watch(fake_engine(), faults=1)
    a, b = prompts(2, 3)
    watch.ask(a, max_tokens=1)
    watch.ask(b, max_tokens=5)
    commit_slice = watch.engine.scheduler.commit_slice

    def breaks(s, accepted=0) -> None:
        if s.seq_id == "r2":
            raise RuntimeError("injected")
        commit_slice(s, accepted)

    monkeypatch.setattr(watch.engine.scheduler, "commit_slice", breaks)
    watch.step()
    assert reasons(watch) == {"r1": "length", "r2": "error"}
    assert [len(watch.answer(r)) for r in ("r1", "r2")] == [1, 1]  # `Watch` holds both against the usage


def test_a_leaked_block_is_noticed_when_idle_and_the_pool_is_whole_again():
    watch = Watch(fake_engine(num_blocks=8), faults=1)
    watch.ask([1, 2, 3], max_tokens=2)
    watch.step()
    watch.engine.scheduler.pool.take()
    watch.step()
    assert reasons(watch) == {"r1": "length"}  # its answer stands
    assert "1 of 8 blocks are in use" in watch.last.control[0].detail
    assert watch.state.totals.faults == 1
    assert idle(watch.engine)
    watch.ask([1, 2, 3])
    watch.run()


def test_a_broken_invariant_says_which():
    engine = fake_engine()
    watch = Watch(engine)
    watch.ask([1, 2, 3])
    watch.step()
    engine.scheduler.pool.ref[0] += 1
    with pytest.raises(IntegrityError, match="block 0: 2 references, 1 tables"):
        watch.check_integrity()


@pytest.mark.parametrize("name", BOOKKEEPING)
def test_ctrl_c_in_the_bookkeeping_is_raised_after_the_rebuild(name, monkeypatch):
    watch = busy(faults=1)
    with monkeypatch.context() as patch:
        patch.setattr(watch.engine.scheduler, name, raising(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            watch.step()
    assert idle(watch.engine)
    watch.flush()
    assert set(reasons(watch).values()) == {"error"}
    watch.ask([1, 2, 3])
    watch.run()


@pytest.mark.parametrize("times", [1, 2, 3, 4])
def test_ctrl_c_in_a_retry_leaves_the_engine_whole(times):
    """The whole step fails, then one of its sequences alone is interrupted."""
    watch = busy()
    calls = 0

    def fail(_) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise RuntimeError
        if calls == times:
            raise KeyboardInterrupt

    hook(watch, "after_run", fail)
    if 2 <= times <= 4:
        with pytest.raises(KeyboardInterrupt):
            watch.step()
        watch.check_integrity()
        watch.add_mirror()
    watch.run()
    assert set(reasons(watch).values()) == {"length"}
