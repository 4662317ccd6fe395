"""History, ledger, lookback and cursor: what the playground knows, at any step."""

from __future__ import annotations

import pytest

from mini_infer.observe.state import fold_all
from tests.tui.support import EngineRun, tiny_run, words
from tui.model import history as history_module
from tui.model.cursor import Cursor, Mode, go, move, select_next
from tui.model.history import History
from tui.model.lookback import Lookback


@pytest.fixture(scope="module")
def run() -> EngineRun:
    return tiny_run()


def test_the_state_after_any_step_is_the_fold_up_to_it(run: EngineRun) -> None:
    for step in (0, 1, 5, 20, run.history.newest - 1, run.history.newest, 7):
        reports = [r for r in run.reports if r.step <= step]
        moment = run.history.at(step)
        assert moment.state == fold_all(run.snapshot, reports)
        stepped = [r for r in reports if r.stepped and r.step == step]
        assert moment.report == (stepped[-1] if stepped else None)


def test_a_gap_asks_for_a_snapshot_and_goes_on_from_it(run: EngineRun) -> None:
    history = History(run.snapshot)
    assert history.add(run.reports[0])
    assert history.add(run.reports[0])  # an old one is nothing new
    assert not history.add(run.reports[2])
    assert history.needs_snapshot
    assert not history.add(run.reports[1])  # nothing until the snapshot
    later = fold_all(run.snapshot, run.reports[:10])
    history.restart(later)
    assert history.add(run.reports[10])
    assert history.live.state == fold_all(run.snapshot, run.reports[:11])
    assert history.oldest == later.step


def test_history_is_bounded_in_steps_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_module, "KEPT_STEPS", 40)
    monkeypatch.setattr(history_module, "KEYFRAME_STEPS", 8)
    run = tiny_run()
    history = run.history
    assert history.newest > 60
    assert history.newest - history.oldest == 40
    assert len(history._reports) <= 40 + 8 + 40
    assert history.at(0) == history.at(history.oldest)
    monkeypatch.setattr(history_module, "KEPT_BYTES", 20_000)
    small = History(run.snapshot)
    for report in run.reports:
        small.add(report)
    assert small.size <= 20_000 + 20_000  # never less than from one keyframe to the next
    assert small.oldest > history.oldest
    assert small.at(small.oldest).state == fold_all(run.snapshot, [r for r in run.reports if r.step <= small.oldest])


def test_marks_say_what_each_step_did(run: EngineRun) -> None:
    at = run.view(step=30).past
    columns = at.columns(30)
    assert [c.step for c in columns] == list(range(1, 31))
    scheduled = {(s.seq_id, r.step) for r in run.reports for s in r.sched}
    for record in at.requests:
        for column in columns:
            mark = at.mark(record.seq_id, column)
            alone = ((record.seq_id, column.step) in scheduled) == (mark in "PD0123456789F")
            assert alone or mark == "A", (record.seq_id, column.step, mark)
    assert any(at.mark("r1", c) == "P" for c in columns)
    preempted = {(p.seq_id, r.step) for r in run.reports for p in r.preempted}
    last = run.view().past
    every = last.columns(1000)
    assert preempted == {(r.seq_id, c.step) for r in last.requests for c in every if last.mark(r.seq_id, c) == "!"}
    assert preempted, "the story has a preemption"


def test_an_abort_between_steps_is_marked_in_the_step_before_it(run: EngineRun) -> None:
    last = run.view().past
    marks = {last.mark("r7", c) for c in last.columns(1000)}
    assert "A" in marks


def test_every_output_token_has_its_origin(run: EngineRun) -> None:
    for step in (10, 25, run.history.newest):
        view = run.view(step=step)
        for seq in view.state.sequences.values():
            origins = view.past.origins(seq.seq_id)
            assert len(origins) == len(seq.output)
            assert tuple(view.past.output(seq.seq_id)) == seq.output
            assert view.past.text(seq.seq_id) == seq.text
    last = run.view().past
    accepted = sum(o.source == "draft" for r in last.requests for o in r.origins)
    ended_early = sum(r.kept - len([1 for x in r.draft[: r.kept]]) for rep in run.reports for r in rep.spec)
    assert accepted == run.history.live.state.totals.accepted - ended_early
    assert {o.source for r in last.requests for o in r.origins} >= {"plain", "draft", "own"}


