"""Why a request waits: each reason of the closed set, in a scenario where it is the true one."""

from __future__ import annotations

from mini_infer.observe.events import Wait
from mini_infer.scheduler.waiting import WaitingQueue
from tests.support.fake import fake_engine, prompts
from tests.support.watch import Watch


def reasons(watch: Watch) -> dict[str, Wait | None]:
    """As an observer sees them."""
    return {s.seq_id: s.wait for s in watch.state.waiting}


def test_blocks_need_and_have_are_counted_with_the_watermark():
    watch = Watch(fake_engine(num_blocks=8, block_size=4, prefix_cache=False))
    a, b = prompts(2, 16)
    watch.ask(a, max_tokens=9)  # 4 of 8 blocks, and a fifth from its second token on
    watch.ask(b)
    watch.step()
    assert reasons(watch) == {"r2": Wait("BLOCKS", need=4 + 1, have=4)}  # a block is left to each running sequence
    watch.step()
    assert reasons(watch) == {"r2": Wait("BLOCKS", need=4 + 1, have=3)}
    watch.run()


def test_blocks_need_leaves_out_what_is_cached_and_have_what_the_hit_would_take():
    watch = Watch(fake_engine(num_blocks=8, block_size=4))
    shared, other = prompts(2, 17)
    watch.ask(shared, max_tokens=1)
    watch.run()  # leaves 4 cached blocks
    watch.ask(other, max_tokens=9)  # takes the 4 others and the oldest cached one: the last of the chain
    watch.ask(shared)
    watch.step()
    # 5 blocks less 3 hits, and the watermark; 3 are free, but they are the very hits
    assert reasons(watch) == {"r3": Wait("BLOCKS", need=5 - 3 + 1, have=0)}
    watch.run()


def test_tokens_where_the_budget_of_the_step_is_given_away():
    watch = Watch(fake_engine(max_running=4, max_batch_tokens=8, max_chunk=8))
    for prompt in prompts(3, 8):
        watch.ask(prompt)
    watch.step()
    assert reasons(watch) == {"r2": Wait("TOKENS", need=1, have=0), "r3": Wait("ORDER", behind="r2")}
    watch.run()


def test_seqs_where_all_seats_are_taken():
    watch = Watch(fake_engine(max_running=2))
    for prompt in prompts(4, 3):
        watch.ask(prompt)
    watch.step()
    assert reasons(watch) == {"r3": Wait("SEQS", need=1, have=0), "r4": Wait("SEQS", need=1, have=0)}
    watch.run()


def test_seqs_counts_a_seat_for_each_choice():
    watch = Watch(fake_engine(max_running=4))
    a, b = prompts(2, 3)
    watch.ask(a, n=2)
    watch.ask(b, n=3)
    watch.step()
    assert reasons(watch) == {"r2/0": Wait("SEQS", need=3, have=2)}
    watch.run()


def test_order_names_the_one_directly_ahead():
    watch = Watch(fake_engine(num_blocks=8, block_size=4, max_running=2))
    for prompt in prompts(14, 4):
        watch.ask(prompt)
    watch.step()
    seen = reasons(watch)
    assert [seen[f"r{i}"].kind for i in range(3, 12)] == ["SEQS"] * 9  # as far as a step looks
    assert {i: seen[f"r{i}"] for i in range(12, 15)} == {i: Wait("ORDER", behind=f"r{i - 1}") for i in range(12, 15)}
    watch.run()


def test_order_follows_when_the_one_ahead_leaves_or_another_comes_between():
    watch = Watch(fake_engine(max_running=1, max_batch_tokens=1, max_chunk=1))
    for prompt in prompts(4, 3):
        watch.ask(prompt)
    watch.step()
    assert reasons(watch)["r4"] == Wait("ORDER", behind="r3")
    watch.engine.abort("r3")
    watch.flush()
    assert reasons(watch)["r4"] == Wait("ORDER", behind="r2")
    watch.ask([1], priority=-1)
    watch.flush()
    assert reasons(watch)["r5"] is None  # leads the queue: the next step looks at it
    watch.ask([2], priority=-1)
    watch.flush()
    assert reasons(watch)["r6"] == Wait("ORDER", behind="r5")
    watch.step()
    assert reasons(watch)["r2"] == Wait("ORDER", behind="r6")
    watch.run()


def test_cooldown_in_a_step_that_preempted():
    watch = Watch(fake_engine(num_blocks=8, block_size=4, prefix_cache=False))
    for prompt in prompts(2, 11):  # 3 blocks each, and 4 from the second token on
        watch.ask(prompt, max_tokens=9)
    while not watch.reports or not watch.last.preempted:
        watch.step()
    assert [p.seq_id for p in watch.last.preempted] == ["r2"]
    assert reasons(watch) == {"r2": Wait("COOLDOWN")}
    watch.step()
    assert reasons(watch)["r2"].kind == "BLOCKS"
    watch.run()


def test_paused_until_resumed_and_the_true_reason_after_a_single_step():
    watch = Watch(fake_engine(max_running=1))
    for prompt in prompts(3, 3):
        watch.ask(prompt)
    watch.step()
    watch.engine.set_paused(True)
    watch.ask([1])
    watch.flush()
    assert reasons(watch) == dict.fromkeys(("r2", "r3", "r4"), Wait("PAUSED"))
    assert watch.state.paused
    watch.step()
    assert {w.kind for w in reasons(watch).values()} == {"SEQS"}
    watch.ask([1])
    watch.engine.set_paused(False)
    watch.flush()
    assert reasons(watch)["r5"] == Wait("ORDER", behind="r4")
    assert not watch.state.paused
    watch.run()


def test_reports_carry_only_reasons_that_changed_and_the_count():
    watch = Watch(fake_engine(max_running=1))
    for prompt in prompts(4, 3):
        watch.ask(prompt)
    watch.step()
    assert {w.seq_id for w in watch.last.waiting} == {"r2", "r3", "r4"}
    watch.step()
    assert watch.last.waiting == ()
    assert watch.last.num_waiting == 3
    watch.run()


def test_an_admitted_sequence_has_no_reason():
    watch = Watch(fake_engine(max_running=1))
    for prompt in prompts(2, 3):
        watch.ask(prompt, max_tokens=2)
    watch.step()
    while watch.state.waiting:
        watch.step()
    assert watch.state.sequences["r2"].wait is None
    watch.run()


def test_nothing_is_noted_while_nobody_listens():
    queue = WaitingQueue()
    assert queue.changed is None
    watch = Watch(fake_engine(max_running=1), lean=True)
    for prompt in prompts(3, 3):
        watch.ask(prompt)
    watch.step()
    assert watch.engine.scheduler.queue.changed is None
    assert watch.engine.scheduler.pool.moves is None
    watch.run()
