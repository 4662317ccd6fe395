"""The pool of KV blocks: reference counts and a free list, as fixed arrays.

Who owns a block: it is *in use* while a table holds it (`ref > 0`), otherwise it is on the free list. A free block that
still has a key is *cached*: its rows can be taken again by a prefix hit until the block is reused. Blocks without a key
stand at the head of the free list and are used first; blocks with a key are appended at its tail, so that reuse evicts
the least recently used prefix, and only when no unhashed block is left.
"""

from __future__ import annotations

from collections.abc import Callable

from mini_infer.observe.events import BlockMove


class OutOfBlocks(RuntimeError):
    """`take` was called on a pool without a free block: the caller did not ask `num_free` first."""


class BlockPool:
    """`num_blocks` blocks of `block_size` token rows. Every operation is O(1)."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a pool needs at least one block of one row, not {num_blocks} of {block_size}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.ref = [0] * num_blocks
        self.key: list[bytes | None] = [None] * num_blocks
        # Intrusive doubly linked list in two arrays; index num_blocks is the sentinel that closes the ring.
        self._next: list[int] = [*range(1, num_blocks + 1), 0]
        self._prev: list[int] = [num_blocks, *range(num_blocks)]
        self.num_free = num_blocks
        self.num_cached = 0  # of the free ones, those with a key
        self.draft_valid = [False] * num_blocks  # all rows of the draft model's KV are computed too
        self.evictions = 0
        self.on_evict: Callable[[int], None] = lambda block: None  # the prefix index forgets the block here
        self.moves: list[BlockMove] | None = None  # filled only while somebody listens

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_free

    def take(self) -> int:
        """A block to write into, with one holder and no key. Evicts the least recently used prefix if it must."""
        block = self._next[self.num_blocks]
        if block == self.num_blocks:
            raise OutOfBlocks(f"none of {self.num_blocks} blocks is free")
        self._unlink(block)
        if self.key[block] is not None:
            self.evictions += 1
            self.on_evict(block)
            self.key[block] = None
            if self.moves is not None:
                self.moves.append(BlockMove("evict", block))
        self.ref[block] = 1
        self.draft_valid[block] = False
        return block

    def hold(self, block: int) -> None:
        """One more holder. A cached block comes back into use."""
        if self.ref[block] == 0:
            self._unlink(block)
        self.ref[block] += 1

    def drop(self, block: int) -> None:
        """One holder less. The last one frees the block; a key stays with it until the block is reused."""
        if self.ref[block] <= 0:
            raise ValueError(f"block {block} has no holder to drop")
        self.ref[block] -= 1
        if self.ref[block] == 0:
            self._link(block)

    def set_key(self, block: int, key: bytes) -> None:
        """Give a block in use the key of its (complete, computed) rows."""
        if self.ref[block] == 0 or self.key[block] is not None:
            raise ValueError(f"block {block} cannot be published: {self.ref[block]} holders, key {self.key[block]!r}")
        self.key[block] = key

    def clear_key(self, block: int) -> None:
        """Take the key away; a free block moves to the head of the list, to be used first."""
        if self.key[block] is None:
            return
        if self.ref[block]:
            self.key[block] = None
        else:
            self._unlink(block)
            self.key[block] = None
            self._link(block)

    def free_list(self) -> list[int]:
        """The free blocks in the order in which `take` will use them (for checks and views)."""
        blocks: list[int] = []
        block = self._next[self.num_blocks]
        while block != self.num_blocks and len(blocks) <= self.num_blocks:
            blocks.append(block)
            block = self._next[block]
        return blocks

    def _unlink(self, block: int) -> None:
        before, after = self._prev[block], self._next[block]
        self._next[before], self._prev[after] = after, before
        self.num_free -= 1
        self.num_cached -= self.key[block] is not None

    def _link(self, block: int) -> None:
        end = self.num_blocks
        hashed = self.key[block] is not None
        before, after = (self._prev[end], end) if hashed else (end, self._next[end])
        self._next[before] = self._prev[after] = block
        self._prev[block], self._next[block] = before, after
        self.num_free += 1
        self.num_cached += hashed