def test_rounds_add_up(run: EngineRun) -> None:
    rounds = [last[-1] for r in run.view().past.requests if (last := run.view().past.rounds(r.seq_id))]
    totals = run.history.live.state.totals
    assert sum(r.rounds for r in rounds) == totals.rounds
    assert sum(r.accepted for r in rounds) == totals.accepted == sum(sum(r.accepted_at) for r in rounds)
    for r in run.view().past.requests:
        usage = r.finished.usage if r.finished else None
        if usage and r.rounds:
            assert r.rounds[-1].accepted_at == usage.accepted_by_position
            assert r.rounds[-1].judged_at == usage.judged_by_position


def test_the_past_never_knows_the_future(run: EngineRun) -> None:
    """A lookback from the end equals the one that was there at the time."""
    early = tiny_run(steps=20)
    then, now = Lookback(early.ledger, early.history.live.state.seq), run.view(step=20).past
    assert then.seq == now.seq
    assert then.events(50) == now.events(50)
    assert then.columns(50) == now.columns(50)
    assert then.ttft == now.ttft
    assert then.tokens_per_second() == now.tokens_per_second()
    for record in then.requests:
        i = record.seq_id
        assert then.origins(i) == now.origins(i)
        assert then.rounds(i) == now.rounds(i)
        assert then.k(i) == now.k(i)
        assert then.is_ended(i) == now.is_ended(i)
    for block in range(24):
        assert then.block(block) == now.block(block)


def test_letters_follow_the_order_of_arrival_and_are_never_shared_by_live_sequences() -> None:
    run = EngineRun(num_blocks=64, max_running=40, max_batch_tokens=64)
    for i in range(40):
        run.ask([i], 30)
    run.step(2)
    letters = [run.view().letter(s) for s in run.view().state.sequences]
    assert "".join(letters[:26]) == "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    assert len(set(letters)) == 40


def test_a_block_knows_who_took_it_and_its_hits(run: EngineRun) -> None:
    first = next(m for r in run.reports for m in r.blocks if m.op == "alloc")
    report = next(r for r in run.reports if first in r.blocks)
    life = run.view(step=report.step).past.block(first.block)
    assert (life.alloc_step, life.alloc_by, life.hits) == (report.step, first.seq_id, 0)
    shared = next(r for r in run.reports for m in r.blocks if m.op == "share" and m.block == first.block)
    life = run.view(step=shared.step).past.block(first.block)
    assert life.hits >= 1
    assert life.last_hit == shared.step


def test_events_tell_what_happened_newest_first(run: EngineRun) -> None:
    texts = [e.text for e in run.view().past.events(10_000)]
    for part in ("A arrived", "A admitted: 0 of 13 tok cached", "preempted", "G aborted", "finished (length)"):
        assert any(part in t for t in texts), part
    steps = [e.step for e in run.view().past.events(100)]
    assert steps == sorted(steps, reverse=True)


def test_cursor_moves_within_what_is_kept() -> None:
    start = Cursor()
    back = move(start, -3, oldest=10, newest=50)
    assert back.step == 47
    assert move(back, -100, 10, 50).step == 10
    assert move(back, 3, 10, 50).step is None
    assert go(back, None, 10, 50).step is None
    assert select_next(start, ["a", "b"]).selected == "a"
    assert select_next(Cursor(selected="b"), ["a", "b"]).selected == "a"
    assert select_next(Cursor(selected="a"), ["a", "b"], -1).selected == "b"
    assert select_next(Cursor(selected="x"), []).selected is None


def test_the_three_modes() -> None:
    run = tiny_run(steps=20)
    assert run.view().mode is Mode.LIVE
    assert (run.view(step=12).mode, run.view(step=12).behind) == (Mode.HISTORY, 8)
    run.do(lambda engine: engine.set_paused(True))
    assert run.view().mode is Mode.PAUSED


def test_a_late_observer_says_so_for_the_tokens_it_missed() -> None:
    run = tiny_run(steps=20)
    run.ledger.restart(run.history.live.state)
    run.step(1)
    late = EngineRun(run.engine)
    seq = next(iter(late.snapshot.running))
    assert {o.source for o in late.view().past.origins(seq.seq_id)} == {"unknown"}


def test_titles_are_the_last_words_of_a_person() -> None:
    run = EngineRun()
    request = run.ask(words("why is it"), 4)
    run.step()
    assert run.view().title(request) == "why is it"
    assert run.view().decode([*words("why is"), 3]) == " why is<3>"  # a text that never came
