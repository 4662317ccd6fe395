"""What a checkpoint folder holds: which safetensors files count, and where each tensor lies in them. No torch here.

A safetensors file is an 8-byte little-endian header length, a JSON header (tensor name → dtype, shape, byte range in
the data), then the data, without a gap and without a rest (https://huggingface.co/docs/safetensors, "Format").
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from mini_infer.errors import UserError
from mini_infer.files import corrupt, read_json, unreadable

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
MAX_HEADER_BYTES = 100_000_000  # the format's own limit
DTYPE_BYTES = {"F16": 2, "BF16": 2, "F32": 4, "F64": 8}  # of one number; tensors of other types are never read
# What people have instead of safetensors.
FOREIGN_WEIGHTS = (".gguf", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".npz", ".onnx")
ONE_OF_SEVERAL = re.compile(r"-of-(?!0*1\.)\d+\.safetensors$")


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor as a file holds it. `dtype` is the format's word for it (BF16, F32, ...)."""

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int  # its first byte, from the start of the data
    nbytes: int


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Every tensor of the checkpoint in `folder`: those the index names, or those of its single file.

    Only headers are read, and every file is held to its header: its length must be right to the byte.
    Raises UserError where there are no such weights, or where a file is missing, incomplete or corrupt.
    """
    index = read_index(folder)
    if index is None:
        return read_header(_single_file(folder))
    headers = {file: read_header(folder / file) for file in sorted(set(index.values()))}
    for name, file in index.items():
        if name not in headers[file]:
            raise UserError(f"{folder / file}: tensor {name} is missing, though {INDEX_FILE} places it in this file")
    return {name: headers[file][name] for name, file in index.items()}


def read_index(folder: Path) -> dict[str, str] | None:
    """Tensor name → file name, from the index of a sharded checkpoint; None where the folder has no index."""
    path = folder / INDEX_FILE
    if not path.exists():
        return None
    files = read_json(path).get("weight_map")
    if not isinstance(files, dict) or not files or not all(isinstance(file, str) for file in files.values()):
        raise corrupt(path, "its weight_map places no tensors in files")
    for name, file in files.items():
        # An index comes with a download: it must not reach for files elsewhere on the machine.
        if PurePosixPath(file).is_absolute() or ".." in PurePosixPath(file).parts or "\\" in file:
            raise UserError(f"{path}: tensor {name} is placed in {file!r}, outside the checkpoint's folder")
        if not file.endswith(".safetensors"):
            raise UserError(f"{path}: tensor {name} is placed in {file!r}; only safetensors files are supported")
    return files


def read_header(path: Path) -> dict[str, StoredTensor]:
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
        why = "a link to nothing" if path.is_symlink() else f"missing, but {INDEX_FILE} names it"
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


def _single_file(folder: Path) -> Path:
    """The one safetensors file of an unsharded checkpoint: `model.safetensors`, else the only one there is."""
    standard = folder / SINGLE_FILE
    if standard.exists() or standard.is_symlink():
        return standard
    # Dot files are left by file managers and unfinished copies.
    names = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    if "adapter_config.json" in names:
        raise UserError(f"{folder}: an adapter (LoRA), not a whole model; merge it into its base model first")
    found = [name for name in names if name.endswith(".safetensors")]
    if not found:
        foreign = next((name for name in names if name.endswith(FOREIGN_WEIGHTS)), None)
        instead = f"only {foreign}, but only safetensors is supported" if foreign else f"no {SINGLE_FILE}"
        raise UserError(f"{folder}: no weights here ({instead}); give a folder or repository with *.safetensors files")
    if len(found) > 1 or ONE_OF_SEVERAL.search(found[0]):
        raise UserError(
            f"{folder}: {INDEX_FILE} is missing, and without it nobody can tell which of {', '.join(found[:3])}, ... "
            f"belong to the model; fetch the checkpoint again, or rename the right file {SINGLE_FILE}"
        )
    return folder / found[0]
