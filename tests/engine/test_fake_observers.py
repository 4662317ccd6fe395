"""Sinks: what they are told whenever they come, and that none of them can hurt a step. `Watch` folds and compares."""

from __future__ import annotations

import logging

import pytest

from mini_infer.observe.events import Control, decode_report, encode
from mini_infer.observe.state import decode_state, fold, fold_all
from tests.support.fake import fake_engine, idle, prompts, raising
from tests.support.watch import Mirror, Watch


class Fragile(Mirror):
    """Raises at its report number `at`; at 0 already at its snapshot."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

    def start(self, snapshot) -> None:
        super().start(snapshot)
        if self.at == 0:
            raise OSError("no space left on device")

    def emit(self, report) -> None:
        super().emit(report)
        if len(self.reports) == self.at:
            raise OSError("no space left on device")


def test_a_sink_that_comes_late_gets_a_snapshot_of_everything():
    watch = Watch(fake_engine(num_blocks=12, max_running=2))
    for i, prompt in enumerate(prompts(4, 9)):
        watch.ask(prompt, max_tokens=4 + 3 * i, n=1 + i % 2)
    for _ in range(6):
        watch.step()
    late = watch.add_mirror()
    assert late.state == watch.state  # at once, as nothing is pending
    assert late.state.running
    assert late.state.waiting
    assert late.state.finished
    watch.run()
    assert len(late.reports) == len(watch.reports) - 6


def test_a_sink_that_comes_while_news_are_pending_waits_for_their_report():
    watch = Watch(fake_engine())
    watch.ask([1, 2, 3])
    late = watch.add_mirror()
    assert late.state is None
    watch.step()
    assert late.state == watch.state
    assert late.reports == []
    watch.run()


def test_a_sink_that_comes_after_an_undone_step_does_not_see_its_moves_twice():
    watch = Watch(fake_engine(num_blocks=4, block_size=4))
    old, new = prompts(2, 8)
    watch.ask(old, max_tokens=1)
    watch.run()
    watch.ask(new, max_tokens=9)
    watch.step()
    assert watch.state.pool.free == 0
    watch.engine.runner.before_run = raising(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        watch.step()  # evicts a block for the first row after the prompt
    assert watch.engine.scheduler.pool.evictions == 1
    late = watch.add_mirror()
    watch.step()
    assert late.state == watch.state
    watch.run()


def test_the_first_sink_of_an_old_engine_needs_no_history():
    watch = Watch(fake_engine(num_blocks=12), lean=True)
    for prompt in prompts(5, 9):
        watch.ask(prompt)
    for _ in range(5):
        watch.step()
    assert watch.engine.flush() is None
    watch.lean = False
    late = watch.add_mirror()
    assert late.state.totals.requests == 5
    watch.run()


def test_nothing_is_noted_once_the_last_sink_left():
    watch = Watch(fake_engine())
    watch.ask([1, 2, 3], max_tokens=3)
    watch.step()
    watch.engine.detach(watch.mirrors.pop())
    report = watch.step()
    assert report.outputs
    assert (report.sched, report.blocks, report.pool, report.durations) == ((), (), None, None)
    assert watch.engine.scheduler.pool.moves is None
    watch.add_mirror()
    watch.run()


def test_leaving_and_coming_in_the_middle_of_news():
    watch = Watch(fake_engine())
    watch.ask([1, 2, 3])
    watch.engine.detach(watch.mirrors.pop())
    late = watch.add_mirror()
    watch.ask([4, 5])
    watch.step()
    assert late.state.totals.requests == 2
    watch.run()


@pytest.mark.parametrize("at", [0, 1, 4])
def test_a_sink_that_raises_is_detached_with_one_warning_and_the_step_stands(at, caplog):
    watch = Watch(fake_engine())
    fragile = Fragile(at)
    watch.ask([1, 2, 3], max_tokens=9)
    watch.flush()
    with caplog.at_level(logging.WARNING):
        watch.engine.attach(fragile)
        watch.run()
    assert [r.getMessage() for r in caplog.records] == [
        "an observer failed and was detached: OSError: no space left on device"
    ]
    assert len(fragile.reports) == at
    assert len(watch.answer("r1")) == 9


def test_a_sink_may_attach_another_and_leave():
    watch = Watch(fake_engine())

    class Usher(Mirror):
        def emit(self, report) -> None:
            super().emit(report)
            if len(self.reports) == 2:
                watch.add_mirror()
                watch.engine.detach(self)

    usher = Usher()
    watch.engine.attach(usher)
    watch.ask([1, 2, 3], max_tokens=6)
    watch.run()
    assert len(usher.reports) == 2
    assert len(watch.mirrors) == 2


def test_news_make_a_report_without_a_step():
    watch = Watch(fake_engine())
    watch.engine.set_paused(True)
    request_id = watch.ask([1, 2, 3])
    watch.flush()
    assert not watch.last.stepped
    assert watch.last.sched == ()
    assert watch.last.control == (Control("pause"),)
    assert [a.request_id for a in watch.last.arrived] == [request_id]
    watch.engine.abort(request_id)
    watch.engine.reset_prefix_cache()
    watch.flush()
    assert watch.last.aborted == (request_id,)
    assert watch.last.control == (Control("reset_cache"),)
    assert watch.engine.flush() is None
    assert [r.step for r in watch.reports] == [0, 0]
    assert watch.state.paused


def test_a_single_step_while_paused():
    watch = Watch(fake_engine())
    watch.ask([1, 2, 3], max_tokens=3)
    watch.engine.set_paused(True)
    watch.step()
    assert watch.state.paused
    assert len(watch.answer("r1")) == 1
    watch.engine.set_paused(False)
    watch.run()


def test_a_reset_cache_forgets_prefixes_but_not_who_runs():
    watch = Watch(fake_engine())
    prompt, other = prompts(2, 9)
    watch.ask(prompt, max_tokens=1)
    watch.run()
    watch.ask(other, max_tokens=12)
    watch.step()
    watch.engine.reset_prefix_cache()
    watch.flush()
    assert watch.state.blocks == {}
    assert watch.state.running
    assert watch.state.pool.cached == 0
    watch.ask(prompt)
    watch.run()
    assert watch.finished["r3"].usage.cached_tokens == 0


def test_reports_and_snapshots_survive_json():
    """What a trace file and a remote reader see folds to the very same state."""
    watch = Watch(fake_engine(num_blocks=9, max_running=3, draft="model"))
    first = watch.engine.snapshot()
    for i, prompt in enumerate(prompts(6, 9)):
        watch.ask(prompt, max_tokens=9, n=1 + i % 3)
    watch.run()
    assert watch.state.totals.preemptions
    assert decode_state(encode(watch.state)) == watch.state
    assert fold_all(decode_state(encode(first)), map(decode_report, map(encode, watch.reports))) == watch.state


def test_states_are_values_that_no_report_changes():
    watch = Watch(fake_engine(num_blocks=12, max_running=3))
    for prompt in prompts(4, 9):
        watch.ask(prompt, n=2)
    states, copies = [watch.state], [encode(watch.state)]
    while watch.engine.has_work:
        watch.step()
        states.append(watch.state)
        copies.append(encode(watch.state))
    assert [encode(s) for s in states] == copies
    assert fold(states[3], watch.reports[3]) == states[4]
    assert idle(watch.engine)
