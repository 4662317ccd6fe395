"""When blocks run out: who gives way, what stays of it, and where an answer ends for want of blocks."""

from __future__ import annotations

import pytest

from tests.support.fake import fake_answer, fake_engine, idle, prompts
from tests.support.watch import Watch


def preempted(watch: Watch) -> list[str]:
    return [p.seq_id for r in watch.reports for p in r.preempted]


def test_the_newest_gives_way():
    watch = Watch(fake_engine(num_blocks=12, block_size=4, prefix_cache=False))
    for prompt in prompts(3, 8):
        watch.ask(prompt, max_tokens=20)
    while not preempted(watch):
        watch.step()
    assert preempted(watch) == ["r3"]
    watch.run()


def test_the_lowest_priority_gives_way_before_the_newest():
    watch = Watch(fake_engine(num_blocks=12, block_size=4, prefix_cache=False))
    for prompt, priority in zip(prompts(3, 8), (0, 1, 0), strict=True):
        watch.ask(prompt, max_tokens=20, priority=priority)
    while not preempted(watch):
        watch.step()
    assert preempted(watch) == ["r2"]
    watch.run()


def test_the_last_in_order_gives_way_itself():
    watch = Watch(fake_engine(num_blocks=8, block_size=4, prefix_cache=False))
    a, b = prompts(2, 17)
    watch.ask(a[:5], max_tokens=9)  # takes its third block, the last free one,
    watch.ask(b, max_tokens=9)  # in the very step in which this one needs its sixth
    while not preempted(watch):
        watch.step()
    (record,) = watch.last.preempted
    assert (record.seq_id, record.cause) == ("r2", "r2")
    watch.run()


def test_the_record_says_what_was_lost_and_the_state_beside_the_reason():
    watch = Watch(fake_engine(num_blocks=8, block_size=4, prefix_cache=False))
    for prompt in prompts(2, 11):
        watch.ask(prompt, max_tokens=9)
    while not preempted(watch):
        watch.step()
    (record,) = watch.last.preempted
    assert (record.seq_id, record.lost, record.freed, record.cause) == ("r2", 16, 4, "r1")
    state = watch.state.sequences["r2"]
    assert (state.running, state.lost, state.num_computed, state.preemptions, state.table) == (False, 16, 0, 1, ())
    assert len(state.output) == 6  # nothing that was answered is lost
    watch.run()


def test_its_blocks_stay_hashed_so_that_resuming_is_mostly_a_hit():
    watch = Watch(fake_engine(num_blocks=10, block_size=4))
    a, b = prompts(2, 15)
    watch.ask(a, max_tokens=10)
    watch.ask(b, max_tokens=10)
    watch.run()
    assert preempted(watch) == ["r2"]
    again = next(a for r in watch.reports for a in r.admitted if not a.first)
    lost = next(p.lost for r in watch.reports for p in r.preempted)
    assert (lost, again.cached) == (20, 16)  # one block was reused in the meantime
    assert watch.finished["r2"].usage.recomputed_tokens == 4


def test_the_preempted_keep_their_arrival_order():
    watch = Watch(fake_engine(num_blocks=12, block_size=4, max_running=3, prefix_cache=False))
    for prompt in prompts(4, 8):
        watch.ask(prompt, max_tokens=14)
    watch.run()
    assert preempted(watch) == ["r3"]
    assert [a.seq_id for r in watch.reports for a in r.admitted] == ["r1", "r2", "r3", "r3", "r4"]


def test_no_admission_in_a_step_that_preempted():
    watch = Watch(fake_engine(num_blocks=10, block_size=4, max_running=4, prefix_cache=False))
    for prompt in prompts(6, 8):
        watch.ask(prompt, max_tokens=14)
    watch.run()  # `check_plan` holds it against every step
    assert len(preempted(watch)) >= 2


@pytest.mark.parametrize("size", [1, 4, 16])
@pytest.mark.parametrize("num_blocks", [2, 5])
def test_alone_without_a_block_it_ends_with_length_when_the_pool_is_full(num_blocks, size):
    """The last token needs no row of its own: one more than the pool has rows."""
    watch = Watch(fake_engine(num_blocks=num_blocks, block_size=size))
    watch.ask([1], max_tokens=500)
    watch.run()
    rows = num_blocks * size
    assert watch.finished["r1"].reason == "length"
    assert watch.answer("r1") == fake_answer([1], rows)  # prompt and answer: rows + 1


def test_the_last_one_running_gets_the_whole_pool_whoever_waits():
    watch = Watch(fake_engine(num_blocks=6, block_size=4))
    for prompt in prompts(3, 7):
        watch.ask(prompt, max_tokens=400)
    watch.run()
    assert {len(watch.answer(s)) for s in watch.finished} == {6 * 4 + 1 - 7}
    assert preempted(watch)


def test_forks_that_outgrow_the_pool_end_where_each_would_alone():
    watch = Watch(fake_engine(num_blocks=8, block_size=4, max_running=3))
    watch.ask(prompts(1, 10)[0], max_tokens=400, n=3)
    watch.run()
    assert {len(watch.answer(f"r1/{c}")) for c in range(3)} == {8 * 4 + 1 - 10}
    assert set(preempted(watch)) == {"r1/1", "r1/2"}


def test_R12_eight_requests_in_a_tiny_pool_answer_as_each_alone():
    watch = Watch(fake_engine(num_blocks=14, block_size=4, max_running=8, max_batch_tokens=16, max_chunk=8))
    for i, prompt in enumerate(prompts(8, 12)):
        watch.ask(prompt, max_tokens=20 + i)
    watch.run()
    assert watch.state.totals.preemptions >= 5
    assert {f.reason for f in watch.finished.values()} == {"length"}


def test_S10_recomputed_tokens_are_neither_prompt_nor_output():
    def usages(num_blocks: int) -> dict[str, tuple[int, int]]:
        watch = Watch(fake_engine(num_blocks=num_blocks, block_size=4, max_running=8))
        for i, prompt in enumerate(prompts(8, 12)):
            watch.ask(prompt, max_tokens=12 + i)
        watch.run()
        assert bool(watch.state.totals.preemptions) is (num_blocks < 64)
        for f in watch.finished.values():
            assert f.usage.cached_tokens <= f.usage.prompt_tokens
        totals = watch.state.totals
        assert totals.prompt_tokens == 8 * 12
        assert totals.output_tokens == sum(12 + i for i in range(8))
        computed = totals.prompt_tokens - totals.cached_tokens + totals.recomputed_tokens
        assert totals.computed_tokens == computed + totals.output_tokens - 8  # the last token of each has no row
        return {s: (f.usage.prompt_tokens, f.usage.completion_tokens) for s, f in watch.finished.items()}

    assert usages(14) == usages(64)


def test_an_abort_of_the_preempted_leaves_nothing():
    watch = Watch(fake_engine(num_blocks=8, block_size=4))
    for prompt in prompts(2, 11):
        watch.ask(prompt, max_tokens=9)
    while not preempted(watch):
        watch.step()
    watch.engine.abort("r2")
    watch.run()
    assert watch.finished["r2"].reason == "abort"
    assert watch.finished["r2"].usage.preemptions == 1
    assert idle(watch.engine)
