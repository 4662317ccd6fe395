"""Which device is taken, how much memory it has, and how many KV blocks of it a model gets."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mini_infer.config import EngineConfig
from mini_infer.errors import UserError

if TYPE_CHECKING:
    import torch

MOST_BLOCKS = 4096
"""KV blocks taken by default where memory and contexts would allow more: 65,536 tokens in blocks of 16."""

_MEMINFO = Path("/proc/meminfo")
_CGROUPS = (  # (limit, use) of a container, by version of the interface
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"), Path("/sys/fs/cgroup/memory/memory.usage_in_bytes")),
)


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of a device: all of it, and what is free now (None where the system does not say)."""

    total: int
    free: int | None


def pick_device(device: str | torch.device) -> str:
    """The device behind --device: "cpu", "cuda", "cuda:1" or "mps". Raises UserError where torch does not have it."""
    import torch

    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if device == "auto":
        return next(kind for kind, available in there.items() if available)
    try:
        kind, index = torch.device(device).type, torch.device(device).index or 0
    except (RuntimeError, TypeError):
        kind, index = "", 0
    if not there.get(kind, False) or (kind == "cuda" and index >= torch.cuda.device_count()):
        count = torch.cuda.device_count()
        raise UserError(
            f"--device {device} is not available to this torch ({torch.__version__}, {count} CUDA devices): "
            "use --device cpu"
        )
    return str(device)


def device_memory(device_type: str) -> Memory:
    """The memory that tensors of this device live in ("cpu", "cuda", "mps"); a container's limit counts."""
    if device_type == "cuda":
        import torch

        free, total = torch.cuda.mem_get_info()
        return Memory(total, free)
    return _host_memory()  # an Apple GPU shares the host's


def _host_memory() -> Memory:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    available = _field(_MEMINFO, "MemAvailable:")  # without swapping, by Linux's own estimate
    free = None if available is None else 1024 * available
    for limit_file, used_file in _CGROUPS:
        limit, used = _number(limit_file), _number(used_file)
        if limit is not None and used is not None and limit < total:
            # Pages of files that were read count as used, and are given up on demand.
            cached = _field(used_file.with_name("memory.stat"), "total_inactive_file", "inactive_file") or 0
            total, left = limit, limit - used + cached
            free = left if free is None else min(left, free)
    return Memory(total, free)


def _field(file: Path, *names: str) -> int | None:
    """The number behind the first of the names in a file of lines with a name and a number."""
    try:
        fields = dict(line.split()[:2] for line in file.read_text().splitlines())
    except (OSError, ValueError):
        return None
    return next((int(fields[name]) for name in names if name in fields), None)


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # no such file, or the word max
        return None


def kv_block_count(options: EngineConfig, *, block_bytes: int, free_bytes: int | None, max_model_len: int) -> int:
    """How many blocks the KV cache gets: what the options say, else the default they document.

    `options` is resolved; `block_bytes` are those of one block over all layers, K and V; `free_bytes` is the memory
    left once the weights are loaded (None: unknown, no limit by it). Raises UserError where that is too little, and
    where --kv-memory is.
    """
    if options.max_running is None:
        raise ValueError("kv_block_count needs resolved options")
    if options.kv_blocks is not None:
        asked, blocks = f"--kv-blocks {options.kv_blocks}", options.kv_blocks
    elif options.kv_memory is not None:
        asked, blocks = f"--kv-memory {options.kv_memory}", options.kv_memory // block_bytes
        if blocks < 2:
            raise UserError(f"{asked} is too small: two blocks need {2 * block_bytes} bytes")
    else:
        wanted = options.max_running * -(-max_model_len // options.block_size)
        affordable = MOST_BLOCKS if free_bytes is None else free_bytes // 4 // block_bytes
        asked, blocks = "the KV cache", max(2, min(MOST_BLOCKS, wanted, affordable))
    if free_bytes is not None and blocks * block_bytes > free_bytes:
        needed, free = size_text(blocks * block_bytes), size_text(free_bytes)
        raise UserError(f"{asked} needs {needed} of memory beside the weights, but {free} are free: ask for less")
    return blocks


def device_of(model_device: torch.device, asked: str | torch.device | None) -> torch.device:
    """Where an engine lives: with the weights of its model. Raises UserError where something else was `asked` for."""
    import torch

    if asked is None or asked == "auto":
        return model_device
    device = torch.device(pick_device(asked))
    if device.type != model_device.type:
        raise UserError(
            f"the engine is to run on {device}, but the model's weights are on {model_device}: load it there"
        )
    return device


def pool_blocks(options: EngineConfig, block_bytes: int, device_type: str, default: int) -> int:
    """The blocks of an engine that is built by hand: those its options say, else `default`.

    Raises UserError where they are not to be had.
    """
    if options.kv_blocks is None and options.kv_memory is None:
        options = replace(options, kv_blocks=default)
    free = device_memory(device_type).free
    return kv_block_count(options.resolve(device_type), block_bytes=block_bytes, free_bytes=free, max_model_len=0)


def size_text(size: int) -> str:
    """Bytes for people, three digits in powers of 1000: 3.81 GB, 25.3 GB, 953 MB."""
    for unit, each in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= each:
            amount = size / each
            return f"{amount:.{2 if amount < 10 else 1 if amount < 100 else 0}f} {unit}"
    return f"{size} B"
