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

SHORTEST_BUCKET = 128
"""Lengths up to this one share a bucket: a further group costs more than the padding it saves."""


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """b spans of n query rows each, over L rows of KV (the longest span's; shorter ones are padded)."""

    rows: Tensor  # [b, n] rows of the batch
    slots: Tensor  # [b, L] KV slots; padding points to the span's own first row
    mask: Tensor | None  # [b, 1, n, L], 0 where visible and -inf where not; None where every row sees all of L
    gather: Tensor  # [b * kv_heads * L] these slots head by head (`by_head`)
    room: Tensor  # [2, b, kv_heads, L, head_dim] where layer after layer gathers its keys and values


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
    positions = torch.tensor(batch.positions, device=device)
    grouped: dict[tuple[int, ...], list[Span]] = {}
    for span in sorted(batch.spans, key=lambda span: span.first_row):
        bucket = max(SHORTEST_BUCKET, 1 << (span.kv_len - 1).bit_length())
        key = (bucket, span.num_rows) if span.num_rows <= FOLD else (bucket, span.num_rows, span.first_row)
        grouped.setdefault(key, []).append(span)
    slots = max((len(part) * max(span.kv_len for span in part) for part in grouped.values()), default=0)
    room = torch.empty(2, slots, kv_heads, head_dim, dtype=dtype, device=device)
    groups = tuple(_group(part, positions, batch.block_size, room) for part in grouped.values())
    return AttentionMetadata(positions, torch.tensor(batch.slots, device=device), groups)


def _group(spans: list[Span], positions: Tensor, block_size: int, room: Tensor) -> AttentionGroup:
    """`room` [2, slots, kv_heads, head_dim] has space for the KV of this group; all groups use it in turn."""
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
        mask = room.new_zeros(hidden.shape).masked_fill_(hidden, float("-inf"))
    kv_heads, head_dim = room.shape[2:]
    room = room[:, : slots.numel()].view(2, len(spans), kv_heads, longest, head_dim)
    return AttentionGroup(rows, slots, mask, by_head(slots, kv_heads), room)


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
    k, v = group.room
    torch.index_select(keys.view(-1, head_dim), 0, group.gather, out=k.view(-1, head_dim))
    torch.index_select(values.view(-1, head_dim), 0, group.gather, out=v.view(-1, head_dim))
    kv_heads = k.shape[1]
    sharing = heads // kv_heads
    mask, products = group.mask, q.dtype == torch.bfloat16 and q.device.type == "cpu"
    if n > FOLD and not products:
        return F.scaled_dot_product_attention(q.transpose(1, 2), k, v, mask, enable_gqa=True).transpose(1, 2)
    if n > 1:
        q = q.view(b, n, kv_heads, sharing, head_dim).permute(0, 2, 3, 1, 4)
    q = q.reshape(b, kv_heads, sharing * n, head_dim)
    if products:
        out = by_products(q, k, v, mask)
    else:
        out = F.scaled_dot_product_attention(q, k, v, mask if mask is None or n == 1 else mask.repeat(1, 1, sharing, 1))
    if n > 1:
        out = out.view(b, kv_heads, sharing, n, head_dim).permute(0, 3, 1, 2, 4)
    return out.reshape(b, n, heads, head_dim)


def by_products(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Attention as two batched products with the softmax between them; like `q` [b, kv_heads, sharing * n, head_dim].

    `mask` [b, 1, n, L] is that of each query head. On a CPU's bf16 two to three times as fast as SDPA, whose tiles are
    too small for oneDNN; in exchange, each score is rounded to the model's precision once. All of bf16 takes this way
    or none: rounded otherwise alone than in a batch, answers would differ by more than a tie.
    """
    (b, kv_heads, rows, head_dim), length = q.shape, k.shape[2]
    q, k, v = q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)
    nothing = q.new_empty(()).expand(b * kv_heads, rows, length)  # times beta: read by nobody
    scores = torch.baddbmm(nothing, q, k.transpose(1, 2), beta=0, alpha=head_dim**-0.5)
    if mask is not None:
        n = mask.shape[2]
        first = length - n if b == 1 else 0  # what comes before the rows of a single span is seen by all of them
        scores.view(b, -1, n, length)[..., first:].add_(mask[..., first:])
    return torch.bmm(scores.softmax(-1), v).view(b, kv_heads, rows, head_dim)
