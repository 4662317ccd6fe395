"""The prefix view: hits, the tree of cached chains, the order of eviction, and why a match stopped."""

from __future__ import annotations

import asyncio
import re
from itertools import pairwise

import pytest
from msgspec.structs import replace

from mini_infer.observe.events import Miss
from tests.tui.sizes import check_every_size
from tests.tui.support import EngineRun, ViewApp, tiny_run, words
from tui.glyphs import ASCII
from tui.messages import BlockPinned, RequestSelected, ViewOpened
from tui.model.chains import eviction_order, ranges, tree
from tui.text import width
from tui.views.prefix import PrefixView
from tui.widgets.chain_tree import ChainTree
from tui.widgets.find_bar import FindBar
from tui.widgets.hit_bars import HitBars, blocks_of, recent_rate
from tui.widgets.panel import plain
from tui.widgets.stop_reason import StopReason

ODD = {
    0: "\t\r\n\0", 1: "[bold]x[/]", 2: "\x1b[31mred", 3: "日本語", 4: "👩\u200d👩\u200d👧", 5: "\u202eשלום",
    6: "[@click=app.quit]go[/]",
}  # fmt: skip


def odd(view):
    """The same view with texts of tokens that could break a screen."""
    return type(view)(**{**vars(view), "state": replace(view.state, pieces=view.state.pieces | ODD)})


