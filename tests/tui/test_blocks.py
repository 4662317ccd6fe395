"""The Blocks view against the state it draws."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace as with_fields
from functools import partial

import pytest
from msgspec.structs import replace
from textual.geometry import Size

from tests.tui.sizes import check_every_size, check_resizing
from tests.tui.support import EngineRun, ViewApp, tiny_run, words
from tui.glyphs import ASCII, UNICODE
from tui.messages import BlockHovered, BlockPinned, RequestSelected
from tui.model.pool_facts import find_blocks, kind_of, published_index, rows_filled, still_cached, tokens_of
from tui.text import width
from tui.views.blocks import BlocksView
from tui.widgets.block_inspector import BlockInspector, evictable, in_one_line
from tui.widgets.block_tables import BlockTables
from tui.widgets.find_bar import FindBar
from tui.widgets.panel import plain
from tui.widgets.pool_grid import ZOOMS, PoolGrid

RUN = tiny_run()
STEPS = range(1, RUN.history.newest + 1, 5)


def grid_cells(view, cells=50, height=12):
    """The pair of signs of each block, read from the drawing."""
    lines = plain(PoolGrid().draw(view, cells, height)).splitlines()[1:]
    pairs = []
    for line in lines:
        if not line[:3].strip().isdigit():
            break
        pairs += line[3:].split()
    return pairs


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII], ids=["unicode", "ascii"])
def test_the_grid_shows_what_the_state_says(glyphs) -> None:
    for step in STEPS:
        view = RUN.view(step=step, glyphs=glyphs)
        pairs = grid_cells(view)
        assert len(pairs) == view.state.info.num_blocks
        for block, pair in enumerate(pairs):
            held = view.holders.get(block, [])
            kind = kind_of(view, block)
            if kind == "shared":
                assert pair == f"*{len(held)}"
            elif kind == "owned":
                assert pair[0] == view.letter(held[0])
                rows = rows_filled(view, block)
                assert pair[1] == (glyphs.fill[2 * rows - 1] if rows else glyphs.free)
            elif kind == "cached":
                assert pair in (glyphs.cached + glyphs.fill[-1], glyphs.freed + glyphs.fill[-1])
            else:
                assert pair in (glyphs.free * 2, glyphs.freed + glyphs.free)
        kinds = [kind_of(view, block) for block in range(len(pairs))]
        pool = view.state.pool
        assert (kinds.count("cached"), kinds.count("free")) == (pool.cached, pool.free)
        assert f"used {pool.used}   cached {pool.cached}   free {pool.free}" in plain(PoolGrid().draw(view, 70, 12))


def test_new_blocks_are_reversed_freed_ones_an_x_and_others_dim() -> None:
    view = RUN.view(step=48, selected="r3")
    grid = PoolGrid()
    spans = [s for line in grid.draw(view, 50, 12) for s in line if s.target is not None]
    new = {m.block for m in view.report.blocks if m.op == "alloc"} & view.holders.keys()
    assert new and {s.target.number for s in spans if "reverse" in s.style} == new
    freed = {m.block for m in view.report.blocks if m.op == "free"} - view.holders.keys()
    assert freed and {s.target.number for s in spans if s.text[0] == UNICODE.freed} == freed
    mine = set(view.state.sequences["r3"].table)
    assert {s.target.number for s in spans if "bold" in s.style} == mine
    earlier = RUN.view(step=10, selected="r3")
    others = [s for line in grid.draw(earlier, 50, 12) for s in line if s.target and s.text[0] in "ABDE"]
    assert others and all("dim" in s.style for s in others)


def test_the_zooms_count_alike() -> None:
    view = RUN.view(step=10)
    used = view.state.pool.used
    grid = PoolGrid()
    grid.zoom = "1 cell"
    row = plain(grid.draw(view, 50, 12)).splitlines()[1][3:]
    assert len(row) == 24 and sum(c not in "○·x" for c in row) == used
    grid.zoom = "dense"
    row = plain(grid.draw(view, 50, 12)).splitlines()[0][3:]
    assert sum((ord(c) - 0x2800).bit_count() for c in row if 0x2800 <= ord(c) < 0x2900) == used
    row = plain(grid.draw(RUN.view(step=10, glyphs=ASCII), 50, 12)).splitlines()[0][3:]
    assert sum(int(c) for c in row if c.isdigit()) == used


def test_a_larger_pool_takes_a_smaller_form_and_scrolls() -> None:
    run = big_run()
    view = run.view()
    shapes = []
    for height in (80, 30, 12):
        grid = PoolGrid()
        assert len(grid.draw(view, 57, height)) <= height
        shapes.append(grid._shape[0])
    assert shapes == list(ZOOMS)
    grid = PoolGrid()
    grid.zoom, grid.at = "1:1", 1023
    assert plain(grid.draw(view, 57, 12)).splitlines()[-2].startswith("1008")


def test_the_inspector_tells_what_is_known_of_a_block() -> None:
    view = RUN.view(step=10)
    block = next(b for b, held in view.holders.items() if len(held) > 1)
    text = plain(BlockInspector().draw(with_fields(view, pinned=block), 30, 14))
    held = view.holders[block]
    assert f"SHARED x{len(held)}" in text and "fill    4/4" in text and "no, in use" in text
    for seq_id in held:
        index = view.state.sequences[seq_id].table.index(block)
        assert f"{view.letter(seq_id)}[{index}]" in text
    assert view.state.blocks[block].key[:8] in text
    life = view.past.block(block)
    assert f"hits {life.hits}" in text and f"step {life.alloc_step} by {view.letter(life.alloc_by)}" in text
    for line in view.decode(tokens_of(view, block)).split():
        assert line in text
    free = next(b for b in range(24) if kind_of(view, b) == "free")
    assert "FREE" in plain(BlockInspector().draw(with_fields(view, pinned=free), 30, 14))


def test_the_rank_of_eviction_is_the_order_of_the_pool() -> None:
    run = tiny_run(steps=30)
    view = run.view()
    pool = run.engine.scheduler.pool
    order = [b for b in pool.free_list() if pool.key[b] is not None]
    assert len(order) == view.state.pool.cached > 1
    for place, block in enumerate(order, 1):
        assert evictable(view, block).startswith(f"yes, {place} of {len(order)}")


def test_tables_in_logical_order_with_shared_marks_and_ranges() -> None:
    view = RUN.view(step=10)
    lines = plain(BlockTables().draw(view, 100, 10)).splitlines()
    for seq, line in zip(view.state.ordered, lines, strict=True):
        assert line[0] == view.letter(seq.seq_id)
        if seq.table:
            shown = line[4:].split(f"{len(seq.prompt) + len(seq.output)} tok")[0].split()
            assert shown == [f"*{b}" if len(view.holders[b]) > 1 else str(b) for b in seq.table]
    narrow = plain(BlockTables().draw(view, 30, 10))
    assert "*0-*2" in narrow
    assert all(width(line) <= 30 for line in narrow.splitlines())


def test_the_cached_remainder_is_what_admission_then_hits() -> None:
    compared = 0
    for report in RUN.reports:
        evicted = {m.block for m in report.blocks if m.op == "evict"}
        before = RUN.view(step=report.step - 1)
        index = published_index(before)
        for let in report.admitted:
            seq = before.state.sequences.get(let.seq_id)
            if seq is None or seq.running:
                continue
            found = still_cached(before, seq, index)
            if not evicted & set(found):
                compared += 1
                assert let.cached == len(found) * 4
    assert compared >= 5


def test_a_preempted_request_says_what_it_would_still_hit() -> None:
    view = RUN.view(step=48)
    line = next(x for x in plain(BlockTables().draw(view, 110, 8)).splitlines() if x.startswith("E"))
    assert line.startswith("E   preempted, holds 0; ") and "still cached = 32 of its 37 tok would hit" in line


def test_found_blocks_contain_the_text() -> None:
    view = RUN.view(step=10)
    found = find_blocks(view, "ENGINE")
    assert found and all("engine" in view.decode(tokens_of(view, b)) for b in found)
    assert find_blocks(view, "") == []


def test_every_key_of_the_view_does_something() -> None:
    async def drive() -> None:
        app = ViewApp(BlocksView())
        async with app.run_test(size=(80, 24)) as pilot:
            app.show(RUN.view(step=10))
            await pilot.pause()
            grid, inspector = app.query_one(PoolGrid), app.query_one(BlockInspector)
            grid.focus()
            await pilot.press("right")  # the first key puts the cursor on what is new
            start = grid.at
            assert start == 20 and isinstance(app.heard[-1], BlockHovered)
            for key, by in (("up", -16), ("right", 1), ("down", 16), ("left", -1)):
                before = grid.at
                await pilot.press(key)
                assert grid.at == before + by and app.heard[-1].block == grid.at, key
            assert f"block {grid.at} " in plain(inspector.draw(inspector.view, 24, 12))
            await pilot.press("enter")
            assert app.heard[-1] == BlockPinned(20) or app.heard[-1].block == 20
            app.show(RUN.view(step=10, pinned=20))
            await pilot.press("enter")
            assert isinstance(app.heard[-1], BlockPinned) and app.heard[-1].block is None
            for zoom in ("1 cell", "dense", "1:1"):
                await pilot.press("z")
                assert grid.heading(grid.view)[1] == f"z {grid._shape[0]}" and grid.zoom == zoom
                await pilot.pause()
            await pilot.press("pageup")
            assert grid.at < 20
            await pilot.press("pagedown")
            await pilot.press("slash")
            assert isinstance(app.focused, FindBar)
            await pilot.press(*"maps", "enter")
            await pilot.pause()
            assert grid.at == find_blocks(grid.view, "maps")[0] and app.focused is grid
            assert '"maps"' in grid.heading(grid.view)[0]
            app.query_one(BlockTables).focus()
            await pilot.press("down")
            assert isinstance(app.heard[-1], RequestSelected)
            await pilot.press("z")
            assert grid.zoom == "1 cell"

    asyncio.run(drive())


def test_pointer_and_clicks() -> None:
    async def drive() -> None:
        app = ViewApp(BlocksView())
        async with app.run_test(size=(80, 24)) as pilot:
            app.show(RUN.view(step=10))
            await pilot.pause()
            await pilot.hover(PoolGrid, offset=(4, 2))
            assert app.heard[-1].block == 0
            assert app.query_one(BlockInspector).hovered_block == 0
            assert "block 0" in str(app.query_one(PoolGrid).tooltip)
            await pilot.click(PoolGrid, offset=(7, 3))
            assert [m.block for m in app.heard if isinstance(m, BlockPinned)] == [17]

    asyncio.run(drive())


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII], ids=["unicode", "ascii"])
def test_any_size_holds(glyphs) -> None:
    views = [
        RUN.view(step=s, selected=sel, glyphs=glyphs) for s, sel in ((0, None), (10, "r3"), (48, "r5"), (92, None))
    ]
    for view in views:
        for make in (BlockInspector, BlockTables, *(partial(grid, zoom) for zoom in (None, *ZOOMS))):
            check_every_size(make, view)
    check_resizing(BlocksView(), views[1], "used 17")


def grid(zoom: str | None) -> PoolGrid:
    panel = PoolGrid()
    panel.zoom = zoom
    return panel


ODD = (
    "[bold]",
    "\x1b[31m",
    "[/]",
    "日本語",
    "🙂",
    "\u202eabc",
    "a\tb\r\nc",
    "e\u0301",
    "\x00",
    "[@click=app.quit]go[/]",
)


def test_odd_text_neither_styles_nor_widens() -> None:
    view = RUN.view(step=10)
    pieces = {t: ODD[t % len(ODD)] for t in view.state.pieces}
    odd = with_fields(view, state=replace(view.state, pieces=pieces))
    for block in range(24):
        panel = BlockInspector()
        rows = panel.rows(with_fields(odd, pinned=block), Size(26, 20))
        assert {sum(width(s.text) for s in row) for row in rows} == {26}
        text = plain(rows) + in_one_line(odd, block)
        assert not any(c in text for c in "\x1b\x00\u202e\t\r")
    assert find_blocks(odd, "[bold]") and "[bold]" in "".join(in_one_line(odd, b) for b in range(24))


def big_run() -> EngineRun:
    """16 requests in a pool of 1,024 blocks, most of it in use or cached."""
    run = EngineRun(num_blocks=1024, block_size=4, draft="model", k=3, max_running=16, max_batch_tokens=512,
                    max_chunk=128)  # fmt: skip
    system = words("the engine holds every token in a small block and maps it")
    for i in range(16):
        run.ask([*system, *words("key value paged small large first") * (12 + i), *words("why how") * i], 60)
    return run.step(20)


@pytest.mark.timing
def test_a_step_of_a_large_pool_is_drawn_in_5_ms() -> None:
    run = big_run()
    times = []
    for step in range(10, 20):
        view = run.view(step=step, selected="r4")
        view.holders  # noqa: B018 - shared by all panels
        panels = [(PoolGrid(), Size(100, 40)), (BlockInspector(), Size(40, 20)), (BlockTables(), Size(100, 18))]
        started = time.perf_counter()
        for panel, size in panels:
            panel.rows(view, size)
        times.append(time.perf_counter() - started)
    assert sorted(times)[len(times) // 2] < 0.005, times
