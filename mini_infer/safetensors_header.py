"""The header of a safetensors file: where each tensor lies in it, and whether the file is whole. No torch here.

A safetensors file is an 8-byte little-endian header length, a JSON header (tensor name → dtype, shape, byte range in
the data), then the data, without a gap and without a rest (https://huggingface.co/docs/safetensors, "Format").
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mini_infer.errors import UserError
from mini_infer.files import corrupt, unreadable

MAX_HEADER_BYTES = 100_000_000  # the format's own limit
DTYPE_BYTES = {"F16": 2, "BF16": 2, "F32": 4, "F64": 8}  # of one number; tensors of other types are never read


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor as a file holds it. `dtype` is the format's word for it (BF16, F32, ...)."""

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int  # its first byte, from the start of the data
    nbytes: int


def read_header(path: Path, named_by: str = "the checkpoint") -> dict[str, StoredTensor]:
    """The tensors of one safetensors file, checked against the size of the file.

    Raises UserError with the words "incomplete or corrupt" where the file is anything but whole.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(8)
            length = int.from_bytes(start, "little")
            fits = len(start) == 8 and length <= min(size - 8, MAX_HEADER_BYTES)
            raw = file.read(length) if fits else start + file.read(56)
    except FileNotFoundError as error:
        why = "a link to nothing" if path.is_symlink() else f"missing, but {named_by} names it"
        raise UserError(f"{path} is {why}; fetch the checkpoint again") from error
    except OSError as error:
        raise unreadable(path, error) from error
    if not fits:
        raise corrupt(path, f"of its {size:,} bytes the first are not those of a safetensors file", raw)
    try:
        header = json.loads(raw.decode("utf-8"))
        tensors = {name: _tensor(name, path, entry) for name, entry in header.items() if name != "__metadata__"}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise corrupt(path, "its header is not one of safetensors") from error
    _check_ranges(path, tensors.values(), size - 8 - length)
    return tensors


def _tensor(name: str, path: Path, entry: dict[str, Any]) -> StoredTensor:
    """One header entry. ValueError, KeyError, TypeError where it is malformed."""
    shape = tuple(entry["shape"])
    begin, end = entry["data_offsets"]
    if not all(isinstance(number, int) and number >= 0 for number in (*shape, begin, end)):
        raise ValueError(f"tensor {name}: sizes are whole numbers")
    return StoredTensor(name, path, str(entry["dtype"]), shape, begin, end - begin)


def _check_ranges(path: Path, tensors: Iterable[StoredTensor], data_bytes: int) -> None:
    """Tensors must lie end to end from the first byte of the data to the last, each as long as its shape says."""
    position = 0
    for tensor in sorted(tensors, key=lambda tensor: (tensor.begin, tensor.nbytes)):
        width = DTYPE_BYTES.get(tensor.dtype)
        if tensor.begin != position or (width is not None and tensor.nbytes != width * math.prod(tensor.shape)):
            raise corrupt(path, f"tensor {tensor.name} does not lie where its header says")
        position += tensor.nbytes
        if position > data_bytes:
            missing = f"{position - data_bytes:,} of {tensor.nbytes:,} bytes"
            raise corrupt(path, f"the file ends early, {missing} of tensor {tensor.name} are missing")
    if position < data_bytes:
        raise corrupt(path, f"{data_bytes - position:,} bytes follow the last tensor")
