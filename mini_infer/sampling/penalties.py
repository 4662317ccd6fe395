"""What changes single logits before the temperature does: penalties, bias, and the ban on ending too early.

Order: repetition penalty, presence and frequency penalties, `logit_bias`, `min_tokens`. The bias comes after the
penalties so that +100 forces a token however often it has occurred. Only the tokens concerned are read and written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from mini_infer.sampling.rows import RowContext
from mini_infer.sampling.tensors import widest_float


def edit_logits_(logits: Tensor, contexts: Sequence[RowContext]) -> None:
    """Edits `logits` [G, V] (contiguous) in place; row g belongs to `contexts[g]`, whose `row` is not read.

    Repetition penalty r: l / r where l > 0, l * r elsewhere, for every token of prompt and output (Keskar et al.
    2019). Presence and frequency penalties: l - presence * [count > 0] - frequency * count, counts in the output.
    """
    editing = [g for g, context in enumerate(contexts) if context.edits_logits]
    if not editing:
        return
    for edit in (_repetition_, _presence_and_frequency_, _bias_, _early_end_):
        edit(logits, contexts, editing)


def _repetition_(logits: Tensor, contexts: Sequence[RowContext], rows: list[int]) -> None:
    rows = [g for g in rows if contexts[g].shaping.repetition_penalty != 1.0]
    if not rows:
        return
    at, lengths = _places(logits, contexts, rows, lambda c: c.tokens)
    wide = widest_float(logits.device)
    penalty = torch.tensor([contexts[g].shaping.repetition_penalty for g in rows], dtype=wide, device=logits.device)
    penalty = penalty.repeat_interleave(lengths, output_size=at.numel())
    flat = logits.view(-1)
    old = flat[at].to(wide)
    limit = torch.finfo(logits.dtype).max / 4  # room for what is added later; keeps extreme penalties finite
    new = torch.where(old > 0, old / penalty, old * penalty).clamp(-limit, limit)
    flat[at] = torch.where(old.isinf(), old, new).to(logits.dtype)  # a repeated token gets the same value again


def _presence_and_frequency_(logits: Tensor, contexts: Sequence[RowContext], rows: list[int]) -> None:
    rows = [g for g in rows if contexts[g].shaping.presence_penalty or contexts[g].shaping.frequency_penalty]
    if not rows:
        return
    shapings = [contexts[g].shaping for g in rows]
    at, lengths = _places(logits, contexts, rows, lambda c: c.tokens[c.num_prompt :])
    amounts = torch.tensor([(s.presence_penalty, s.frequency_penalty) for s in shapings], dtype=logits.dtype)
    each = amounts.to(logits.device).repeat_interleave(lengths, dim=0, output_size=at.numel())
    flat = logits.view(-1)
    flat[at] = flat[at] - each[:, 0]  # once, however often the token occurs
    flat.index_add_(0, at, -each[:, 1])  # as often as it occurs


def _bias_(logits: Tensor, contexts: Sequence[RowContext], rows: list[int]) -> None:
    vocab_size = logits.shape[1]
    pairs = [(g * vocab_size + token, bias) for g in rows for token, bias in contexts[g].shaping.logit_bias]
    if pairs:
        at = torch.tensor([place for place, _ in pairs], device=logits.device)
        logits.view(-1).index_add_(0, at, logits.new_tensor([bias for _, bias in pairs]))


def _early_end_(logits: Tensor, contexts: Sequence[RowContext], rows: list[int]) -> None:
    vocab_size = logits.shape[1]
    banned = [
        g * vocab_size + token
        for g in rows
        if contexts[g].bans_end
        for token in contexts[g].stop_ids
        if token < vocab_size
    ]
    if banned:
        logits.view(-1)[torch.tensor(banned, device=logits.device)] = -torch.inf


def _places(
    logits: Tensor,
    contexts: Sequence[RowContext],
    rows: list[int],
    tokens_of: Callable[[RowContext], Sequence[int]],
) -> tuple[Tensor, Tensor]:
    """Indices into the flattened logits of the rows' tokens and drafts, and how many belong to each row.

    The rows of one verify share their token list, which is read once.
    """
    known: dict[tuple[int, int], Tensor] = {}
    pieces: list[Tensor] = []
    for g in rows:
        context = contexts[g]
        key = (id(context.tokens), context.num_prompt)
        if key not in known:
            known[key] = torch.tensor(tokens_of(context), dtype=torch.long)
        drafts = torch.tensor(context.drafts, dtype=torch.long)
        pieces.append(torch.cat((known[key], drafts)) + g * logits.shape[1])
    lengths = torch.tensor([piece.numel() for piece in pieces])
    return torch.cat(pieces).to(logits.device), lengths.to(logits.device)
