"""Block tables: append, share, replace and trim, each reference taken and given back exactly once."""

from __future__ import annotations

from mini_infer.cache.block_pool import BlockPool
from mini_infer.cache.block_table import BlockTable
from mini_infer.observe.events import BlockMove


def make(num_blocks: int = 6, size: int = 4) -> tuple[BlockPool, BlockTable]:
    pool = BlockPool(num_blocks, size)
    pool.moves = []
    return pool, BlockTable(pool, "a")


def test_missing_counts_whole_blocks():
    _, table = make(size=4)
    assert [table.missing(rows) for rows in (0, 1, 4, 5, 8, 9)] == [0, 1, 1, 2, 2, 3]
    table.grow(2)
    assert [table.missing(rows) for rows in (0, 8, 9, 16)] == [0, 0, 1, 2]


def test_grow_appends_fresh_blocks_and_says_so():
    pool, table = make()
    table.grow(2)
    assert table.blocks == [0, 1]
    assert len(table) == 2
    assert pool.moves == [BlockMove("alloc", 0, "a", 0), BlockMove("alloc", 1, "a", 1)]


def test_share_holds_a_block_of_another_or_of_the_cache():
    pool, table = make()
    other = BlockTable(pool, "b")
    table.grow(1)
    other.share(0)
    assert pool.ref[0] == 2
    table.trim(0)
    assert pool.ref[0] == 1
    assert pool.moves[-2:] == [BlockMove("share", 0, "b", 0), BlockMove("free", 0, "a", 0)]


def test_replace_gives_back_the_old_block():
    pool, table = make()
    other = BlockTable(pool, "b")
    table.grow(2)
    other.share(1)
    table.replace(1, pool.take())
    assert table.blocks == [0, 2]
    assert [pool.ref[b] for b in range(3)] == [1, 1, 1]
    assert pool.moves[-1] == BlockMove("cow", 2, "a", 1)


def test_trim_frees_the_last_block_first_so_that_the_head_of_a_chain_lives_longest():
    pool, table = make(num_blocks=3)
    table.grow(3)
    for block in table.blocks:
        pool.set_key(block, bytes([block]))
    table.trim(1)
    assert table.blocks == [0]
    assert pool.free_list() == [2, 1]
    table.trim(0)
    assert pool.free_list() == [2, 1, 0]
    table.trim(0)
    assert [m.block for m in pool.moves if m.op == "free"] == [2, 1, 0]


def test_nothing_is_noted_while_nobody_listens():
    pool, table = make()
    pool.moves = None
    table.grow(1)
    table.trim(0)
    assert pool.moves is None
