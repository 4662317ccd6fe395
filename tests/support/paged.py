"""Drives a `ModelRunner` by hand: sequences on scattered blocks, advanced by any mix of chunks in one batch."""

from __future__ import annotations

import random
from collections.abc import Sequence

from torch import Tensor

from mini_infer.batch import Batch, Span, slot_index
from mini_infer.models.config import ModelConfig
from mini_infer.models.runner import ModelRunner
from mini_infer.models.transformer import Transformer


class PagedDriver:
    """Block tables and lengths of some sequences; blocks are dealt out in random order."""

    def __init__(
        self, model: Transformer, config: ModelConfig, num_blocks: int = 64, block_size: int = 16, seed: int = 0
    ) -> None:
        self.runner = ModelRunner(model, config, num_blocks, block_size, "cpu")
        self.block_size = block_size
        self.free = list(range(num_blocks))
        random.Random(seed).shuffle(self.free)
        self.tables: dict[str, list[int]] = {}
        self.lengths: dict[str, int] = {}

    def batch(self, parts: Sequence[tuple[str, Sequence[int]]], copies: tuple[tuple[int, int], ...] = ()) -> Batch:
        """One forward pass that appends tokens to sequences; every row's logits are wanted."""
        ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        spans: list[Span] = []
        for name, tokens in parts:
            start = self.lengths.get(name, 0)
            stop = start + len(tokens)
            table = self.tables.setdefault(name, [])
            while len(table) * self.block_size < stop:
                table.append(self.free.pop())
            spans.append(Span(name, len(ids), len(tokens), stop, tuple(table)))
            ids += tokens
            positions += range(start, stop)
            slots += slot_index(tuple(table), start, stop, self.block_size)
            self.lengths[name] = stop
        rows = tuple(range(len(ids)))
        return Batch(tuple(ids), tuple(positions), tuple(slots), tuple(spans), rows, copies, self.block_size)

    def step(
        self, parts: Sequence[tuple[str, Sequence[int]]], copies: tuple[tuple[int, int], ...] = ()
    ) -> dict[str, Tensor]:
        """Run the batch; the logits of each part's rows, [rows, vocab_size]."""
        logits = self.runner.logits(self.runner.run(self.batch(parts, copies)))
        found: dict[str, Tensor] = {}
        first = 0
        for name, tokens in parts:
            found[name] = logits[first : first + len(tokens)]
            first += len(tokens)
        return found

    def fork(self, name: str, child: str) -> tuple[tuple[int, int], ...]:
        """Let `child` share every full block of `name`; returns the copy its next step needs for the partial one."""
        self.tables[child], self.lengths[child] = list(self.tables[name]), self.lengths[name]
        if self.lengths[name] % self.block_size == 0:
            return ()
        self.tables[child][-1] = self.free.pop()
        return ((self.tables[name][-1], self.tables[child][-1]),)

    def trim(self, name: str, length: int) -> None:
        """Forget the rows from `length` on, as after rejected drafts."""
        self.lengths[name] = length
        keep = -(-length // self.block_size)
        self.free += self.tables[name][keep:]
        del self.tables[name][keep:]
