"""Attention of one flat batch over paged keys and values.

`build_metadata` turns a `Batch` into index tensors once per step, on any device; every layer then reads the same ones.
Sequences with equally many query rows (decodes, verifies) and similar lengths share one gather and one product;
longer spans (prefill chunks) run one by one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from mini_infer.batch import Batch, Span

FOLD = 16
"""Spans of up to this many rows are batched, and the query heads that share a key head become query rows."""

HALF = (torch.bfloat16,)

SHORTEST_BUCKET = 128
"""Lengths up to this one share a bucket: a further group costs more than the padding it saves."""


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """b spans of n query rows each, over L rows of KV (the longest span's; shorter ones are padded)."""

    rows: Tensor  # [b, n] rows of the batch
    slots: Tensor  # [b, L] KV slots; padding points to the span's own first row
    mask: Tensor | None  # [b, 1, n, L], 0 where visible and -inf where not; None where every row sees all of L
    gather: (
        Tensor  # [b * kv_heads * L] the same slots for each head: rows of a layer's KV as [slots * kv_heads, head_dim]
    )
    room: Tensor  # [2, b, kv_heads, L, head_dim] where each layer in turn gathers its keys and values


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """What every layer needs to know of one batch of T rows."""

    positions: Tensor  # [T]
    slots: Tensor  # [T] where each row's keys and values are written
    groups: tuple[AttentionGroup, ...]  # together every row once; a single one holds them in order


def build_metadata(
    batch: Batch, device: torch.device | str, dtype: torch.dtype, kv_heads: int, head_dim: int
) -> AttentionMetadata:
    """Index tensors for `batch`, for a model of this precision and shape. Does nothing per position in Python."""
    shape = torch.empty(0, kv_heads, head_dim, dtype=dtype, device=device)
    positions = torch.tensor(batch.positions, device=device)
    grouped: dict[tuple[int, ...], list[Span]] = {}
    for span in sorted(batch.spans, key=lambda span: span.first_row):
        bucket = max(SHORTEST_BUCKET, 1 << (span.kv_len - 1).bit_length())
        key = (span.num_rows, bucket) if span.num_rows <= FOLD else (span.num_rows, bucket, span.first_row)
        grouped.setdefault(key, []).append(span)
    groups = tuple(_group(spans, positions, batch.block_size, shape) for spans in grouped.values())
    return AttentionMetadata(positions, torch.tensor(batch.slots, device=device), groups)


def _group(spans: list[Span], positions: Tensor, block_size: int, like: Tensor) -> AttentionGroup:
    """`like` [0, kv_heads, head_dim] gives the shape and type of keys and values."""
    device = positions.device
    longest = max(span.kv_len for span in spans)
    width = -(-longest // block_size)
    first_rows = torch.tensor([span.first_row for span in spans], device=device)
    rows = first_rows[:, None] + torch.arange(spans[0].num_rows, device=device)
    tables = [span.blocks[:width] + span.blocks[:1] * (width - len(span.blocks)) for span in spans]
    table = torch.tensor(tables, device=device)
    slots = (table[:, :, None] * block_size + torch.arange(block_size, device=device)).flatten(1)[:, :longest]
    mask = None
    if spans[0].num_rows > 1 or any(span.kv_len < longest for span in spans):
        # A masked row still takes part in the product, and 0 * NaN is NaN: padding must never show another's rows.
        columns = torch.arange(longest, device=device)
        lengths = torch.tensor([[span.kv_len] for span in spans], device=device)
        slots = torch.where(columns < lengths, slots, slots[:, :1])
        hidden = columns > positions[rows][:, None, :, None]
        mask = like.new_zeros(hidden.shape).masked_fill_(hidden, float("-inf"))
    kv_heads, head_dim = like.shape[1:]
    return AttentionGroup(
        rows, slots, mask, by_head(slots, kv_heads), like.new_empty(2, len(spans), kv_heads, longest, head_dim)
    )


def by_head(slots: Tensor, kv_heads: int) -> Tensor:
    """Rows of each head at `slots` [b, L] in a layer's KV as [slots * kv_heads, head_dim]: [b * kv_heads * L]."""
    return (slots[:, None] * kv_heads + torch.arange(kv_heads, device=slots.device)[:, None]).flatten()


def attend(q: Tensor, keys: Tensor, values: Tensor, meta: AttentionMetadata) -> Tensor:
    """Softmax attention of `q` [T, heads, head_dim] over `keys` and `values` [slots, kv_heads, head_dim].

    Returns [T, heads * head_dim]. The batch's own keys and values must have been written before.
    """
    if len(meta.groups) == 1:  # a batch of equals, such as decodes alone: its rows as they stand
        (group,) = meta.groups
        return _attend_group(q.view(*group.rows.shape, *q.shape[1:]), keys, values, group).reshape(q.shape[0], -1)
    out = torch.empty_like(q)
    for group in meta.groups:
        out[group.rows] = _attend_group(q[group.rows], keys, values, group)
    return out.flatten(1)


def _attend_group(q: Tensor, keys: Tensor, values: Tensor, group: AttentionGroup) -> Tensor:
    """`q` [b, n, heads, head_dim] over the rows of KV the group names; like `q`."""
    b, n, heads, head_dim = q.shape
    for rows, room in zip((keys, values), group.room, strict=True):
        torch.index_select(rows.view(-1, head_dim), 0, group.gather, out=room.view(-1, head_dim))
    k, v = group.room
    if n > FOLD:
        return F.scaled_dot_product_attention(q.transpose(1, 2), k, v, group.mask, enable_gqa=True).transpose(1, 2)
    kv_heads = k.shape[1]
    sharing = heads // kv_heads
    q = q.view(b, n, kv_heads, sharing, head_dim).permute(0, 2, 3, 1, 4).reshape(b, kv_heads, sharing * n, head_dim)
    mask = group.mask
    if mask is not None and n > 1:
        mask = mask.repeat(1, 1, sharing, 1)
    out = by_products(q, k, v, mask) if b > 1 and q.dtype in HALF else F.scaled_dot_product_attention(q, k, v, mask)
    return out.view(b, kv_heads, sharing, n, head_dim).permute(0, 3, 1, 2, 4).reshape(b, n, heads, head_dim)


def by_products(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Attention [b, kv_heads, n, head_dim] as two batched products with the softmax between them."""
    shape, scale = q.shape, q.shape[-1] ** -0.5
    q, k, v = q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)
    scores = torch.bmm(q, k.transpose(1, 2)).view(*shape[:3], -1)
    wide = torch.promote_types(q.dtype, torch.float32)
    scores = scores.to(wide).mul_(scale) if mask is None else torch.add(mask.to(wide), scores, alpha=scale)
    return torch.bmm(scores.softmax(-1).to(q.dtype).flatten(0, 1), v).view(shape)
