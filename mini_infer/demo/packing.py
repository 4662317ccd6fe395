"""Conversations side by side in rows of one length, behind one system prompt that all of a row share."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import torch
from torch import Tensor

from mini_infer.demo.corpus import conversations, other_system_prompt, render
from mini_infer.demo.net import CONTEXT, Rows
from mini_infer.demo.vocabulary import Encoder

Document = tuple[list[int], list[float]]
LONG_EVERY = 12
"""Each so many batches one holds rows as long as the context, half as many of them."""
POOL = 256
"""Conversations among which the packer looks for one that fits."""


def batches(encoder: Encoder, seed: int, rows: int, length: int) -> Iterator[Rows]:
    """An endless stream of batches of `rows` rows of `length` tokens; the same for the same arguments."""
    rng = random.Random(seed)
    late: list[Document] = []  # too long for a short row
    stream = _short(_documents(encoder, seed), late, length - len(encoder.system))
    pool = list(itertools.islice(stream, POOL))
    for index in itertools.count(1):
        long = index % LONG_EVERY == 0
        count, size = (max(rows * length // CONTEXT, 1), CONTEXT) if long else (rows, length)
        yield _stack([_row(encoder, rng, late if long else [], pool, stream, size) for _ in range(count)])


def _documents(encoder: Encoder, seed: int) -> Iterator[Document]:
    stream = conversations(seed)
    while True:
        for ids, weights in encoder(list(itertools.islice(stream, 512))):
            if len(ids) <= CONTEXT - len(encoder.system):
                yield ids, weights


def _short(stream: Iterator[Document], late: list[Document], most: int) -> Iterator[Document]:
    """The documents of at most `most` tokens; the newest of the others wait in `late`."""
    for document in stream:
        if len(document[0]) <= most:
            yield document
        else:
            late.append(document)
            del late[:-POOL]


def _row(
    encoder: Encoder,
    rng: random.Random,
    late: list[Document],
    pool: list[Document],
    stream: Iterator[Document],
    size: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """One row, filled with the oldest conversations of the pool that fit. A row as long as the context begins with
    one of `late`, and its conversations continue each other, so that late positions are learned too."""
    long = size == CONTEXT
    start = encoder.system
    draw = rng.random()
    if draw < 0.1:
        start = encoder.ids(render((), other_system_prompt(rng)))
    elif draw < 0.13:
        start = []
    tokens, positions, segments = list(start), list(range(len(start))), [0] * len(start)
    targets, weights = list(start[1:]) + [0] * bool(start), [0.0] * len(start)
    segment, index = 0, 0
    while index < len(pool):
        source, at = (late, 0) if late and not segment else (pool, index)
        ids, counts = source[at]
        if len(tokens) + len(ids) > size:
            index += 1
            continue
        del source[at]
        if source is pool:
            pool.append(next(stream))
        first = len(tokens) if long else len(start)
        segment = max(segment, 1) if long else segment + 1
        if long and segments[-1:] == [1]:
            targets[-1] = ids[0]
        tokens += ids
        positions += range(first, first + len(ids))
        segments += [segment] * len(ids)
        targets += [*ids[1:], 0]
        weights += [*counts[1:], 0.0]
    pad = size - len(tokens)
    return (
        torch.tensor(tokens + [encoder.pad] * pad),
        torch.tensor(positions + [0] * pad),
        torch.tensor(segments + [-1] * pad),
        torch.tensor(targets + [0] * pad),
        torch.tensor(weights + [0.0] * pad),
    )


def _stack(rows: list[tuple[Tensor, Tensor, Tensor, Tensor, Tensor]]) -> Rows:
    return Rows(*(torch.stack(column) for column in zip(*rows, strict=True)))
