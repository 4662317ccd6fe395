"""Who is served: budgets, order, admission, bounded bypass, and that nobody waits for ever."""

from __future__ import annotations

import pytest

from mini_infer.cache.block_pool import BlockPool
from mini_infer.cache.prefix_cache import PrefixCache
from mini_infer.errors import UserError
from mini_infer.intake import ContextLengthError
from mini_infer.observe.events import Wait
from mini_infer.scheduler.continuous import MAX_BYPASS, ContinuousScheduler
from tests.support.fake import fake_engine, idle, prompts
from tests.support.watch import Watch


def planned(watch: Watch) -> dict[str, int]:
    """Tokens of each sequence in the last step."""
    return {s.seq_id: s.n_new for s in watch.last.sched}


# --- budgets ------------------------------------------------------------------------------------------------------


def test_the_budget_must_have_a_token_for_each_running_sequence():
    pool = BlockPool(4, 4)
    with pytest.raises(ValueError, match="below max_running"):
        ContinuousScheduler(pool, PrefixCache(pool), max_running=4, max_batch_tokens=3, max_chunk=1)


def test_chunks_are_capped_by_request_and_by_step():
    watch = Watch(fake_engine(max_batch_tokens=10, max_running=4, max_chunk=4))
    for prompt in prompts(3, 20):
        watch.ask(prompt)
    watch.step()
    assert planned(watch) == {"r1": 4, "r2": 4, "r3": 2}  # several partial prefills at once
    watch.step()
    assert planned(watch) == {"r1": 4, "r2": 4, "r3": 2}
    watch.run()


def test_every_running_chunk_advances_by_at_least_one_token():
    watch = Watch(fake_engine(max_batch_tokens=8, max_running=4, max_chunk=8))
    for prompt in prompts(3, 20):
        watch.ask(prompt)
        watch.step()
    assert planned(watch)["r1"] == 4  # its last tokens
    watch.step()
    assert planned(watch) == {"r1": 1, "r2": 7}
    watch.run()


