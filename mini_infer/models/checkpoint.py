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

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
MAX_HEADER_BYTES = 100_000_000  # the format's own limit
DTYPE_BYTES = {
    **dict.fromkeys(("BOOL", "I8", "U8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 1),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 2),
    **dict.fromkeys(("I32", "U32", "F32"), 4),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 8),
}
# What people have instead of safetensors, and what to say of it.
FOREIGN_WEIGHTS = ("*.gguf", "*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack", "*.npz", "*.onnx")
SHARD_NAME = re.compile(r"-\d+-of-0*(\d+)\.safetensors$")


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor as a file holds it. `dtype` is the format's word for it (BF16, F32, ...)."""

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]
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
    try:
        weight_map = json.loads(path.read_bytes())["weight_map"]
        names = {str(name): str(file) for name, file in weight_map.items()}
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{path}: incomplete or corrupt: not a JSON object with a weight_map") from error
    if not names:
        raise UserError(f"{path}: incomplete or corrupt: its weight_map is empty")
    for name, file in names.items():
        # An index comes with a download: it must not reach for files elsewhere on the machine.
        if PurePosixPath(file).is_absolute() or ".." in PurePosixPath(file).parts or "\\" in file:
            raise UserError(f"{path}: tensor {name} is placed in {file!r}, outside the checkpoint's folder")
        if not file.endswith(".safetensors"):
            raise UserError(f"{path}: tensor {name} is placed in {file!r}; only safetensors files are supported")
    return names


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
        raise UserError(f"{path}: the file is {why}; fetch the checkpoint again") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    if not fits:
        raise _corrupt(path, _what_it_is(raw, size))
    try:
        header = json.loads(raw.decode("utf-8"))
        entries = {name: _entry(name, path, entry) for name, entry in header.items() if name != "__metadata__"}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _corrupt(path, "its header is not a safetensors header") from error
    _check_ranges(path, entries.values(), size - 8 - length)
    return {name: tensor for name, (tensor, _) in entries.items()}


def _entry(name: str, path: Path, entry: dict[str, Any]) -> tuple[StoredTensor, int]:
    """One header entry, and where its bytes begin. ValueError, KeyError, TypeError where it is malformed."""
    shape = tuple(entry["shape"])
    begin, end = entry["data_offsets"]
    if not all(isinstance(number, int) and number >= 0 for number in (*shape, begin, end)):
        raise ValueError(f"tensor {name}: sizes are whole numbers")
    return StoredTensor(name, path, str(entry["dtype"]), shape, end - begin), begin


def _check_ranges(path: Path, entries: Iterable[tuple[StoredTensor, int]], data_bytes: int) -> None:
    """Tensors must lie end to end from the first byte of the data to the last, each as long as its shape says."""
    position = 0
    for tensor, begin in sorted(entries, key=lambda entry: (entry[1], entry[1] + entry[0].nbytes)):
        width = DTYPE_BYTES.get(tensor.dtype)
        if begin != position or (width is not None and tensor.nbytes != width * math.prod(tensor.shape)):
            raise _corrupt(path, f"tensor {tensor.name} does not lie where its header says")
        position += tensor.nbytes
        if position > data_bytes:
            missing = f"{position - data_bytes:,} of {tensor.nbytes:,} bytes" if begin < data_bytes else "all bytes"
            raise _corrupt(path, f"the file ends early, {missing} of tensor {tensor.name} are missing")
    if position < data_bytes:
        raise _corrupt(path, f"{data_bytes - position:,} bytes follow the last tensor")


def _what_it_is(start: bytes, size: int) -> str:
    if start.startswith(b"version https://git-lfs"):
        return "a large-file-storage pointer, not the weights it stands for; run `git lfs pull`"
    if start.lstrip()[:1] == b"<":
        return "a web page, not weights"
    if start.startswith(b"PK\x03\x04"):
        return "a zip archive (a PyTorch file?), not weights"
    if start.startswith(b"GGUF"):
        return "a GGUF file under another name; only safetensors is supported"
    return f"of its {size:,} bytes the first are not those of a safetensors file, or the rest is missing"


def _corrupt(path: Path, why: str) -> UserError:
    return UserError(f"{path}: incomplete or corrupt safetensors file: {why}; fetch it again")


def _single_file(folder: Path) -> Path:
    """The one safetensors file of an unsharded checkpoint: `model.safetensors`, else the only one there is."""
    standard = folder / SINGLE_FILE
    if standard.exists() or standard.is_symlink():
        return standard
    try:
        # Dot files are left by file managers and unfinished copies.
        found = sorted(path for path in folder.glob("*.safetensors") if not path.name.startswith("."))
        foreign = sorted(path.name for pattern in FOREIGN_WEIGHTS for path in folder.glob(pattern))
        adapter = (folder / "adapter_config.json").exists()
    except OSError as error:
        raise UserError(f"{folder}: cannot be read: {error.strerror}") from error
    if adapter:
        raise UserError(f"{folder}: an adapter (LoRA), not a whole model; merge it into its base model first")
    if not found:
        instead = f"only {foreign[0]}, but only safetensors is supported" if foreign else f"no {SINGLE_FILE}"
        raise UserError(f"{folder}: no weights here ({instead}); give a folder or repository with *.safetensors files")
    shard = next((match for path in found if (match := SHARD_NAME.search(path.name)) and int(match[1]) > 1), None)
    if shard is not None:
        raise UserError(
            f"{folder}: {INDEX_FILE} is missing, and without it the shards ({found[0].name}, ...) "
            "cannot be told from strays; fetch the checkpoint again"
        )
    if len(found) > 1:
        names = ", ".join(path.name for path in found[:3])
        raise UserError(
            f"{folder}: {len(found)} safetensors files ({names}, ...) and no {INDEX_FILE} to say which "
            f"belong to the model; rename the right one {SINGLE_FILE}"
        )
    return found[0]
