"""The tensors behind the block ids: keys and values of every layer, in one allocation."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


class KVStore:
    """Keys and values as `data` [layers, 2, num_blocks, block_size, kv_heads, head_dim].

    Zeroed, because masked rows still take part in a product: memory as found may hold NaN, and 0 * NaN is NaN.
    Knows slots (block * block_size + offset) and nothing of who holds them.
    """

    def __init__(
        self,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> None:
        shape = (num_layers, 2, num_blocks, block_size, num_kv_heads, head_dim)
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.data = _zeros(shape, dtype, torch.device(device))
        flat = self.data.view(num_layers, 2, num_blocks * block_size, num_kv_heads, head_dim)
        self._layers = [(keys, values) for keys, values in flat]

    @staticmethod
    def bytes_per_block(num_layers: int, block_size: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
        return num_layers * 2 * block_size * num_kv_heads * head_dim * dtype.itemsize

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Views of one layer's keys and values by slot, each [num_blocks * block_size, kv_heads, head_dim]."""
        return self._layers[index]

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks (from, to) in every layer. All are read before any is written."""
        if pairs:
            sources, targets = torch.tensor(pairs, device=self.data.device).unbind(1)
            self.data[:, :, targets] = self.data[:, :, sources]

    def zero(self, blocks: Sequence[int]) -> None:
        """Clear whole blocks in every layer, as after a request that wrote NaN or Inf."""
        if blocks:
            self.data[:, :, torch.tensor(blocks, device=self.data.device)] = 0


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """On the CPU as pages the system zeroes at first touch: a large cache costs no time before it is used."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)).view(dtype).view(shape)
