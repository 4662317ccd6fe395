"""From a folder of safetensors files to a running model: every tensor is streamed straight into its place.

Memory: the parameters are allocated untouched and filled largest first, each tensor through a file handle of its own.
A handle maps its file and the pages read through it count as resident until it is closed, so the process never holds
more than the weights plus one tensor.
"""

from __future__ import annotations

import logging
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from mini_infer.errors import UserError
from mini_infer.files import corrupt
from mini_infer.memory import pick_device, size_text
from mini_infer.models.checkpoint import stored_tensors
from mini_infer.models.config import ModelConfig
from mini_infer.models.hub import resolve
from mini_infer.models.transformer import Transformer
from mini_infer.progress import Progress, bar
from mini_infer.safetensors_header import StoredTensor

COMPUTE_DTYPES = {str(dtype)[6:]: dtype for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64)}
STORED_DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F64": torch.float64}
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
# Buffers that older writers saved and that follow from the configuration.
DERIVED = re.compile(r"(^|\.)rotary_emb\.(inv_freq|cos_cached|sin_cached)$")

logger = logging.getLogger(__name__)


def load_model_from_safetensors(
    source: str | Path,
    device: str | torch.device = "cpu",
    dtype: str | torch.dtype | None = None,
    *,
    revision: str | None = None,
    progress: bool | Progress = False,
) -> tuple[Transformer, ModelConfig]:
    """Load a model with its weights.

    Args:
        source: a folder, or `owner/name` on the Hugging Face hub (fetched on first use).
        device: where the weights are to lie: auto, cpu, cuda (or cuda:1, ...) or mps.
        dtype: what to compute in: auto (or None), bfloat16, float16, float32 or float64. Auto is what `config.json`
            says, and where it says nothing, the type that most bytes of the weights have. All parameters get it.
        revision: branch, tag or commit of the repository.
        progress: True shows progress bars on stderr; a callable is told (bytes read, bytes in all).

    Raises:
        UserError: one line naming the file, the tensor or the option at fault, and the remedy.
    """
    parse_dtype(dtype)  # both before gigabytes are fetched
    device = pick_device(device)
    checkpoint = inspect_checkpoint(resolve(source, revision, progress=progress is True), dtype)
    return load_weights(checkpoint, device, progress), checkpoint.config


class Checkpoint(NamedTuple):
    """A folder that is known to hold a whole model; nothing of it is loaded yet."""

    config: ModelConfig
    dtype: torch.dtype  # what the model computes in
    tensors: dict[str, StoredTensor]  # by parameter

    @property
    def nbytes(self) -> int:
        """Bytes of the weights once loaded."""
        return sum(math.prod(tensor.shape) for tensor in self.tensors.values()) * self.dtype.itemsize


def inspect_checkpoint(folder: Path, dtype: str | torch.dtype | None = None) -> Checkpoint:
    """What loading `folder` would make, from its configuration and the headers of its weights.

    Every tensor of the model is there, whole, of the right shape and a floating type; else raises UserError as
    `load_model_from_safetensors` does. Allocates nothing.
    """
    stored = {name: tensor for name, tensor in stored_tensors(folder).items() if not DERIVED.search(name)}
    config = ModelConfig.from_folder(folder, warn=True)
    compute = parse_dtype(dtype) or parse_dtype(config.dtype) or _prevailing_dtype(stored)
    stored, config = _settle_head(stored, config, compute)
    if config.num_layers > len(stored):  # laid out they would take minutes, even without memory
        raise UserError(
            f"{folder / 'config.json'}: num_hidden_layers is {config.num_layers}, but there are only {len(stored)} "
            "tensors; weights and configuration are not of one model"
        )
    parameters = Transformer(config, compute, "meta").checkpoint_parameters()
    _check(folder, stored, parameters)
    return Checkpoint(config, compute, {name: stored[name] for name in parameters})


def load_weights(checkpoint: Checkpoint, device: str | torch.device, progress: bool | Progress = False) -> Transformer:
    """The model of an inspected checkpoint. Arguments and errors as of `load_model_from_safetensors`."""
    config, dtype, stored = checkpoint
    device = pick_device(device)
    if device.startswith("mps") and dtype == torch.float64:
        raise UserError("float64 does not exist on mps; use float32, or the device cpu")
    total = sum(tensor.nbytes for tensor in stored.values())
    done = 0
    try:
        model = Transformer(config, dtype, device)
        parameters = model.checkpoint_parameters()
        with torch.no_grad(), bar("loading weights", show=progress is True, of_bytes=True) as show:
            report = progress if callable(progress) else show
            report(done, total)
            for name in sorted(parameters, key=lambda name: (-stored[name].nbytes, name)):
                with _opened(stored[name]) as file:
                    parameters[name].copy_(file.get_tensor(stored[name].name))
                done += stored[name].nbytes
                report(done, total)
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and "DefaultCPUAllocator" not in str(error):
            raise
        raise UserError(
            f"{device} has too little memory for {size_text(checkpoint.nbytes)} of weights in {str(dtype)[6:]}; "
            "use a smaller model or dtype, or another device"
        ) from error
    return model


