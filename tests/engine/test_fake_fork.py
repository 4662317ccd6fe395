"""Several choices from one prompt: shared blocks, copies before writes, and ends at every moment."""

from __future__ import annotations

import pytest

from tests.support.fake import fake_answer, fake_engine, idle, prompts, raising
from tests.support.watch import Watch


def copies(watch: Watch) -> list[tuple[int, int]]:
    return [pair for r in watch.reports for pair in r.copies]


@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 9])
@pytest.mark.parametrize("n", [2, 4])
def test_each_choice_answers_as_it_would_alone(length, n):
    watch = Watch(fake_engine(block_size=4, max_running=5))
    (prompt,) = prompts(1, length)
    watch.ask(prompt, max_tokens=11, n=n)
    watch.ask(prompt, max_tokens=11)
    watch.run()
    answers = [watch.answer(f"r1/{c}") for c in range(n)]
    assert answers == [fake_answer(prompt, 11, c) for c in range(n)]
    assert len({tuple(a) for a in answers}) == n
    assert watch.answer("r2") == answers[0]


def test_four_choices_copy_the_tail_three_times_and_the_last_writes_in_place():
    watch = Watch(fake_engine(block_size=4))
    watch.ask(prompts(1, 10)[0], max_tokens=5, n=4)
    watch.step()
    assert [f.child for f in watch.last.forked] == ["r1/1", "r1/2", "r1/3"]
    tables = {s.seq_id: s.table for s in watch.state.running}
    assert len(set(tables.values())) == 1  # they share every block, the tail included
    watch.step()
    tail = tables["r1/0"][2]
    assert len(watch.last.copies) == 3
    assert {old for old, _ in watch.last.copies} == {tail}
    owners = {s.seq_id: s.table[2] for s in watch.state.running}
    assert len(set(owners.values())) == 4
    assert owners["r1/3"] == tail
    assert len({s.table[:2] for s in watch.state.running}) == 1
    watch.run()
    assert len(copies(watch)) == 3


def test_nothing_is_copied_where_the_prompt_fills_its_blocks():
    watch = Watch(fake_engine(block_size=4))
    watch.ask(prompts(1, 8)[0], max_tokens=5, n=4)
    watch.run()
    assert copies(watch) == []


def test_the_prompt_is_computed_once():
    watch = Watch(fake_engine(block_size=4, max_running=4))
    watch.ask(prompts(1, 10)[0], max_tokens=5, n=4)
    watch.run()
    assert watch.state.totals.computed_tokens == 10 + 4 * 4
    assert watch.state.totals.prompt_tokens == 10
    assert watch.state.totals.output_tokens == 20


def test_ids_are_the_requests_own_for_one_choice_and_numbered_for_more():
    engine = fake_engine()
    watch = Watch(engine)
    one, two = watch.ask([1], max_tokens=1), watch.ask([1], max_tokens=1, n=2)
    report = watch.step()
    assert [seq_id for seq_id, _ in report] == [one, f"{two}/0", f"{two}/1"]
    assert engine.is_finished(one)
    assert engine.is_finished(two)


def test_is_finished_means_all_choices():
    (prompt,) = prompts(1, 5)
    answers = [fake_answer(prompt, 12, c) for c in range(2)]
    stop = next(t for t in answers[1] if t not in answers[0])
    watch = Watch(fake_engine())
    request_id = watch.ask(prompt, max_tokens=12, n=2, stop=[stop])
    while "r1/1" not in watch.finished:
        watch.step()
    assert not watch.engine.is_finished(request_id)
    watch.run()
    assert watch.engine.is_finished(request_id)
    assert [watch.finished[f"r1/{c}"].reason for c in range(2)] == ["length", "stop"]


@pytest.mark.parametrize("after", range(6))
def test_an_abort_ends_all_choices_at_every_moment(after):
    watch = Watch(fake_engine(block_size=4, max_running=4, max_batch_tokens=8, max_chunk=4))
    watch.ask(prompts(1, 11)[0], max_tokens=9, n=3)
    watch.ask([1, 2], max_tokens=12)
    for _ in range(after):
        watch.step()
    choices = 3 if after >= 3 else 1  # three chunks of prompt, then the fork
    watch.engine.abort("r1")
    watch.flush()
    assert [f.reason for s, f in watch.finished.items() if s.startswith("r1/")] == ["abort"] * choices
    watch.run()
    assert idle(watch.engine)


def test_preempted_siblings_resume_and_answer_right():
    watch = Watch(fake_engine(num_blocks=9, block_size=4, max_running=4))
    watch.ask(prompts(1, 10)[0], max_tokens=14, n=4)
    watch.run()
    assert watch.state.totals.preemptions >= 2
    assert {f.reason for f in watch.finished.values()} == {"length"}


def test_an_abort_with_a_preempted_sibling():
    watch = Watch(fake_engine(num_blocks=9, block_size=4, max_running=4))
    watch.ask(prompts(1, 10)[0], max_tokens=14, n=4)
    while not watch.reports or not watch.last.preempted:
        watch.step()
    assert watch.engine.abort("r1")
    watch.run()
    assert len(watch.finished) == 4
    assert idle(watch.engine)


def test_a_failed_step_gives_the_shared_tail_back():
    watch = Watch(fake_engine(block_size=4))
    watch.ask(prompts(1, 10)[0], max_tokens=5, n=3)
    watch.step()
    shared = {s.table for s in watch.state.running}
    watch.engine.runner.after_run = raising(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        watch.step()
    watch.check_integrity()
    assert {tuple(s.table.blocks) for s in watch.engine.scheduler.running} == shared
    watch.run()
    assert len(copies(watch)) == 2


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_a_rollback_whoever_was_preempted_in_the_step_that_failed(error):
    """Forks that copy shared tails, in pools where a sibling gives way, with a failure in each step in turn."""
    preempting = 0
    for num_blocks in range(5, 10):
        for fail_at in range(1, 12):
            watch = Watch(fake_engine(num_blocks=num_blocks, block_size=4, max_running=4))
            watch.ask(prompts(1, 6)[0], max_tokens=9, n=3)
            watch.ask(prompts(1, 3, seed=4)[0], max_tokens=12, priority=-1)
            for _ in range(fail_at):
                watch.step()
            before = watch.state.totals.preemptions
            watch.engine.runner.after_run = raising(error)
            try:
                watch.step()
            except KeyboardInterrupt:
                watch.check_integrity()
            preempting += watch.engine.recorder.totals["preemptions"] > before
            watch.run()
            assert {f.reason for f in watch.finished.values()} == {"length"}
            assert idle(watch.engine)
    assert preempting
