"""The Sched view against the state it draws."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace as with_fields
from typing import get_args

import pytest
from msgspec.structs import replace
from textual.geometry import Size

from mini_infer.observe.events import Wait, WaitKind
from tests.tui.sizes import check_every_size, check_resizing
from tests.tui.support import ViewApp, tiny_run
from tests.tui.test_blocks import ODD, big_run
from tui.glyphs import ASCII, UNICODE
from tui.messages import CursorMoved, Notice, RequestSelected, ViewOpened
from tui.text import width
from tui.views.sched import SchedView
from tui.widgets.panel import plain
from tui.widgets.step_panel import StepPanel, budget_line, scaled
from tui.widgets.timeline import Timeline, short_reason, sign
from tui.widgets.waiting_list import WaitingList, preemptions

RUN = tiny_run()
STEPS = range(1, RUN.history.newest + 1, 5)


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII], ids=["unicode", "ascii"])
def test_each_cell_is_what_the_step_did(glyphs) -> None:
    for step in STEPS:
        view = RUN.view(step=step, glyphs=glyphs)
        panel = Timeline()
        lines = plain(panel.draw(view, 78, 20)).splitlines()[1:]
        cells = 78 - 4 - 1 - 26
        columns = view.past.columns(cells)
        ids = panel.ids(view)
        assert columns[-1].step == step and len(lines) == len(ids)
        assert set(view.state.sequences) <= set(ids)
        for seq_id, line in zip(ids, lines, strict=True):
            assert line[0] == view.letter(seq_id)
            drawn, status = line[4 : 4 + cells], line[4 + cells + 1 :]
            marks = "".join(sign(glyphs, view.past.mark(seq_id, c)) for c in columns)
            assert drawn == glyphs.absent * (cells - len(columns)) + marks
            seq = view.state.sequences.get(seq_id)
            if seq is not None:
                assert status.split()[-2:] == [str(len(seq.table)), str(seq.priority)]
                word = status.split()[0]
                assert word in (("dec", "pre") if seq.running else ("wait", "preempted"))


def test_figures_of_a_row() -> None:
    view = RUN.view(step=48)
    text = plain(Timeline().draw(view, 78, 12))
    seq = view.state.sequences["r3"]
    assert f"dec       {len(seq.prompt)}+ {len(seq.output)}" in text
    assert "preempted @48" in text and "aborted" in text
    early = RUN.view(step=1)
    seq = early.state.sequences["r1"]
    assert f"pre{f'{seq.num_computed}/{len(seq.prompt)}':>13}" in plain(Timeline().draw(early, 78, 12))


def test_a_wide_timeline_says_why_each_waits() -> None:
    view = RUN.view(step=48)
    lines = plain(Timeline().draw(view, 130, 12)).splitlines()
    for seq in view.state.waiting:
        line = next(x for x in lines if x.startswith(view.letter(seq.seq_id)))
        assert line.endswith(short_reason(view, seq))


def test_the_queue_is_in_order_with_every_reason() -> None:
    for step in STEPS:
        view = RUN.view(step=step)
        text = plain(WaitingList().draw(view, 200, 20))
        waiting = view.state.waiting
        lines = text.splitlines()[1 : 1 + len(waiting)] if waiting else []
        for place, (seq, line) in enumerate(zip(waiting, lines, strict=True), 1):
            kind = seq.wait.kind if seq.wait is not None else "NEXT"
            assert line.split()[:2] == [str(place), view.letter(seq.seq_id)] and kind in line
        if not waiting:
            assert "nobody waits" in text


@pytest.mark.parametrize("kind", get_args(WaitKind))
def test_every_reason_has_words(kind) -> None:
    view = RUN.view(step=48)
    seq = view.state.waiting[0]
    wait = Wait(kind, need=31, have=28, behind="r3")
    sequences = view.state.sequences | {seq.seq_id: replace(seq, wait=wait)}
    view = with_fields(view, state=replace(view.state, sequences=sequences))
    line = plain(WaitingList().draw(view, 200, 20)).splitlines()[1]
    assert kind in line and len(line.split(kind)[1].split()) > 2
    assert kind in short_reason(view, view.state.sequences[seq.seq_id])
    if kind == "BLOCKS":
        assert "needs 31 blocks, only 28 available" in line
    if kind == "ORDER":
        assert "behind C" in line


def test_preemptions_name_cause_and_loss() -> None:
    told = [p for report in RUN.reports for p in report.preempted]
    view = RUN.view()
    assert len(preemptions(view)) == len(told) == view.state.totals.preemptions
    for report in RUN.reports:
        if report.preempted:
            now = RUN.view(step=report.step)
            text = " ".join(plain(WaitingList().draw(now, 78, 20)).split())
            for p in report.preempted:
                assert f"{now.letter(p.seq_id)} preempted @{report.step}: " in text
                assert f"{p.freed} blk freed, {p.lost} tok lost" in text
                if p.cause != p.seq_id:
                    assert f"{now.letter(p.cause)} needed a block" in text
    assert preemptions(RUN.view(step=13)) == []


def test_the_budget_bar_has_a_cell_per_token() -> None:
    for step in STEPS:
        view = RUN.view(step=step)
        report = view.report
        if not report.stepped:
            continue
        bar = plain([budget_line(view, report, 60)]).split()[1]
        for part in report.sched:
            assert bar.count(view.letter(part.seq_id)) == part.n_new + part.n_draft
        assert len(bar) == report.budget.max_tokens
        assert bar.count("·") == report.budget.max_tokens - report.budget.tokens


def test_a_scaled_bar_keeps_everybody_and_the_sum() -> None:
    assert scaled([4, 4, 8], 64, 64) == [4, 4, 8]
    assert scaled([100, 50, 50], 200, 20) == [10, 5, 5]
    assert sum(scaled([256, 128, 128], 512, 33)) == 33
    assert all(n >= 1 for n in scaled([1, 1, 500], 512, 20))
    view = big_run().view(step=2)
    line = plain([budget_line(view, view.report, 60)])
    assert width(line) <= 60 and line.endswith(f"{view.report.budget.tokens}/512")
    assert {view.letter(p.seq_id) for p in view.report.sched} <= set(line)


def test_the_step_panel_has_times_moves_and_output() -> None:
    view = RUN.view(step=48)
    text = plain(StepPanel().draw(view, 76, 4))
    assert "schedule 0.3 │ draft 4.1 │ forward 11.8 │ sample 1.6 │ commit 0.2 ms" in text
    for move in view.report.blocks:
        if move.op == "alloc":
            assert f"+{move.block}→{view.letter(move.seq_id)}" in text
    assert "evicted 14" in text and "C 4" in text
    assert StepPanel().heading(view) == ("step 48  18 ms", "seqs 1/4")
    run = tiny_run(steps=20)
    run.do(lambda engine: engine.set_paused(True))
    assert "pause" in plain(StepPanel().draw(run.view(), 76, 4))


def test_every_key_of_the_view_does_something() -> None:
    async def drive() -> None:
        app = ViewApp(SchedView())
        async with app.run_test(size=(80, 24)) as pilot:
            app.show(RUN.view(step=48, selected="r3"))
            await pilot.pause()
            app.query_one(Timeline).focus()
            for key, message in (
                ("down", RequestSelected("r4")),
                ("up", RequestSelected("r3")),
                ("left", CursorMoved(47)),
                ("right", CursorMoved(49)),
                ("enter", ViewOpened("chat")),
            ):
                before = len(app.heard)
                await pilot.press(key)
                assert len(app.heard) == before + 1 and type(app.heard[-1]) is type(message), key
                assert (
                    vars(app.heard[-1]).items()
                    >= {k: v for k, v in vars(message).items() if not k.startswith("_")}.items()
                    or key == "up"
                ), key
            app.show(RUN.view(step=48, selected="r5"))
            await pilot.press("w")
            assert isinstance(app.heard[-1], Notice) and "E waits: " in app.heard[-1].text
            app.query_one(WaitingList).focus()
            await pilot.press("down")
            assert isinstance(app.heard[-1], RequestSelected)
            await pilot.click(Timeline, offset=(7, 2))
            assert isinstance(app.heard[-1], CursorMoved)

    asyncio.run(drive())


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII], ids=["unicode", "ascii"])
def test_any_size_holds(glyphs) -> None:
    views = [
        RUN.view(step=s, selected=sel, glyphs=glyphs) for s, sel in ((0, None), (10, "r3"), (48, "r5"), (92, None))
    ]
    for view in views:
        for make in (Timeline, WaitingList, StepPanel):
            check_every_size(make, view)
    check_resizing(SchedView(), views[2], "preempted @48")


def test_odd_text_neither_styles_nor_widens() -> None:
    view = RUN.view(step=48)
    odd = with_fields(view, state=replace(view.state, pieces={t: ODD[t % len(ODD)] for t in view.state.pieces}))
    for make in (Timeline, WaitingList, StepPanel):
        rows = make().rows(odd, Size(78, 12))
        assert {sum(width(s.text) for s in row) for row in rows} == {78}
        assert "\x1b" not in plain(rows)


@pytest.mark.timing
def test_a_step_of_sixteen_requests_is_drawn_in_5_ms() -> None:
    run = big_run()
    times = []
    for step in range(10, 20):
        view = run.view(step=step, selected="r4")
        started = time.perf_counter()
        for panel, size in ((Timeline(), Size(160, 20)), (WaitingList(), Size(160, 14)), (StepPanel(), Size(160, 6))):
            panel.rows(view, size)
        times.append(time.perf_counter() - started)
    assert sorted(times)[len(times) // 2] < 0.005, times
