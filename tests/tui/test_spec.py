"""The speculation view: rounds, the rule at work, acceptance, and sentences where there are no drafts."""

from __future__ import annotations

import asyncio
from typing import get_args

import pytest
from msgspec.structs import replace

from mini_infer.observe.events import KReason, Round
from tests.tui.sizes import check_every_size
from tests.tui.support import EngineRun, ViewApp, tiny_run, words
from tests.tui.test_prefix import odd
from tui.glyphs import ASCII
from tui.messages import CursorMoved, ViewOpened
from tui.model.explain import K_WORDS
from tui.model.focus import focus, why_k
from tui.model.records import KRecord
from tui.model.view_state import Meta
from tui.views.spec import SpecView
from tui.widgets.acceptance import Acceptance, positions
from tui.widgets.panel import plain
from tui.widgets.round_detail import RoundDetail
from tui.widgets.rounds import RoundList, tokens_of


def sampled(view, **fields):
    """The view with its newest round made a sampled one."""
    record = view.past.request(view.selected)
    made = Round(view.selected, (1, 2, 3, 4), 5, 3, 5, False, (0.91, 0.77, 0.58, 0.12), (0.88, 0.69, 0.61, 0.55),
                 (0.42, 0.08, 0.33, 0.61))  # fmt: skip
    record.rounds[-1] = record.rounds[-1]._replace(round=replace(made, **fields))
    return view


def test_rounds_are_those_of_the_reports() -> None:
    run = tiny_run()
    for seq_id in run.ledger.requests:
        for step in (12, 30, run.history.newest):
            view = run.view(step=step, selected=seq_id)
            made = [(r.step, m) for r in run.reports if r.seq <= view.state.seq for m in r.spec if m.seq_id == seq_id]
            lines = plain(RoundList().draw(view, 120, 100)).splitlines()[1:]
            if not made:
                continue
            assert len(lines) == len(made)
            for line, (at, round_) in zip(lines, made, strict=True):
                assert line.replace("▸", " ").split()[0] == str(at)
                assert line.split()[-1] == str(tokens_of(round_))
                assert line.count("✓") == round_.kept
                assert line.count("✗") == len(round_.draft) - round_.kept
                edges = "".join(f"|{view.piece(t)}" for t in round_.draft) + "|"
                assert edges in line
                if round_.token is not None:
                    assert f"{'*' if round_.bonus else 'x'} |{view.piece(round_.token)}|" in line
            assert lines[-1].startswith("▸")


def test_a_sampled_round_shows_the_rule_and_its_numbers() -> None:
    run = tiny_run(steps=14)
    view = sampled(run.view(selected=next(iter(run.ledger.requests))))
    text = plain(RoundDetail().draw(view, 90, 9))
    lines = text.splitlines()
    assert lines[0].split() == ["token", "p(target)", "q(draft)", "min(1,p/q)", "u", "verdict"]
    assert lines[1].split()[-6:] == ["0.910", "0.880", "1.00", "0.420", "✓", "kept"]
    assert lines[3].split()[-6:] == ["0.580", "0.610", "0.95", "0.330", "✓", "kept"]
    assert "0.120    0.550       0.22  0.610  ✗ redrawn, max(0,p-q)" in lines[4]
    assert "never judged" in lines[5]
    assert "x the target's own" in lines[6]
    assert RoundDetail().heading(view)[1] == "kept 3 of 5"
    unknown = sampled(view, p=None, q=None, u=None)
    assert "p(target)" not in plain(RoundDetail().draw(unknown, 90, 9))
    certain = sampled(view, q=(0.0, 0.0, 1.0, 1.0))
    assert "1.00" in plain(RoundDetail().draw(certain, 90, 9))
    over = sampled(view, token=None)
    assert "ended before" in plain(RoundDetail().draw(over, 90, 9))
    assert "(ended)" in plain(RoundList().draw(over, 90, 9))


def test_a_greedy_round_shows_the_gap() -> None:
    run = tiny_run(steps=14)
    view = sampled(
        run.view(selected=next(iter(run.ledger.requests))), p=None, q=None, u=None, gap=(0.0, 0.0, 0.0, 2.345)
    )
    text = plain(RoundDetail().draw(view, 78, 9))
    assert "gap to best logit" in text
    assert "2.35" in text or "2.34" in text
    assert "rejected, not the best" in text


