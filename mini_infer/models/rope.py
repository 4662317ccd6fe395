"""Rotary position embedding (Su et al. 2021) and three ways to stretch it beyond the training's context.

Frequencies are computed in float32 exactly as `transformers` does: at position 2,000 a difference in the last bit of
a frequency would already show in the logits.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mini_infer.models.config import RopeConfig


def inverse_frequencies(rope: RopeConfig, head_dim: int, device: torch.device | str = "cpu") -> Tensor:
    """Radians per position of each pair of dimensions, [head_dim / 2] in float32."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim
    wavelengths = rope.theta**exponents  # in positions per radian
    if rope.kind == "yarn":
        return _yarn(rope, wavelengths, head_dim)
    frequencies = 1.0 / wavelengths
    if rope.kind == "linear":  # Chen et al. 2023, position interpolation
        return frequencies / rope.factor
    if rope.kind == "llama3":
        return _llama3(rope, frequencies)
    return frequencies


def _llama3(rope: RopeConfig, frequencies: Tensor) -> Tensor:
    """Llama 3.1: slow pairs are stretched, fast ones kept, those between blended by their turns per context."""
    context = rope.original_max_position_embeddings
    wavelengths = 2 * math.pi / frequencies  # in positions per turn
    keep = (context / wavelengths - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blended = (1 - keep) * frequencies / rope.factor + keep * frequencies
    slow, fast = wavelengths > context / rope.low_freq_factor, wavelengths < context / rope.high_freq_factor
    return torch.where(slow, frequencies / rope.factor, torch.where(fast, frequencies, blended))


def _yarn(rope: RopeConfig, wavelengths: Tensor, head_dim: int) -> Tensor:
    """Peng et al. 2023, "NTK-by-parts": blended by a ramp over the dimensions between two numbers of turns."""

    def dimension(turns: float) -> float:
        context = rope.original_max_position_embeddings
        return head_dim * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001  # a step in place of a ramp
    pairs = torch.arange(head_dim // 2, dtype=torch.float32, device=wavelengths.device)
    keep = 1 - ((pairs - low) / (high - low)).clamp(0, 1)
    return 1.0 / (rope.factor * wavelengths) * (1 - keep) + 1.0 / wavelengths * keep


def cos_sin(frequencies: Tensor, positions: Tensor, scale: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the angles at `positions` [T], each [T, 1, head_dim] (one for all heads) in `dtype`.

    `scale` is YaRN's attention factor, 1 for the others.
    """
    wide = torch.promote_types(dtype, torch.float32)
    angles = positions[:, None].to(wide) * frequencies.to(wide)
    angles = torch.cat((angles, angles), dim=-1)[:, None]
    return (angles.cos() * scale).to(dtype), (angles.sin() * scale).to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn pairs (i, i + head_dim / 2) of `x` [T, heads, head_dim] by their angles."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin
