"""A sequence's blocks in order: row p of the sequence lives in `blocks[p // block_size]`.

A table is append-only but for `trim` at its end and `replace` (the copy of a shared block before it is written).
It holds one reference on every block it names and gives it back exactly once.
"""

from __future__ import annotations

from mini_infer.cache.block_pool import BlockPool
from mini_infer.observe.events import BlockMove, MoveOp


class BlockTable:
    def __init__(self, pool: BlockPool, seq_id: str) -> None:
        self.pool = pool
        self.seq_id = seq_id
        self.blocks: list[int] = []

    def __len__(self) -> int:
        return len(self.blocks)

    def missing(self, rows: int) -> int:
        """How many blocks the table lacks to cover `rows` rows."""
        return max(0, -(-rows // self.pool.block_size) - len(self.blocks))

    def grow(self, count: int) -> None:
        """Append `count` fresh blocks."""
        for _ in range(count):
            self._append("alloc", self.pool.take())

    def share(self, block: int) -> None:
        """Append a block that others hold or that is cached; its rows must not be written."""
        self.pool.hold(block)
        self._append("share", block)

    def replace(self, index: int, block: int) -> None:
        """Put `block`, already held for this table, in the place of a shared one."""
        old, self.blocks[index] = self.blocks[index], block
        self._note("cow", block, index)
        self.pool.drop(old)

    def trim(self, length: int) -> None:
        """Give back the blocks from `length` on, the last one first: chain heads survive longest in the cache."""
        while len(self.blocks) > length:
            block = self.blocks.pop()
            self._note("free", block, len(self.blocks))
            self.pool.drop(block)

    def _append(self, op: MoveOp, block: int) -> None:
        self._note(op, block, len(self.blocks))
        self.blocks.append(block)

    def _note(self, op: MoveOp, block: int, index: int) -> None:
        if self.pool.moves is not None:
            self.pool.moves.append(BlockMove(op, block, self.seq_id, index))