def test_figures_come_from_all_rounds_and_say_their_base() -> None:
    run = tiny_run()
    checked = 0
    for seq_id in run.ledger.requests:
        view = run.view(selected=seq_id)
        rounds = [m for r in run.reports for m in r.spec if m.seq_id == seq_id]
        if not rounds:
            continue
        checked += 1
        finished = view.past.request(seq_id).finished
        text = plain(Acceptance().draw(view, 100, 10))
        accepted, drafted = sum(m.kept for m in rounds), sum(m.drafted for m in rounds)
        assert f"({drafted - accepted} of {drafted})" in text
        tokens = sum(tokens_of(m) for m in rounds)
        given = view.past.rounds(seq_id)[-1].tokens
        assert given <= tokens
        assert f"kept per round {given / len(rounds):.1f} of {max(m.drafted for m in rounds) + 1}" in text
        assert f"all {len(rounds)} rounds" in Acceptance().heading(view)[0]
        for i, (kept, judged) in enumerate(positions(view.past.rounds(seq_id)[-1])):
            assert kept == sum(m.kept > i for m in rounds)
            assert judged == sum(len(m.draft) > i for m in rounds)
            assert f" {kept}/{judged}" in text
        if finished is not None:
            assert f"1 target step = {len(view.past.output(seq_id)) / finished.usage.steps:.1f} tok" in text
    assert checked >= 3


@pytest.mark.parametrize("why", get_args(KReason))
def test_every_reason_for_no_drafts_is_in_words(why) -> None:
    run = tiny_run(steps=14)
    seq_id = run.history.live.state.running[0].seq_id
    run.ledger.requests[seq_id].k.append(KRecord(run.history.live.state.seq, 0, why))
    view = run.view(selected=seq_id)
    assert K_WORDS[why] in plain(Acceptance().draw(view, 120, 10))
    assert why_k(view, seq_id)[0] == 0
    run.ledger.requests[seq_id].rounds.clear()
    said = " ".join(plain(RoundList().draw(view, 60, 8)).split())
    assert K_WORDS[why] in said
    if why == "FAILED":
        assert "goes on without drafts" in said


def test_where_drafting_is_off_a_sentence_says_so() -> None:
    run = EngineRun(num_blocks=16, block_size=4)
    run.ask(words("the engine"), 4)
    view = run.step(2).view()
    for panel in (RoundList(), Acceptance()):
        assert "This engine has no drafter" in " ".join(plain(panel.draw(view, 70, 6)).split())
    drafts = tiny_run(steps=14)
    off = drafts.view(meta=Meta(k=0), selected=next(iter(drafts.ledger.requests)))
    assert "switched off by hand" in plain(Acceptance().draw(off, 90, 8))
    assert focus(EngineRun(draft="model", k=2).view()) is None


@pytest.mark.parametrize("panel", [RoundList, RoundDetail, Acceptance])
def test_panels_hold_at_every_size_with_any_text(panel) -> None:
    run = tiny_run()
    first = next(iter(run.ledger.requests))
    views = [EngineRun().view(), odd(run.view(step=14)), odd(run.view(step=14, glyphs=ASCII, selected="gone"))]
    views.append(odd(sampled(run.view(selected=first))))
    views.append(odd(sampled(run.view(selected=first), p=None, q=None, u=None, gap=(1e9,))))
    for view in views:
        check_every_size(panel, view, ours=False)
    check_every_size(panel, run.view(step=14, glyphs=ASCII, selected=first))


def test_every_key_changes_the_screen_or_says_something() -> None:
    async def main() -> None:
        run = tiny_run()
        first = next(iter(run.ledger.requests))
        app = ViewApp(SpecView())
        async with app.run_test(size=(80, 24)) as pilot:
            view = run.view(step=12, selected=first)
            app.show(view)
            await pilot.pause()
            rounds, detail = app.query_one(RoundList), app.query_one(RoundDetail)
            rounds.focus()
            assert "step 12" in detail.heading(view)[0]
            await pilot.press("up")
            await pilot.pause()
            assert "step 11" in detail.heading(view)[0]
            assert "in step 11" in app.shown.as_text()
            app.show(run.view(step=14, selected=first))  # whoever looks at a round keeps it in sight
            await pilot.pause()
            assert "in step 11" in app.shown.as_text()
            await pilot.press("enter")
            await pilot.pause()
            assert [type(m) for m in app.heard] == [CursorMoved, ViewOpened]
            assert (app.heard[0].step, app.heard[1].name) == (11, "chat")
            await pilot.press("pageup")
            await pilot.pause()
            assert "in step 11" not in app.shown.as_text()
            await pilot.press("pagedown", "down")
            await pilot.pause()
            newest = rounds.items(rounds.view)[-1].step
            assert f"in step {newest}" in app.shown.as_text()
            await pilot.click(rounds, offset=(12, 3))
            await pilot.pause()
            assert rounds.current() is not rounds.items(rounds.view)[-1]
            for size in ((1, 1), (20, 5), (300, 100), (3, 50), (80, 24)):
                await pilot.resize_terminal(*size)
                await pilot.pause()
            assert "rounds of A" in app.shown.as_text()

    asyncio.run(main())
