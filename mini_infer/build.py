"""From options to a running engine: find the checkpoint, load it, size the KV cache."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mini_infer.config import EMBEDDED, EngineConfig
from mini_infer.demo import TARGET
from mini_infer.errors import UserError
from mini_infer.progress import Progress
from mini_infer.sampling.params import SamplingParams

if TYPE_CHECKING:
    from mini_infer.engine import InferenceEngine
    from mini_infer.models.loader import Checkpoint

log = logging.getLogger("mini_infer")


def build_engine(options: EngineConfig, *, progress: bool | Progress = False) -> InferenceEngine:
    """Load the checkpoint that `options` name and build an engine with its tokenizer.

    `progress`: True shows bars on stderr; a callable is told (bytes read, bytes in all) of each file of weights, and
    nothing of downloads. Raises UserError for everything a user can cause: model, memory, device, options.
    """
    from mini_infer.engine import InferenceEngine
    from mini_infer.memory import device_memory
    from mini_infer.models.loader import inspect_checkpoint, load_weights
    from mini_infer.speculative.build import build_proposer, find_draft
    from mini_infer.text.tokenizer import Tokenizer

    device = set_up_device(options)
    folder = find_model(options, progress=progress is True)
    target = inspect_checkpoint(folder, options.dtype)
    try:  # what is wrong there must not fail every request later
        SamplingParams().with_defaults(target.config.generation)
    except UserError as error:
        raise UserError(f"{folder}: {error}") from None
    tokenizer = Tokenizer.from_folder(folder)
    if tokenizer.base_size > target.config.vocab_size:
        raise UserError(
            f"{folder / 'tokenizer.json'} has {tokenizer.base_size} tokens, but config.json a vocab_size of "
            f"{target.config.vocab_size}: it is the tokenizer of another model; fetch both files again"
        )
    draft_folder = find_draft(options, folder, tokenizer, progress=progress is True)
    draft = inspect_checkpoint(draft_folder, target.dtype) if draft_folder else None
    model = load_weights(target, device, progress)  # what takes long comes last: all else fails sooner
    draft_model = (load_weights(draft, device, progress), draft.config) if draft else None
    cache = plan_cache(options.resolve(device), [target, draft] if draft else [target], device_memory(device).free)
    proposer = build_proposer(options, target.config.vocab_size, draft_model, num_blocks=cache.blocks, device=device)
    return InferenceEngine(
        model, target.config, cache.blocks, device=device, options=options, tokenizer=tokenizer, proposer=proposer
    )


def find_model(options: EngineConfig, *, progress: bool = False) -> Path:
    """The folder of the checkpoint, fetched where it is a repository. Raises UserError where there is none."""
    from mini_infer.models.hub import resolve

    if options.model != EMBEDDED:
        return resolve(options.model, options.revision, progress=progress)
    if options.revision is not None:
        raise UserError(f"--revision is for repositories, and {EMBEDDED} comes with the package: drop it")
    return TARGET


def set_up_device(options: EngineConfig) -> str:
    """Set torch's threads and choose the device. Raises UserError where torch does not have it."""
    import torch

    from mini_infer.memory import pick_device

    if options.threads is not None:
        torch.set_num_threads(options.threads)
    return pick_device(options.device)


class CachePlan(NamedTuple):
    """The size of a KV cache."""

    blocks: int
    block_bytes: int  # of one block, over all layers of all models
    max_model_len: int


def plan_cache(options: EngineConfig, models: Sequence[Checkpoint], free_bytes: int | None) -> CachePlan:
    """The KV cache that resolved options give a target and its draft model in the memory left beside their weights.

    Raises UserError as `kv_block_count` does.
    """
    from mini_infer.cache.kv_store import KVStore
    from mini_infer.memory import kv_block_count

    context = models[0].config.max_position_embeddings
    if options.max_model_len is not None and options.max_model_len > context:
        log.warning(
            "--max-model-len %d is above the context of the checkpoint, which stays: %d tokens",
            options.max_model_len,
            context,
        )
    context = min(options.max_model_len or context, context)
    size = sum(
        KVStore.bytes_per_block(c.num_layers, options.block_size, c.num_kv_heads, c.head_dim, dtype)
        for c, dtype, _ in models
    )
    blocks = kv_block_count(options, block_bytes=size, free_bytes=free_bytes, max_model_len=context)
    return CachePlan(blocks, size, context)
