"""From options to a running engine: find the checkpoint, load it, size the KV cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mini_infer.config import EngineConfig
from mini_infer.errors import UserError

if TYPE_CHECKING:
    from mini_infer.engine import InferenceEngine

NO_DEMO = "no model given: add --model with a folder or a Hugging Face repository (owner/name)"


def build_engine(options: EngineConfig, *, progress: bool = False) -> InferenceEngine:
    """Load the checkpoint that `options` name and build an engine with its tokenizer.

    `progress` shows bars on stderr. Raises UserError for everything a user can cause: model, memory, device, options.
    """
    if options.model == "demo":
        raise UserError(NO_DEMO)
    import torch

    from mini_infer.cache.kv_store import KVStore
    from mini_infer.engine import InferenceEngine
    from mini_infer.memory import device_memory, kv_block_count, pick_device
    from mini_infer.models.hub import resolve
    from mini_infer.models.loader import load_model_from_safetensors
    from mini_infer.speculative.build import build_proposer, find_draft
    from mini_infer.text.tokenizer import Tokenizer

    device = pick_device(options.device)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    folder = resolve(options.model, options.revision, progress=progress)
    tokenizer = Tokenizer.from_folder(folder)  # before the weights: it fails sooner
    draft_folder = find_draft(options, folder, tokenizer, progress=progress)
    model, config = load_model_from_safetensors(folder, device, options.dtype, progress=progress)
    draft = load_model_from_safetensors(draft_folder, device, model.dtype, progress=progress) if draft_folder else None
    configs = [config] if draft is None else [config, draft[1]]
    blocks = kv_block_count(
        options.resolve(device),
        block_bytes=sum(
            KVStore.bytes_per_block(c.num_layers, options.block_size, c.num_kv_heads, c.head_dim, model.dtype)
            for c in configs
        ),
        free_bytes=device_memory(device).free,
        max_model_len=min(options.max_model_len or config.max_position_embeddings, config.max_position_embeddings),
    )
    proposer = build_proposer(options, config.vocab_size, draft, num_blocks=blocks, device=device)
    return InferenceEngine(
        model, config, blocks, device=device, options=options, tokenizer=tokenizer, proposer=proposer
    )
