"""The pair as networks that can be trained: Qwen2 decoders whose parameters bear the names of a checkpoint."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CONTEXT = 1024
ROPE_THETA = 10000.0
EPS = 1e-6


@dataclass(frozen=True, slots=True)
class Shape:
    vocab_size: int
    hidden: int
    inner: int  # of the MLP
    layers: int
    heads: int
    kv_heads: int

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    def config(self) -> dict[str, Any]:
        """`config.json`."""
        return {
            "architectures": ["Qwen2ForCausalLM"],
            "model_type": "qwen2",
            "hidden_act": "silu",
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden,
            "intermediate_size": self.inner,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "max_position_embeddings": CONTEXT,
            "rms_norm_eps": EPS,
            "rope_theta": ROPE_THETA,
            "tie_word_embeddings": True,
            "use_sliding_window": False,
            "torch_dtype": "bfloat16",
        }


def target_shape(vocab_size: int) -> Shape:
    return Shape(vocab_size, hidden=256, inner=704, layers=6, heads=4, kv_heads=2)


def draft_shape(vocab_size: int) -> Shape:
    """One wide layer: a step costs by the number of its operations, and it guesses as well as two narrow ones did."""
    return Shape(vocab_size, hidden=192, inner=512, layers=1, heads=4, kv_heads=2)


@dataclass(frozen=True, slots=True)
class Rows:
    """A batch of B rows of T tokens, each holding several conversations behind one shared beginning.

    `segments` [B, T]: 0 for that beginning, from 1 on a conversation, -1 padding. A token sees the earlier tokens of
    its own segment and of segment 0. `targets` [B, T]: the next token of the same segment; `weights` [B, T]: what it
    counts in the loss, 0 where there is none.
    """

    tokens: Tensor
    positions: Tensor
    segments: Tensor
    targets: Tensor
    weights: Tensor

    def mask(self) -> Tensor:
        """[B, 1, T, T], true where row may look at column."""
        length = self.tokens.shape[1]
        row, column = self.segments[:, :, None], self.segments[:, None, :]
        causal = torch.ones(length, length, dtype=torch.bool).tril()
        padding = row == -1  # sees all before it: a row that sees nothing in a kernel's first stretch becomes NaN
        return (((row == column) | (column == 0) | padding) & causal)[:, None]


class _Norm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self.weight, EPS)


class _Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        kv = shape.kv_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.hidden, shape.hidden)
        self.k_proj = nn.Linear(shape.hidden, kv)
        self.v_proj = nn.Linear(shape.hidden, kv)
        self.o_proj = nn.Linear(shape.hidden, shape.hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            projection(x).view(batch, length, -1, self.shape.head_dim).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        group = self.shape.heads // self.shape.kv_heads
        q, k = _rotate(q, cos, sin), _rotate(k, cos, sin).repeat_interleave(group, dim=1)
        mixed = F.scaled_dot_product_attention(q, k, v.repeat_interleave(group, dim=1), attn_mask=mask)
        out: Tensor = self.o_proj(mixed.transpose(1, 2).reshape(batch, length, -1))
        return out


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos.to(x.dtype) + turned * sin.to(x.dtype)


class _MLP(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.inner, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.inner, bias=False)
        self.down_proj = nn.Linear(shape.inner, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class _Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = _Norm(shape.hidden)
        self.self_attn = _Attention(shape)
        self.post_attention_layernorm = _Norm(shape.hidden)
        self.mlp = _MLP(shape)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Net(nn.Module):
    """A Qwen2 decoder with its embedding tied to the head. `state_dict()` has the names of a checkpoint."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.model = nn.ModuleDict(
            {
                "embed_tokens": nn.Embedding(shape.vocab_size, shape.hidden),
                "layers": nn.ModuleList(_Layer(shape) for _ in range(shape.layers)),
                "norm": _Norm(shape.hidden),
            }
        )
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.dim() > 1:
                residual = "o_proj" in name or "down_proj" in name
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * shape.layers) if residual else 0.02)

    def forward(self, rows: Rows) -> Tensor:
        """Hidden states after the last norm, [B, T, hidden]."""
        half = self.shape.head_dim // 2
        frequencies = ROPE_THETA ** (-torch.arange(half, dtype=torch.float32) / half)
        angles = (rows.positions[..., None] * frequencies).repeat(1, 1, 2)[:, None]
        cos, sin, mask = angles.cos(), angles.sin(), rows.mask()
        x = self.model["embed_tokens"](rows.tokens)
        for layer in self.model["layers"]:  # type: ignore[attr-defined]
            x = layer(x, cos, sin, mask)
        out: Tensor = self.model["norm"](x)
        return out

    def logits(self, hidden: Tensor) -> Tensor:
        out: Tensor = F.linear(hidden, self.model["embed_tokens"].weight)  # type: ignore[arg-type]
        return out
