"""The one-request reference: the whole sequence at each step, no KV cache, no pages, no batch.

Written from the papers' formulas over the tensors of the checkpoint, one position and head at a time where that can
be afforded; it shares no attention, projection or rotation code with the engine.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from mini_infer.models.config import ModelConfig
from mini_infer.models.rope import inverse_frequencies
from mini_infer.models.transformer import Transformer


@torch.inference_mode()
def dense_logits(model: Transformer, config: ModelConfig, ids: Sequence[int]) -> Tensor:
    """Logits of every position, [T, vocab_size], in the model's precision."""
    weights = model.checkpoint_parameters()
    embedding = weights["model.embed_tokens.weight"]
    x = embedding[list(ids)]
    turn = _turns(config, len(ids), x.dtype)
    causal = torch.ones(len(ids), len(ids), dtype=torch.bool).tril()
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}."
        y = _norm(weights, prefix + "input_layernorm", x, config)
        x = x + _attention(weights, prefix + "self_attn.", config, y, turn, causal)
        y = _norm(weights, prefix + "post_attention_layernorm", x, config)
        gate, up = _linear(weights, prefix + "mlp.gate_proj", y), _linear(weights, prefix + "mlp.up_proj", y)
        x = x + _linear(weights, prefix + "mlp.down_proj", gate * torch.sigmoid(gate) * up)
    head = embedding if config.tie_word_embeddings else weights["lm_head.weight"]
    return _norm(weights, "model.norm", x, config) @ head.T


def dense_greedy(
    model: Transformer, config: ModelConfig, prompt: Sequence[int], max_tokens: int, stop_ids: Collection[int] = ()
) -> list[int]:
    """The greedy answer to `prompt`; a stop id that ends it is its last token."""
    ids = list(prompt)
    while len(ids) < len(prompt) + max_tokens:
        ids.append(int(dense_logits(model, config, ids)[-1].argmax()))
        if ids[-1] in stop_ids:
            break
    return ids[len(prompt) :]


def _linear(weights: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    y = x @ weights[f"{name}.weight"].T
    return y + weights[f"{name}.bias"] if f"{name}.bias" in weights else y


def _norm(weights: dict[str, Tensor], name: str, x: Tensor, config: ModelConfig) -> Tensor:
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return (wide / (wide.pow(2).mean(-1, keepdim=True) + config.rms_norm_eps).sqrt()).to(x.dtype) * weights[
        f"{name}.weight"
    ]


def _turns(config: ModelConfig, length: int, dtype: torch.dtype) -> Tensor:
    """Rotations as unit complex numbers times the attention factor, [length, head_dim / 2]."""
    wide = torch.promote_types(dtype, torch.float32)
    angles = torch.outer(torch.arange(length, dtype=wide), inverse_frequencies(config.rope, config.head_dim).to(wide))
    return torch.polar(torch.full_like(angles, config.rope.attention_factor), angles)


def _rotate(x: Tensor, turn: Tensor) -> Tensor:
    """x [T, head_dim] as complex numbers (i, i + head_dim / 2), each multiplied by its turn."""
    half = x.shape[-1] // 2
    wide = x.to(turn.real.dtype)
    turned = torch.complex(wide[:, :half].contiguous(), wide[:, half:].contiguous()) * turn
    return torch.cat((turned.real, turned.imag), dim=-1).to(x.dtype)


def _attention(
    weights: dict[str, Tensor], prefix: str, config: ModelConfig, x: Tensor, turn: Tensor, causal: Tensor
) -> Tensor:
    q, k, v = (_linear(weights, f"{prefix}{p}_proj", x).split(config.head_dim, dim=-1) for p in "qkv")
    if config.qk_norm:
        q = tuple(_norm(weights, f"{prefix}q_norm", head, config) for head in q)
        k = tuple(_norm(weights, f"{prefix}k_norm", head, config) for head in k)
    k = tuple(_rotate(head, turn) for head in k)
    outputs = []
    for index, head in enumerate(q):
        shared = index * config.num_kv_heads // config.num_heads
        scores = _rotate(head, turn) @ k[shared].T / config.head_dim**0.5
        outputs.append(torch.softmax(scores.masked_fill(~causal, float("-inf")), dim=-1) @ v[shared])
    return _linear(weights, f"{prefix}o_proj", torch.cat(outputs, dim=-1))
