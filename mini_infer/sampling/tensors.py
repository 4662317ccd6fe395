"""Three small things every part of the sampler does with tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor


def widest_float(device: torch.device) -> torch.dtype:
    """float64 where the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


def take_rows(tensor: Tensor, rows: Sequence[int]) -> Tensor:
    """`tensor[rows]` along the first dimension, without a copy where that is all of it in order."""
    if list(rows) == list(range(tensor.shape[0])):
        return tensor
    return tensor[torch.tensor(rows, dtype=torch.long).to(tensor.device)]


def column(values: Iterable[float], like: Tensor) -> Tensor:
    """One value per row, [G, 1], with the type and device of `like`."""
    return torch.tensor(list(values), dtype=like.dtype, device=like.device)[:, None]
