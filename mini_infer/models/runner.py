"""Runs one forward pass for a `Batch`: the only place where the model, its KV and a plan's ids meet."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mini_infer.batch import Batch
from mini_infer.cache.kv_store import KVStore
from mini_infer.models.attention import build_metadata
from mini_infer.models.config import ModelConfig
from mini_infer.models.transformer import Transformer


class ModelRunner:
    """Takes a model over: packs its weights for the hardware, and owns its KV.

    Which block belongs to whom is the caller's business.
    """

    def __init__(
        self,
        model: Transformer,
        config: ModelConfig,
        num_blocks: int,
        block_size: int,
        device: torch.device | str,
    ) -> None:
        model.pack()
        self.model = model
        self.config = config
        self.device = torch.device(device)
        self.kv = KVStore(
            config.num_layers, num_blocks, block_size, config.num_kv_heads, config.head_dim, model.dtype, self.device
        )

    @torch.inference_mode()
    def run(self, batch: Batch) -> Tensor:
        """Copy the blocks the batch names, then run it. Returns the hidden states of its `logit_rows`, [R, hidden]."""
        if batch.block_size != self.kv.block_size:
            raise ValueError(f"batch with blocks of {batch.block_size} rows, KV with blocks of {self.kv.block_size}")
        self.kv.copy(batch.copies)
        token_ids = torch.tensor(batch.token_ids, device=self.device)
        rows = torch.tensor(batch.logit_rows, dtype=torch.long, device=self.device)
        config = self.config
        meta = build_metadata(batch, self.device, self.model.dtype, config.num_kv_heads, config.head_dim)
        return self.model(token_ids, meta, self.kv, rows)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """[R, hidden] to [R, vocab_size]."""
        return self.model.logits(hidden)

    @torch.inference_mode()
    def finite(self, hidden: Tensor) -> list[bool]:
        """Of each row of [R, hidden]: whether it has no NaN and no infinity."""
        return torch.isfinite(hidden).all(-1).tolist()

    @torch.inference_mode()
    def zero_blocks(self, blocks: Sequence[int]) -> None:
        """Clear blocks that may hold NaN or Inf before they return to the pool."""
        self.kv.zero(blocks)
