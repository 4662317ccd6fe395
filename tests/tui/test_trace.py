"""The trace view: events, filtered and found; the times of phases and steps."""

from __future__ import annotations

import asyncio

import pytest

from tests.tui.sizes import check_every_size
from tests.tui.support import DURATIONS, EngineRun, ViewApp, tiny_run
from tests.tui.test_prefix import odd
from tui.glyphs import ASCII
from tui.messages import CursorMoved, RequestSelected
from tui.views.trace import TraceView
from tui.widgets.event_log import FILTERS, EventLog
from tui.widgets.find_bar import FindBar
from tui.widgets.panel import Target, plain
from tui.widgets.phase_times import PHASES, PhaseTimes
from tui.widgets.step_bars import StepBars


def test_events_are_all_there_newest_first() -> None:
    run = tiny_run()
    view = run.view()
    drawn = plain(EventLog().draw(view, 150, 5_000)).splitlines()
    events = view.past.events(10_000)
    assert len(drawn) == len(events)
    for line, event in zip(drawn, events, strict=True):
        assert line.split()[0] == str(event.step)
        assert event.text in line
    steps = [int(line.split()[0]) for line in drawn]
    assert steps == sorted(steps, reverse=True)
    assert sum(" preempted:" in line for line in drawn) == view.state.totals.preemptions
    past = run.view(step=12)
    assert max(int(line.split()[0]) for line in plain(EventLog().draw(past, 150, 5_000)).splitlines()) == 12


def test_filters_keep_their_kinds_and_find_finds() -> None:
    run = tiny_run()
    first = next(iter(run.ledger.requests))
    view = run.view(selected=first)
    log = EventLog()
    everything = len(log.items(view))
    for name in FILTERS:
        assert log.filter == name
        kinds = {e.kind for e in log.items(view)}
        assert kinds
        if name != "all":
            assert kinds <= FILTERS[name]
            assert name in log.heading(view)[0]
        log.next_filter()
    assert log.filter == "all"
    log.toggle_selected()
    assert {e.seq_id for e in log.items(view)} == {first}
    log.toggle_selected()
    log.search("PREEMPTED")
    assert 0 < len(log.items(view)) < everything
    log.search("[no such text]")
    assert plain(log.draw(view, 60, 5)) == "nothing like that happened"
    assert "0 kept" in log.heading(view)[1]


def test_phases_are_those_of_the_reports() -> None:
    run = tiny_run()
    view = run.view(step=40)
    text = plain(PhaseTimes().draw(view, 90, 10))
    for line, name in zip(text.splitlines()[1:], PHASES, strict=False):
        ms = getattr(DURATIONS, name)
        assert line.split()[1] == name
        assert line.split()[2] == line.split()[4] == f"{ms:.1f}"
        assert line.endswith(f"{ms / 18.0:.0%}")
    assert "step 40" in text
    assert "mean of 40" in text
    assert "18.0 ms" in text
    assert "top 18 ms" in text
    rate = view.past.tokens_per_second(100)
    assert PhaseTimes().heading(view)[1] == f"{rate:.0f} tok/s over 39 steps"
    assert plain(PhaseTimes().draw(EngineRun().view(), 40, 5)) == "no step yet"


def test_bars_of_steps_are_as_long_as_the_steps() -> None:
    run = tiny_run()
    view = run.view(step=40)
    lines = plain(StepBars().draw(view, 70, 100)).splitlines()[1:]
    assert len(lines) == 40
    reports = {r.step: r for r in run.reports if r.stepped}
    for line in lines:
        step, ms, tokens, rows, bar = line.replace("▸", " ").split(maxsplit=4)
        report = reports[int(step)]
        assert ms == "18.0"
        assert int(tokens) == sum(len(o.token_ids) for o in report.outputs)
        assert int(rows) == report.budget.tokens
        assert abs(bar.count("F") - 44 * 11.8 / 18) <= 1
        assert len(bar) == 44
    assert lines[-1].startswith("▸")


@pytest.mark.parametrize("panel", [EventLog, PhaseTimes, StepBars])
def test_panels_hold_at_every_size_with_any_text(panel) -> None:
    run = tiny_run()
    for view in (EngineRun().view(), odd(run.view(step=14)), run.view(glyphs=ASCII, selected="gone")):
        check_every_size(panel, view, ours=False)
    check_every_size(panel, run.view(glyphs=ASCII))


def test_every_key_changes_the_screen_or_says_something() -> None:
    async def main() -> None:
        run = tiny_run()
        ids = list(run.ledger.requests)
        app = ViewApp(TraceView())
        async with app.run_test(size=(120, 40)) as pilot:
            app.show(run.view(step=40, selected=ids[0]))
            await pilot.pause()
            log = app.query_one(EventLog)
            log.focus()
            shown = [app.shown.as_text()]
            for key in ("f", "f", "s", "s", "f", "f", "f", "down", "pagedown", "up", "pageup"):
                await pilot.press(key)
                await pilot.pause()
                shown.append(app.shown.as_text())
                assert shown[-1] != shown[-2], key
            await pilot.press("enter")
            await pilot.pause()
            assert [type(m) for m in app.heard] == [CursorMoved]
            assert app.heard.pop().step == 40
            await pilot.press("slash", *"preempt")
            await pilot.pause()
            assert all("preempt" in e.text for e in log.items(log.view))
            await pilot.press("enter", "slash", "escape")
            await pilot.pause()
            assert len(log.items(log.view)) > 50
            assert not app.query_one(FindBar).has_class("-open")
            log.clicked(Target("request", ids[1]))
            bars = app.query_one(StepBars)
            bars.focus()
            await pilot.press("up", "enter")
            await pilot.pause()
            assert [type(m) for m in app.heard] == [RequestSelected, CursorMoved]
            assert app.heard[1].step == 39
            for size in ((1, 1), (20, 5), (300, 100), (3, 50), (80, 24)):
                await pilot.resize_terminal(*size)
                await pilot.pause()
            assert "time per phase" in app.shown.as_text()

    asyncio.run(main())
