"""The pool: whose turn a free block is, who holds one, and that nothing depends on the pool's size."""

from __future__ import annotations

import sys

import pytest

from mini_infer.cache.block_pool import BlockPool, OutOfBlocks


def freed(pool: BlockPool, *blocks: int) -> None:
    for block in blocks:
        pool.drop(block)


def taken(pool: BlockPool, count: int) -> list[int]:
    return [pool.take() for _ in range(count)]


def hashed(pool: BlockPool, count: int) -> list[int]:
    """Blocks in use, each with a key of its own."""
    blocks = taken(pool, count)
    for block in blocks:
        pool.set_key(block, b"%d" % block)
    return blocks


def test_a_new_pool_gives_every_block_once_in_order():
    pool = BlockPool(5, 16)
    assert pool.free_list() == [0, 1, 2, 3, 4]
    assert taken(pool, 5) == [0, 1, 2, 3, 4]
    assert (pool.num_free, pool.num_used, pool.num_cached) == (0, 5, 0)
    assert pool.free_list() == []
    with pytest.raises(OutOfBlocks, match="none of 5"):
        pool.take()


@pytest.mark.parametrize("size", [(0, 16), (-1, 16), (4, 0)])
def test_a_pool_without_room_is_refused(size):
    with pytest.raises(ValueError, match="at least one block"):
        BlockPool(*size)


def test_unhashed_blocks_are_used_first_and_last_freed_first():
    pool = BlockPool(4, 16)
    freed(pool, *taken(pool, 3))
    assert pool.free_list() == [2, 1, 0, 3]


def test_hashed_blocks_are_used_last_and_in_the_order_of_their_release():
    pool = BlockPool(5, 16)
    blocks = hashed(pool, 3)
    freed(pool, 1, 0, 2)
    assert blocks == [0, 1, 2]
    assert pool.free_list() == [3, 4, 1, 0, 2]
    assert pool.num_cached == 3


def test_eviction_takes_the_least_recently_used_prefix_and_only_then():
    pool = BlockPool(3, 16)
    gone: list[int] = []
    pool.on_evict = gone.append
    hashed(pool, 2)
    freed(pool, 0, 1)
    pool.hold(0)  # a hit: block 0 is used, and more recently released than 1
    freed(pool, 0)
    assert (taken(pool, 1), gone) == ([2], [])  # the unhashed one first
    assert (taken(pool, 1), gone) == ([1], [1])
    assert (taken(pool, 1), gone) == ([0], [1, 0])
    assert pool.key == [None] * 3
    assert pool.evictions == 2


def test_the_key_is_still_there_when_the_index_is_told_of_its_eviction():
    pool = BlockPool(1, 16)
    seen: list[bytes | None] = []
    pool.on_evict = lambda block: seen.append(pool.key[block])
    freed(pool, *hashed(pool, 1))
    pool.take()
    assert seen == [b"0"]


def test_a_hit_takes_a_block_out_of_the_middle_of_the_list():
    pool = BlockPool(4, 16)
    freed(pool, *hashed(pool, 4))
    pool.hold(2)
    assert pool.free_list() == [0, 1, 3]
    assert (pool.num_free, pool.num_cached, pool.ref[2]) == (3, 3, 1)


def test_only_the_last_holder_frees_a_block():
    pool = BlockPool(2, 16)
    block = pool.take()
    pool.hold(block)
    pool.drop(block)
    assert pool.num_free == 1
    pool.drop(block)
    assert pool.num_free == 2
    with pytest.raises(ValueError, match="no holder"):
        pool.drop(block)


def test_a_key_is_given_once_and_only_to_a_block_in_use():
    pool = BlockPool(2, 16)
    block = pool.take()
    pool.set_key(block, b"k")
    with pytest.raises(ValueError, match="cannot be published"):
        pool.set_key(block, b"other")
    with pytest.raises(ValueError, match="cannot be published"):
        pool.set_key(1, b"k")


def test_a_free_block_that_loses_its_key_is_used_first():
    pool = BlockPool(4, 16)
    freed(pool, *hashed(pool, 3))
    pool.clear_key(1)
    assert pool.free_list() == [1, 3, 0, 2]
    assert pool.num_cached == 2
    pool.clear_key(1)  # has none: nothing happens
    assert pool.free_list() == [1, 3, 0, 2]


def test_a_used_block_that_loses_its_key_keeps_its_holders():
    pool = BlockPool(2, 16)
    hashed(pool, 1)
    pool.clear_key(0)
    assert (pool.ref[0], pool.key[0], pool.num_free) == (1, None, 1)
    pool.drop(0)
    assert pool.free_list() == [0, 1]


def calls(action) -> int:
    """Function calls, Python's and C's, that an action makes."""
    count = 0

    def note(frame, event, arg):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return count


def busy_pool(size: int) -> BlockPool:
    """Half in use, a quarter cached, a quarter without a key; block 0 is cached in the middle of the others."""
    pool = BlockPool(size, 16)
    blocks = hashed(pool, 3 * size // 4)
    freed(pool, *blocks[size // 2 :], 0)
    freed(pool, *blocks[1 : size // 8])
    return pool


@pytest.mark.parametrize(
    "action",
    [
        lambda pool: pool.take(),
        lambda pool: pool.hold(0),
        lambda pool: pool.drop(pool.num_blocks // 4),
        lambda pool: pool.clear_key(0),
        lambda pool: (pool.num_free, pool.num_cached, pool.num_used),
    ],
)
def test_no_operation_grows_with_the_pool(action):
    small, large = busy_pool(64), busy_pool(8192)
    assert calls(lambda: action(small)) == calls(lambda: action(large))
