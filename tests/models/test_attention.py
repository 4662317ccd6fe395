"""The index tensors of a step against their definition, and attention over them against the definition of attention."""

from __future__ import annotations

import math
import random

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mini_infer.batch import Batch, Span, slot_index
from mini_infer.models.attention import FOLD, SHORTEST_BUCKET, AttentionMetadata, attend, build_metadata, by_products


def make_batch(parts: list[tuple[int, int]], block_size: int = 16, seed: int = 0) -> Batch:
    """One span per (start, rows), on blocks of its own in random order, with spare blocks at the end of some tables."""
    rng = random.Random(seed)
    blocks = rng.sample(range(4000), sum(-(-(start + n) // block_size) + 2 for start, n in parts))
    positions: list[int] = []
    slots: list[int] = []
    spans: list[Span] = []
    for index, (start, n) in enumerate(parts):
        count = -(-(start + n) // block_size) + index % 3
        table = tuple(blocks.pop() for _ in range(count))
        spans.append(Span(f"s{index}", len(positions), n, start + n, table))
        positions += range(start, start + n)
        slots += slot_index(table, start, start + n, block_size)
    ids = tuple(range(len(positions)))
    return Batch(ids, tuple(positions), tuple(slots), tuple(spans), ids, (), block_size)


MIXES = {
    "one decode": [(40, 1)],
    "one token": [(0, 1)],
    "one prompt": [(0, 50)],
    "decodes": [(5, 1), (99, 1), (100, 1), (127, 1), (128, 1), (500, 1), (700, 1), (0, 1)],
    "equal decodes": [(30, 1), (30, 1), (30, 1)],
    "verifies": [(5, 5), (60, 5), (200, 5), (64, 3), (0, 3), (7, FOLD), (9, FOLD)],
    "chunks": [(0, 40), (16, 40), (100, FOLD + 1), (1, 130)],
    "all": [(77, 1), (0, 33), (5, 9), (300, 1), (31, 1), (15, 1), (16, 9), (250, 64)],
}


def reference_attention(batch: Batch, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Row by row and head by head, from the definition."""
    out = torch.empty_like(q)
    sharing = q.shape[1] // keys.shape[1]
    for span in batch.spans:
        for row in range(span.first_row, span.first_row + span.num_rows):
            visible = torch.tensor(slot_index(span.blocks, 0, batch.positions[row] + 1, batch.block_size))
            for head in range(q.shape[1]):
                scores = keys[visible, head // sharing] @ q[row, head] / math.sqrt(q.shape[2])
                out[row, head] = scores.softmax(0) @ values[visible, head // sharing]
    return out.flatten(1)


@pytest.mark.parametrize("block_size", [1, 16])
@pytest.mark.parametrize("name", MIXES)
def test_attention_is_its_definition(name: str, block_size: int) -> None:
    batch = make_batch(MIXES[name], block_size)
    generator = torch.Generator().manual_seed(1)
    q = torch.randn(len(batch.positions), 6, 8, dtype=torch.float64, generator=generator)
    keys, values = torch.randn(2, 4000 * block_size, 3, 8, dtype=torch.float64, generator=generator)
    meta = build_metadata(batch, "cpu", torch.float64, 3, 8)
    expected = reference_attention(batch, q, keys, values)
    torch.testing.assert_close(attend(q, keys, values, meta), expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("lengths", [(9, 9, 9), (9, 4, 1)])
def test_attention_by_products_is_attention(lengths: tuple[int, ...]) -> None:
    """What bf16 batches take the place of SDPA with, in float64; in bf16 the scores alone are rounded once more."""
    generator = torch.Generator().manual_seed(2)
    q = torch.randn(3, 2, 7, 8, dtype=torch.float64, generator=generator)
    k, v = torch.randn(2, 3, 2, 9, 8, dtype=torch.float64, generator=generator)
    hidden = torch.arange(9) >= torch.tensor(lengths)[:, None, None, None]
    mask = (
        torch.zeros(3, 1, 1, 9, dtype=torch.float64).masked_fill(hidden, float("-inf"))
        if any(hidden.flatten())
        else None
    )
    expected = F.scaled_dot_product_attention(q, k, v, mask)
    torch.testing.assert_close(by_products(q, k, v, mask), expected, atol=1e-12, rtol=0)
    half = [None if t is None else t.bfloat16() for t in (q, k, v, mask)]
    torch.testing.assert_close(by_products(*half).double(), expected, atol=0.04, rtol=0)


@pytest.mark.parametrize("name", MIXES)
def test_bf16_attention_stays_near(name: str) -> None:
    batch = make_batch(MIXES[name])
    generator = torch.Generator().manual_seed(1)
    q = torch.randn(len(batch.positions), 6, 8, generator=generator).bfloat16()
    keys, values = torch.randn(2, 4000 * 16, 3, 8, generator=generator).bfloat16()
    got = attend(q, keys, values, build_metadata(batch, "cpu", torch.bfloat16, 3, 8))
    expected = reference_attention(batch, q.double(), keys.double(), values.double())
    torch.testing.assert_close(got.double(), expected, atol=0.04, rtol=0)


def visible_slots(meta: AttentionMetadata) -> dict[int, list[int]]:
    """The slots each row of the batch sees, by the masks."""
    found: dict[int, list[int]] = {}
    for group in meta.groups:
        for b, rows in enumerate(group.rows.tolist()):
            for n, row in enumerate(rows):
                assert row not in found, "a row in two groups"
                seen = torch.ones(group.slots.shape[1], dtype=torch.bool)
                if group.mask is not None:
                    seen = group.mask[b, 0, n] == 0
                    assert bool((seen | (group.mask[b, 0, n] == float("-inf"))).all())
                found[row] = group.slots[b][seen].tolist()
    return found


@pytest.mark.parametrize("seed", range(20))
def test_metadata_is_its_definition(seed: int) -> None:
    rng = random.Random(seed)
    block_size = rng.choice([1, 8, 16])
    parts = [(rng.randrange(300), rng.choice([1, 1, 1, 4, 4, 40])) for _ in range(rng.randint(1, 12))]
    batch = make_batch(parts, block_size, seed)
    meta = build_metadata(batch, torch.device("cpu"), torch.float32, 2, 4)
    assert meta.positions.tolist() == list(batch.positions)
    assert meta.slots.tolist() == list(batch.slots)
    seen = visible_slots(meta)
    for span in batch.spans:
        for row in range(span.first_row, span.first_row + span.num_rows):
            assert seen[row] == slot_index(span.blocks, 0, batch.positions[row] + 1, block_size)
    assert seen.keys() == set(range(len(batch.positions)))


@pytest.mark.parametrize("name", MIXES)
def test_a_gather_touches_only_written_rows_of_its_own_sequence(name: str) -> None:
    batch = make_batch(MIXES[name])
    by_row = {span.first_row: span for span in batch.spans}
    for group in build_metadata(batch, "cpu", torch.float32, 2, 4).groups:
        for rows, slots in zip(group.rows.tolist(), group.slots.tolist(), strict=True):
            span = by_row[rows[0]]
            assert set(slots) == set(slot_index(span.blocks, 0, span.kv_len, batch.block_size))


def test_groups_share_row_count_and_length_bucket() -> None:
    decodes = [(SHORTEST_BUCKET - 2, 1), (3, 1), (200, 1), (255, 1), (256, 1)]
    batch = make_batch([*decodes, (20, 4), (30, 4), (0, 40), (0, 40)])
    shapes = [tuple(group.rows.shape) for group in build_metadata(batch, "cpu", torch.float32, 2, 4).groups]
    assert shapes == [(2, 1), (2, 1), (1, 1), (2, 4), (1, 40), (1, 40)]


def test_a_single_decode_needs_no_mask() -> None:
    (group,) = build_metadata(make_batch([(77, 1)]), "cpu", torch.float32, 2, 4).groups
    assert group.mask is None
    assert group.slots.shape == (1, 78)
