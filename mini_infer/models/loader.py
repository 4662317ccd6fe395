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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from mini_infer.errors import UserError
from mini_infer.files import corrupt
from mini_infer.models.checkpoint import StoredTensor, stored_tensors
from mini_infer.models.config import ModelConfig
from mini_infer.models.hub import resolve
from mini_infer.models.transformer import Transformer

Progress = Callable[[int, int], None]
"""Called with (bytes read so far, bytes in all), first with (0, all)."""

COMPUTE_DTYPES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
    "float64": torch.float64,
}
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
        device: where the weights are to lie.
        dtype: what to compute in: auto (or None), bfloat16, float16, float32 or float64. Auto is what `config.json`
            says, and where it says nothing, the type that most bytes of the weights have. All parameters get this one
            type.
        revision: branch, tag or commit of the repository.
        progress: True shows progress bars on stderr; a callable is told (bytes read, bytes in all).

    Raises:
        UserError: one line naming the file, the tensor or the option at fault, and the remedy.
    """
    explicit, where = parse_dtype(dtype), _device(device)  # before gigabytes are fetched
    folder = resolve(source, revision, progress=progress is True)
    config, compute, stored = inspect_checkpoint(folder, explicit)
    if where.type == "mps" and compute == torch.float64:
        raise UserError("float64 does not exist on mps; use float32, or the device cpu")
    with _memory_errors(where, compute, stored):
        model = Transformer(config, compute, where)
        with _report(progress) as report:
            _fill(model.checkpoint_parameters(), stored, report)
    return model, config


def inspect_checkpoint(
    folder: Path, dtype: str | torch.dtype | None = None
) -> tuple[ModelConfig, torch.dtype, dict[str, StoredTensor]]:
    """What loading `folder` would make: the model's configuration, the type it computes in, the tensors by parameter.

    Reads the configuration and the headers of the weights, and checks that every tensor of the model is there, whole,
    of the right shape and a floating type. Raises UserError as `load_model_from_safetensors` does; allocates nothing.
    """
    stored = stored_tensors(folder)
    config = ModelConfig.from_folder(folder)
    compute = parse_dtype(dtype) or parse_dtype(config.dtype) or _prevailing_dtype(stored)
    stored, config = _settle_head(stored, config, compute)
    parameters = Transformer(config, compute, "meta").checkpoint_parameters()
    _check(folder, stored, parameters, config.tie_word_embeddings)
    return config, compute, {name: stored[name] for name in parameters}


def parse_dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    """The compute type called `dtype`; None for None and "auto". Raises UserError listing what there is."""
    if dtype is None or dtype == "auto":
        return None
    name = str(dtype).removeprefix("torch.")
    if name not in COMPUTE_DTYPES:
        raise UserError(f"dtype {name!r} is not supported; use auto, {', '.join(COMPUTE_DTYPES)}")
    return COMPUTE_DTYPES[name]


def _device(device: str | torch.device) -> torch.device:
    try:
        where = torch.device(device)
    except RuntimeError as error:
        raise UserError(f"device {device!r} is unknown; use cpu, cuda or mps") from error
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not available.get(where.type, False):
        raise UserError(f"device {where} is not available to this torch ({torch.__version__}); use cpu")
    if where.type == "cuda" and (where.index or 0) >= torch.cuda.device_count():
        raise UserError(f"device {where} is not there; this machine has {torch.cuda.device_count()} CUDA device(s)")
    return where


def _prevailing_dtype(stored: Mapping[str, StoredTensor]) -> torch.dtype:
    """The floating type that most bytes of the weights have. Norms kept in float32 do not outweigh bf16 matrices."""
    nbytes: Counter[str] = Counter()
    for tensor in stored.values():
        if tensor.dtype in STORED_DTYPES:
            nbytes[tensor.dtype] += tensor.nbytes
    return STORED_DTYPES[nbytes.most_common(1)[0][0]] if nbytes else torch.float32


def _settle_head(
    stored: dict[str, StoredTensor], config: ModelConfig, dtype: torch.dtype
) -> tuple[dict[str, StoredTensor], ModelConfig]:
    """Where the configuration ties the output head to the embedding, make the file's tensors fit that.

    Writers that store a shared tensor once may keep either name. Where both are stored and differ, the file is
    believed, not the configuration: that is what the reference implementation does.
    """
    if not config.tie_word_embeddings or HEAD not in stored:
        return stored, config
    if EMBEDDING not in stored:
        return {**stored, EMBEDDING: stored[HEAD]}, config
    if _same(stored[HEAD], stored[EMBEDDING], dtype):
        return stored, config
    logger.warning(
        "%s: config.json says tie_word_embeddings, but %s differs from %s; the stored head is used",
        stored[HEAD].file,
        HEAD,
        EMBEDDING,
    )
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


def _check(folder: Path, stored: Mapping[str, StoredTensor], parameters: Mapping[str, Tensor], tied: bool) -> None:
    """Every parameter must be there, in a type and shape it can be copied from, and nothing else that matters."""
    surplus = [
        tensor
        for name, tensor in stored.items()
        if name not in parameters and not DERIVED.search(name) and not (tied and name == HEAD)
    ]
    missing = [name for name in parameters if name not in stored]
    for tensor in [*surplus, *(stored[name] for name in parameters if name in stored)]:
        if tensor.dtype not in STORED_DTYPES:
            raise UserError(
                f"{tensor.file}: tensor {tensor.name} has the type {tensor.dtype}: quantised and integer weights are "
                f"not supported; give a checkpoint in {', '.join(STORED_DTYPES)}"
            )
    for name, parameter in parameters.items():
        if name in stored and stored[name].shape != tuple(parameter.shape):
            raise UserError(
                f"{stored[name].file}: tensor {stored[name].name} has the shape {list(stored[name].shape)}, but "
                f"config.json asks for {list(parameter.shape)}; weights and configuration are not of one model"
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


def _fill(parameters: Mapping[str, Tensor], stored: Mapping[str, StoredTensor], report: Progress) -> None:
    """Copy every tensor into its parameter, converting its type on the way, largest first."""
    total = sum(tensor.nbytes for tensor in stored.values())
    done = 0
    report(done, total)
    with torch.no_grad():
        for name in sorted(parameters, key=lambda name: (-stored[name].nbytes, name)):
            tensor = stored[name]
            with _opened(tensor) as file:
                parameters[name].copy_(file.get_tensor(tensor.name))
            done += tensor.nbytes
            report(done, total)


@contextmanager
def _opened(tensor: StoredTensor) -> Iterator[Any]:
    """A fresh handle on the tensor's file. What goes wrong in it is told with the file and the tensor."""
    try:
        with safe_open(tensor.file, framework="pt", device="cpu") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise corrupt(tensor.file, f"tensor {tensor.name}: {error}") from error


@contextmanager
def _memory_errors(where: torch.device, dtype: torch.dtype, stored: Mapping[str, StoredTensor]) -> Iterator[None]:
    try:
        yield
    except (torch.OutOfMemoryError, RuntimeError) as error:
        if not isinstance(error, torch.OutOfMemoryError) and "DefaultCPUAllocator" not in str(error):
            raise
        needed = sum(math.prod(tensor.shape) for tensor in stored.values()) * dtype.itemsize
        raise UserError(
            f"{where} has too little memory for {needed / 1e9:.2f} GB of weights in {str(dtype)[6:]}; "
            "use a smaller model or dtype, or another device"
        ) from error


@contextmanager
def _report(progress: bool | Progress) -> Iterator[Progress]:
    """What to call with (done, total): the caller's own function, a bar on stderr, or nothing."""
    if callable(progress):
        yield progress
        return
    if not progress:
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    columns = (TextColumn("loading weights"), BarColumn(), DownloadColumn())
    with Bar(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("")
        yield lambda done, total: bar.update(task, completed=done, total=total)