def parse_dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    """The compute type called `dtype`; None for None and "auto". Raises UserError listing what there is."""
    if dtype is None or dtype == "auto":
        return None
    name = str(dtype).removeprefix("torch.")
    if name not in COMPUTE_DTYPES:
        raise UserError(f"dtype {name!r} is not supported; use auto, {', '.join(COMPUTE_DTYPES)}")
    return COMPUTE_DTYPES[name]


def _prevailing_dtype(stored: Mapping[str, StoredTensor]) -> torch.dtype:
    """The floating type that most bytes of the weights have. Norms kept in float32 do not outweigh bf16 matrices."""
    nbytes = Counter[str]()
    for tensor in stored.values():
        nbytes[tensor.dtype] += tensor.nbytes
    return STORED_DTYPES[max(STORED_DTYPES, key=lambda dtype: nbytes[dtype])]


def _settle_head(
    stored: dict[str, StoredTensor], config: ModelConfig, dtype: torch.dtype
) -> tuple[dict[str, StoredTensor], ModelConfig]:
    """Where the configuration ties the output head to the embedding, make the file's tensors fit that.

    Writers that store a shared tensor once may keep either name. Where both are stored and differ, the file is
    believed, not the configuration: that is what the reference implementation does.
    """
    if not config.tie_word_embeddings or HEAD not in stored:
        return stored, config
    head = stored[HEAD]
    shared = {EMBEDDING: head} | {name: tensor for name, tensor in stored.items() if name != HEAD}
    if shared[EMBEDDING] is head or _same(shared[EMBEDDING], head, dtype):
        return shared, config
    said = "%s: config.json says tie_word_embeddings, but %s differs from %s; the stored head is used"
    logger.warning(said, head.file, HEAD, EMBEDDING)
    return stored, replace(config, tie_word_embeddings=False)


def _same(one: StoredTensor, other: StoredTensor, dtype: torch.dtype, rows: int = 4096) -> bool:
    """Whether two matrices are equal in `dtype`, read a few rows at a time so that memory stays flat."""
    if one.shape != other.shape or len(one.shape) != 2:
        return False
    for start in range(0, one.shape[0], rows):
        with _opened(one) as a, _opened(other) as b:
            part = slice(start, start + rows)
            if not torch.equal(a.get_slice(one.name)[part].to(dtype), b.get_slice(other.name)[part].to(dtype)):
                return False
    return True


def _check(folder: Path, stored: Mapping[str, StoredTensor], parameters: Mapping[str, Tensor]) -> None:
    """Every parameter must be there, in a type and shape it can be copied from, and nothing else that matters."""
    missing = [name for name in parameters if name not in stored]
    present = {name: stored[name] for name in parameters if name in stored}
    surplus = [tensor for name, tensor in stored.items() if name not in parameters]
    for tensor in (*surplus, *present.values()):
        if tensor.dtype not in STORED_DTYPES:
            raise UserError(
                f"{tensor.file}: tensor {tensor.name} has the type {tensor.dtype}: quantised and integer weights are "
                f"not supported; give a checkpoint in {', '.join(STORED_DTYPES)}"
            )
    for name, tensor in present.items():
        if tensor.shape != (shape := tuple(parameters[name].shape)):
            raise UserError(
                f"{tensor.file}: tensor {tensor.name} has the shape {list(tensor.shape)}, but config.json asks for "
                f"{list(shape)}; weights and configuration are not of one model"
            )
    if missing:
        files = {str(tensor.file) for tensor in stored.values()}
        place = files.pop() if len(files) == 1 else f"{folder} ({len(files)} files)"
        advice = "set tie_word_embeddings in config.json if it is tied" if missing == [HEAD] else "fetch it again"
        instead = f", while it holds {surplus[0].name}, which config.json does not ask for" if surplus else ""
        raise UserError(f"{place}: tensor {missing[0]} is missing{_more(missing)}{instead}; {advice}")
    if surplus:
        raise UserError(
            f"{surplus[0].file}: tensor {surplus[0].name} is surplus{_more(surplus)}: config.json describes a model "
            "without it; weights and configuration are not of one model"
        )


def _more(items: Sequence[object]) -> str:
    return f" (and {len(items) - 1:,} more)" if len(items) > 1 else ""


@contextmanager
def _opened(tensor: StoredTensor) -> Iterator[Any]:
    """A fresh handle on the tensor's file. What goes wrong in it is told with the file and the tensor."""
    try:
        with safe_open(tensor.file, framework="pt", device="cpu") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise corrupt(tensor.file, f"tensor {tensor.name}: {error}") from error
