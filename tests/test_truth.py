"""What the playground draws is what the engine reported: figures and signs are read back from the drawn views.

For each recorded trace, and the story of `tiny_run`, every tenth step.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from mini_infer.observe.state import fold
from mini_infer.observe.trace_file import read_trace
from tests.tui.support import tiny_run
from tui.client.meta import meta_of
from tui.model.observer import Observer
from tui.model.view_state import ViewState
from tui.text import safe
from tui.widgets.answer import AnswerText
from tui.widgets.block_tables import BlockTables
from tui.widgets.engine_strip import EngineStrip
from tui.widgets.panel import plain
from tui.widgets.pool_grid import PoolGrid
from tui.widgets.requests import RequestList
from tui.widgets.step_panel import StepPanel
from tui.widgets.timeline import Timeline

TRACES = sorted((Path(__file__).parent / "traces").glob("*.jsonl"))


def observers() -> Iterator[tuple[str, Observer, object]]:
    run = tiny_run()
    observer = Observer(run.snapshot)
    assert observer.take(run.reports)
    yield "story", observer, (run.snapshot, run.reports)
    for path in TRACES:
        trace = read_trace(path)
        observer = Observer(trace.snapshot)
        reports = list(trace.reports())
        assert observer.take(reports)
        yield path.stem, observer, (trace.snapshot, reports)


SEEN = list(observers())


def views() -> Iterator[object]:
    for name, observer, (snapshot, reports) in SEEN:
        states = {snapshot.step: snapshot}
        state = snapshot
        for report in reports:
            state = fold(state, report)
            states[state.step] = state
        for step in range(0, observer.history.newest + 1, 10):
            yield pytest.param(observer, step, states[step], id=f"{name}-{step}")


def look(observer: Observer, step: int) -> ViewState:
    observer.go(step)
    return observer.view(meta_of({}), paused=False)


@pytest.mark.parametrize(("observer", "step", "truth"), views())
def test_every_view_says_what_the_engine_reported(observer: Observer, step: int, truth) -> None:
    view = look(observer, step)
    assert view.state == truth
    _strip(view, truth)
    _pool(view, truth)
    _tables(view, truth)
    _requests(view, truth)
    _timeline(view, truth)
    _step(view, truth)
    _answers(view, truth)


def _strip(view: ViewState, truth) -> None:
    text = plain(EngineStrip().draw(view, 80, 2))
    used, cached, blocks = map(int, re.search(r"(\d+)\+(\d+)/(\d+)", text).groups())
    assert (used, cached, blocks) == (truth.pool.used, truth.pool.cached, truth.info.num_blocks)
    running, waiting, preempted = map(int, re.search(r"run (\d+) wait (\d+) pre (\d+)", text).groups())
    assert running == sum(s.running for s in truth.sequences.values())
    assert waiting + preempted == len(truth.sequences) - running
    assert preempted == sum(1 for s in truth.sequences.values() if s.lost and not s.running)
    assert int(re.search(r"step (\d+)", text).group(1)) == truth.step
    if truth.totals.prompt_tokens:
        share = truth.totals.cached_tokens / truth.totals.prompt_tokens
        assert re.search(r"hit (\d+%)", text).group(1) == f"{share:.0%}"


def _pool(view: ViewState, truth) -> None:
    lines = plain(PoolGrid().draw(view, 56, 40)).splitlines()
    figures = next(line for line in lines if line.startswith("used"))
    used, cached, free = map(int, re.search(r"used (\d+) +cached (\d+) +free (\d+)", figures).groups())
    assert (used, cached, free) == (truth.pool.used, truth.pool.cached, truth.pool.free)
    rows = [line.split() for line in lines if re.match(r" *\d+ ", line)]
    signs = [cell for row in rows if not all(cell.isdigit() for cell in row) for cell in row[1:]]
    assert len(signs) == truth.info.num_blocks
    holders = truth.holders
    for block, cell in enumerate(signs):
        held = holders.get(block, [])
        if len(held) > 1:
            assert cell == f"*{len(held)}"
        elif held:
            assert cell[0] == view.letter(held[0])
        else:
            assert cell[0] in ("○x" if block in truth.blocks else "·x"), (block, cell)


def _tables(view: ViewState, truth) -> None:
    lines = plain(BlockTables().draw(view, 400, 200)).splitlines()
    for seq in truth.sequences.values():
        if not seq.table:
            continue
        line = next(line for line in lines if line.startswith(f"{view.letter(seq.seq_id)} "))
        shown: list[int] = []
        for word in re.split(r"  +\d+ tok", line)[0].split()[1:]:
            first, _, last = word.lstrip("*").partition("-")
            if first.isdigit():
                shown += range(int(first), int(last or first) + 1)
        assert tuple(shown) == seq.table


def _requests(view: ViewState, truth) -> None:
    lines = plain(RequestList().draw(view, 100, 100)).splitlines()
    for seq in truth.sequences.values():
        line = next(line for line in lines if line.startswith(f"{view.letter(seq.seq_id)} "))
        assert line.endswith(f" {len(seq.output)} tok")
        assert line[4:].startswith(("waits", "preempted")) == (not seq.running)


def _timeline(view: ViewState, truth) -> None:
    """The last column is what the step did to each sequence."""
    lines = plain(Timeline().draw(view, 120, 100)).splitlines()
    report = view.report
    if report is None:
        return
    kept = {r.seq_id: r.kept for r in report.spec}
    for part in report.sched:
        if part.seq_id not in truth.sequences:
            continue
        line = next(line for line in lines if line.startswith(f"{view.letter(part.seq_id)} "))
        mark = line.split(view.glyphs.now)[0].rstrip()[-1]
        one = part.seq_id not in kept and part.start + 1 == part.num_tokens and part.n_draft == 0
        expected = str(kept[part.seq_id]) if part.seq_id in kept else view.glyphs.decode if one else view.glyphs.prefill
        assert mark == expected, (part, line)


def _step(view: ViewState, truth) -> None:
    report = view.report
    if report is None or report.budget is None or not report.stepped:
        return
    text = plain(StepPanel().draw(view, 100, 6))
    assert re.search(rf"\b{report.budget.tokens}/{report.budget.max_tokens}\b", text), text


def _answers(view: ViewState, truth) -> None:
    """Letter for letter, but for the words' wrap."""
    for seq in truth.sequences.values():
        shown = ViewState(view.state, view.report, view.past, selected=seq.seq_id)
        text = plain(AnswerText().draw(shown, 90, 20)[:])
        answer = text[text.rindex(f"{view.letter(seq.seq_id)} ▸") + 3 :]
        assert "".join(safe(seq.text).split()) == "".join(answer.split("▌")[0].split())