def test_hits_and_bars_are_those_of_the_state() -> None:
    run = tiny_run()
    for step in (3, 8, 12, 18, 25, 40, run.history.newest):
        view = run.view(step=step)
        text = plain(HitBars().draw(view, 78, 30)).splitlines()[1:]
        assert len(text) == len(view.past.requests)
        for line in text:
            seq_id = view.past.by_letter(line[0])
            assert seq_id is not None
            record, seq = view.past.request(seq_id), view.state.sequences.get(seq_id)
            _, prompt, cached, hit, bar = line.replace("▸", " ").split(maxsplit=4)
            assert int(prompt) == len(record.prompt)
            bar = bar.split()[0]
            assert len(bar) == -(-len(record.prompt) // 4)
            if seq is not None:
                assert cached == ("-" if seq.cached is None else str(seq.cached))
                done = min(seq.num_computed, len(seq.prompt))
                assert bar.count("H") + bar.count("M") == (done // 4 if seq.running or done else 0)
                assert bar.count("p") == (done == len(seq.prompt) and done % 4 > 0)
                if seq.running and seq.cached is not None:
                    assert bar.count("H") == seq.cached // 4
                    assert hit == f"{seq.cached / len(seq.prompt):.0%}"


def test_hits_are_counted_once_and_the_rate_says_over_how_many() -> None:
    run = tiny_run()
    view = run.view()
    assert view.state.totals.preemptions > 0
    rate, count = recent_rate(view)
    admitted = [a for r in run.reports for a in r.admitted if a.first]
    assert count == len(admitted)
    assert rate == view.state.totals.cached_tokens / view.state.totals.prompt_tokens
    assert HitBars().heading(view)[1] == f"run {rate:.0%}  last {count} req {rate:.0%}"
    forked = EngineRun(num_blocks=32, block_size=4)
    forked.ask(words("the engine holds every token"), 4, n=3)
    assert recent_rate(forked.finish().view())[1] == 1


def test_long_prompts_share_one_scale() -> None:
    run = EngineRun(num_blocks=64, block_size=4, max_model_len=256)
    run.ask([1, 2, 3] * 60, 2)
    run.ask([4, 5, 6] * 3, 2)
    view = run.step(2).view()
    lines = plain(HitBars().draw(view, 60, 6)).splitlines()
    assert "1 cell = 2 blocks" in plain(HitBars().draw(view, 100, 6)) or "1 cell = 2 blocks" in lines[0]
    assert all(width(line) <= 60 for line in lines[1:])


@pytest.mark.parametrize("step", [8, 12, 16, 22, 30, None])
def test_eviction_order_is_the_engines_own(step: int | None) -> None:
    run = tiny_run(steps=None)
    view = run.view(step=step)
    order = eviction_order(view)
    assert len(order) == view.state.pool.cached
    if step is None:
        pool = run.engine.scheduler.pool
        assert [i.block for i in order] == [b for b in pool.free_list() if pool.key[b] is not None]
        evicted = plain([ChainTree().row(view, order[0], 78, False)])
        assert f"block {order[0].block}" in evicted
    else:  # what was evicted next is what was announced, in that order, until something was taken or freed
        report = run.history.at(step + 1).report
        gone = [m.block for m in report.blocks if m.op == "evict"]
        first = [i.block for i in order][: len(gone)]
        assert gone == first or any(m.op in ("share", "free") for m in report.blocks)


def test_the_tree_has_every_block_once_under_its_parent() -> None:
    run = tiny_run()
    for step in range(1, run.history.newest + 1, 3):
        view = run.view(step=step)
        nodes = tree(view)
        seen = [b for n in nodes if n.chain for b in n.chain.blocks]
        assert sorted(seen) == sorted(view.state.blocks)
        for node in nodes:
            if node.chain is None:
                continue
            keys = [view.state.blocks[b] for b in node.chain.blocks]
            assert all(b.parent == a.key for a, b in pairwise(keys))
            assert all(tuple(view.holders.get(b, ())) == node.chain.holders for b in node.chain.blocks)
            assert node.chain.key == keys[-1].key
        drawn = plain(ChainTree().draw(view, 100, 60))
        for node in nodes:
            if node.chain:
                assert f"ref {len(node.chain.holders)}" in drawn
        if view.state.pool.cached:
            assert f"next: {eviction_order(view)[0].block}" in drawn


def test_one_child_chains_are_folded_and_branches_are_not() -> None:
    run = EngineRun(num_blocks=32, block_size=4)
    system = words("the engine holds every token in a small")
    first = run.ask([*system, *words("block and maps it to each")], 30)
    run.step(4)
    second = run.ask([*system, *words("cache that runs when why how then")], 30)
    view = run.step(3).view(selected=second)
    lines = plain(ChainTree().draw(view, 90, 12)).splitlines()
    assert lines[0].strip() == "(root)"
    assert re.search(r'└─ 0-1 \w{8} " the engine holds every token in a small" +ref 2  A B', lines[1])
    assert "├─ 2" in lines[2]
    assert lines[2].rstrip().endswith("ref 1  A")
    assert lines[3].strip().startswith("└─")
    assert lines[3].rstrip().endswith("ref 1  B")
    run.do(lambda engine: engine.abort(first))
    after = plain(ChainTree().draw(run.view(), 90, 12))
    assert "ref 0  evict next:" in after
    assert ranges([0, 1, 2, 5, 7, 8]) == "0-2 5 7-8"


def test_every_reason_is_told_in_words() -> None:
    run = tiny_run(steps=14)
    view = run.view(selected=next(iter(run.ledger.requests)))
    record = view.past.request(view.selected)
    cases = {
        Miss("DIFF", 5, (record.prompt[5], 3), (7, 8)): [
            "first different token is 5, in block 1",
            "cached",
            "draft step",
        ],
        Miss("EVICTED", 4, step=7): ["the block at token 4 was evicted at step 7"],
        Miss("NEVER_SEEN", 8): ["nothing cached goes on at token 8"],
        Miss("SALT", 0): ["another salt"],
        Miss("PARTIAL", 12): ["13 tok = 3 full blocks + 1 tok"],
        Miss("LAST_TOKEN", 12): ["all but the last token"],
    }
    for miss, said in cases.items():
        record.miss = miss
        text = plain(StopReason().draw(view, 100, 4))
        for part in said:
            assert part in text, miss.kind
    record.miss = Miss("DIFF", 5, (record.prompt[5], 3), (7, 8))
    lines = plain(StopReason().draw(view, 78, 4)).splitlines()
    before = view.decode(record.prompt[:5])
    assert lines[1] == f'  cached "{before} draft step"'
    assert lines[2].startswith(f'  A      "{before}{view.piece(record.prompt[5])} block"')


def test_a_cache_that_is_off_says_so() -> None:
    run = EngineRun(num_blocks=16, block_size=4, prefix_cache=False)
    run.ask([1, 2, 3, 4, 5], 3)
    view = run.step(2).view()
    for panel in (ChainTree(), StopReason()):
        assert "switched off" in plain(panel.draw(view, 60, 5))


@pytest.mark.parametrize("panel", [HitBars, ChainTree, StopReason])
def test_panels_hold_at_every_size_with_any_text(panel) -> None:
    run = tiny_run()
    for view in (EngineRun().view(), odd(run.view(step=14)), odd(run.view(step=14, glyphs=ASCII, selected="r9"))):
        check_every_size(panel, view, ours=False)
    check_every_size(panel, tiny_run(steps=14).view(glyphs=ASCII))


def test_every_key_changes_the_screen_or_says_something() -> None:
    async def main() -> None:
        run = tiny_run()
        ids = list(run.ledger.requests)
        app = ViewApp(PrefixView())
        async with app.run_test(size=(80, 24)) as pilot:
            app.show(run.view(step=12, selected=ids[0]))
            await pilot.pause()
            bars, chains = app.query_one(HitBars), app.query_one(ChainTree)
            bars.focus()
            await pilot.press("down")
            await pilot.pause()
            assert [type(m) for m in app.heard] == [RequestSelected]
            assert app.heard.pop().seq_id == bars.items(bars.view)[2].seq_id  # A is the second, after D
            await pilot.press("enter")
            await pilot.pause()
            assert [type(m) for m in app.heard] == [RequestSelected, ViewOpened]
            app.heard.clear()
            before = app.shown.as_text()
            await pilot.press("e")
            await pilot.pause()
            assert "eviction order" in app.shown.as_text() != before
            await pilot.press("e")
            await pilot.press("slash", *"draft")
            await pilot.pause()
            found = app.shown.as_text()
            assert '"draft"' in found
            assert len(chains.items(chains.view)) == 1
            await pilot.press("enter")
            await pilot.pause()
            assert not app.query_one(FindBar).has_class("-open")
            assert bars.has_focus
            await pilot.press("slash", "escape")
            await pilot.pause()
            assert app.shown.as_text() == before
            chains.focus()
            await pilot.press("up", "up", "up", "up", "pagedown", "enter")
            await pilot.pause()
            assert [type(m) for m in app.heard] == [BlockPinned, ViewOpened]
            assert app.heard[1].name == "blocks"
            for size in ((1, 1), (20, 5), (300, 100), (3, 50), (80, 24)):
                await pilot.resize_terminal(*size)
                await pilot.pause()
            assert "(root)" in app.shown.as_text()

    asyncio.run(main())


def test_blocks_of_a_preempted_request_are_to_be_computed_again() -> None:
    run = tiny_run()
    for step in range(1, run.history.newest):
        view = run.view(step=step)
        for seq in view.state.waiting:
            if seq.lost:
                assert set(blocks_of(view, view.past.request(seq.seq_id))) == {"-"}
                assert "preempted" in plain(HitBars().draw(view, 80, 12))
                return
    raise AssertionError("nobody was preempted")