def test_S19_a_long_prompt_delays_no_decode():
    """While 1,500 tokens are read, three streams get a token in every step, and no step is larger than the budget."""
    watch = Watch(fake_engine(num_blocks=200, block_size=16, context=2048, max_batch_tokens=64, max_chunk=32))
    streams = [watch.ask(prompt, max_tokens=80) for prompt in prompts(3, 5)]
    watch.step()
    (long,) = prompts(1, 1500, seed=9)
    watch.ask(long, max_tokens=2)
    steps = 0
    while "r4" not in watch.finished:
        watch.step()
        steps += 1
        assert {s: planned(watch).get(s) for s in streams} == dict.fromkeys(streams, 1)
        assert watch.last.budget.tokens <= 64
        assert planned(watch).get("r4", 0) <= 32
    assert steps == -(-1500 // 32) + 1
    watch.run()


def test_a_short_prompt_is_not_held_up_by_a_long_one():
    watch = Watch(fake_engine(num_blocks=100, max_batch_tokens=16, max_chunk=8))
    long, short = prompts(2, 200)
    watch.ask(long, max_tokens=1)
    watch.ask(short[:5], max_tokens=1)
    watch.step()
    assert watch.finished.keys() == {"r2"}
    watch.run()


# --- order --------------------------------------------------------------------------------------------------------


def test_lower_priority_numbers_go_first_then_earlier_arrivals():
    watch = Watch(fake_engine(max_running=1))
    for prompt, priority in zip(prompts(5, 3), (1, 0, 2, 0, 1), strict=True):
        watch.ask(prompt, max_tokens=2, priority=priority)
    watch.run()
    assert list(watch.finished) == ["r2", "r4", "r1", "r5", "r3"]


def test_a_request_starts_in_the_step_after_one_ends():
    watch = Watch(fake_engine(max_running=1))
    for prompt in prompts(2, 3):
        watch.ask(prompt, max_tokens=2)
    while "r1" not in watch.finished:
        watch.step()
    watch.step()
    assert planned(watch) == {"r2": 3}
    watch.run()


# --- admission ----------------------------------------------------------------------------------------------------


def test_a_request_is_admitted_only_with_room_for_its_whole_prompt():
    """A chunk at a time would fit, but the last of them might not."""
    watch = Watch(fake_engine(num_blocks=10, block_size=4, max_batch_tokens=8, max_running=2, max_chunk=4))
    a, b = prompts(2, 24)
    watch.ask(a, max_tokens=1)
    watch.ask(b, max_tokens=1)
    for _ in range(6):
        watch.step()
        assert planned(watch) == {"r1": 4}
    watch.step()
    assert planned(watch) == {"r2": 4}
    assert not watch.run().state.totals.preemptions


def test_the_watermark_keeps_an_admission_from_forcing_a_preemption():
    """Four blocks are free where the prompt needs four; one is left to the running sequence."""
    watch = Watch(fake_engine(num_blocks=8, block_size=4))
    a, b = prompts(2, 16)
    watch.ask(a, max_tokens=4)
    watch.ask(b, max_tokens=4)
    assert not watch.run().state.totals.preemptions


@pytest.mark.parametrize("n", [1, 2, 4])
def test_too_long_counts_the_answer_and_a_tail_block_for_each_fork(n):
    engine = fake_engine(num_blocks=6, block_size=4, context=500)
    watch = Watch(engine)
    room = (6 - (n - 1)) * 4
    (prompt,) = prompts(1, room)
    with pytest.raises(ContextLengthError, match=f"the prompt has {room} tokens.*KV cache is {room} tokens") as refused:
        watch.ask(prompt, n=n)
    assert (refused.value.prompt_tokens, refused.value.limit) == (room, room)
    watch.ask(prompt[:-1], n=n, max_tokens=30)
    watch.run()
    assert {f.reason for f in watch.finished.values()} == {"length"}
    assert idle(engine)


def test_too_long_for_the_context():
    watch = Watch(fake_engine(context=16))
    (prompt,) = prompts(1, 16)
    with pytest.raises(ContextLengthError, match="the context length is 16 tokens"):
        watch.ask(prompt)
    watch.ask(prompt[:15], max_tokens=5)
    watch.run()
    assert len(watch.answer("r1")) == 1


def test_more_choices_than_seats_are_refused_at_once():
    engine = fake_engine(max_running=3)
    with pytest.raises(UserError, match="n must be at most 3"):
        Watch(engine).ask([1], n=4)
    assert not engine.has_work
    assert engine.recorder.totals["requests"] == 0


def test_n_choices_wait_for_n_seats_and_for_their_tail_blocks():
    watch = Watch(fake_engine(num_blocks=9, block_size=4, max_running=4))
    a, b = prompts(2, 10)
    watch.ask(a, max_tokens=7)  # 3 blocks, then 4, then 5
    watch.ask(b, n=3, max_tokens=2)  # 3 blocks and 2 spare tails
    watch.step()
    assert planned(watch) == {"r1": 10, "r2/0": 10}
    watch.step()
    assert planned(watch) == {"r1": 1, "r2/0": 1, "r2/1": 1, "r2/2": 1}
    watch.run()
    watch = Watch(fake_engine(num_blocks=8, block_size=4, max_running=4))  # one block less
    watch.ask(a, max_tokens=7)
    watch.ask(b, n=3, max_tokens=2)
    watch.step()
    assert watch.state.sequences["r2/0"].wait == Wait("BLOCKS", need=3 + 2 + 1, have=5)
    watch.run()


# --- bypass -------------------------------------------------------------------------------------------------------


def test_a_head_that_does_not_fit_is_passed_eight_times_and_then_waited_for():
    watch = Watch(fake_engine(num_blocks=20, block_size=4, max_running=8, prefix_cache=False))
    first, big = prompts(2, 50)
    watch.ask(first, max_tokens=12)
    watch.step()
    watch.ask(big, max_tokens=1)
    small = [watch.ask(p, max_tokens=1) for p in prompts(12, 3, seed=20)]
    passed = []
    while "r1" not in watch.finished:
        watch.step()
        passed.append(len(watch.finished.keys() & set(small)))
    assert passed[:4] == [3, 6, 8, 8]  # in the first two steps the watermark lets no more in
    assert set(passed[4:]) == {8}
    assert watch.state.sequences[small[8]].wait == Wait("ORDER", behind="r2")
    watch.step()
    assert planned(watch).keys() >= {"r2"}
    watch.run()


def overtaken_by(watch: Watch, head: str) -> int:
    """How many that arrived after it were admitted before it."""
    order = [watch.number(a.seq_id) for r in watch.reports for a in r.admitted]
    return sum(number > watch.number(head) for number in order[: order.index(watch.number(head))])


@pytest.mark.parametrize("n", [1, 5])
def test_S08_a_big_request_and_small_ones_under_endless_arrivals(n):
    """The big one (by its blocks, or by its seats) gets in after eight others at most; small ones keep finishing."""
    watch = Watch(fake_engine(num_blocks=16, block_size=16, context=256, max_running=6))
    small = prompts(50, 20)
    big, count = "", 0
    for step in range(400):
        while len(watch.engine.committer.requests) < 9:  # always some that wait
            watch.ask([*small[count % 50], count % 7], max_tokens=5 + count * 7 % 19)
            count += 1
        if step == 30:
            (prompt,) = prompts(1, 150 if n == 1 else 40, seed=3)
            big = watch.ask(prompt, max_tokens=20, n=n)
        watch.step()
    assert watch.engine.is_finished(big), "starved"
    head = big if n == 1 else f"{big}/0"
    admitted_at = next(r.step for r in watch.reports for a in r.admitted if a.seq_id == head)
    assert 1 <= overtaken_by(watch, head) <= MAX_BYPASS
    assert admitted_at <= 30 + 60
    small_done = [r.step for r in watch.reports for f in r.finished if watch.number(f.seq_id) != watch.number(big)]
    assert min(sum(since < step <= since + 100 for step in small_done) for since in (100, 200, 300)) > 20
    watch.run()


def test_endless_arrivals_starve_nobody():
    """Two a step for 300 steps, more than can be served: who runs advances (`check_plan`), and all get in in turn."""
    watch = Watch(fake_engine(num_blocks=24, block_size=4, max_running=4, max_batch_tokens=16, max_chunk=8))
    pool = prompts(50, 24)
    for step in range(300):
        for i in range(2):
            length, most = (5 + 7 * step) % 24 + 1, (3 * step + i) % 11 + 1
            watch.ask(pool[(2 * step + i) % 50][:length], max_tokens=most)
        watch.step()
    order = [a.seq_id for r in watch.reports for a in r.admitted if a.first]
    assert len(order) > 150
    for place, seq_id in enumerate(order):
        ahead = watch.number(seq_id) - 1
        assert place <= ahead + MAX_BYPASS  # at most eight that came later went first
    assert max(len(r.sched) for r in watch.reports) == 4
