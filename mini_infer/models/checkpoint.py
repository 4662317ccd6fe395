"""What a checkpoint folder holds: which safetensors files count, and where each tensor lies in them. No torch here."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

from mini_infer.errors import UserError
from mini_infer.files import corrupt, read_json
from mini_infer.safetensors_header import StoredTensor, read_header

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
# What people have instead of safetensors.
FOREIGN_WEIGHTS = (".gguf", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".npz", ".onnx")
ONE_OF_SEVERAL = re.compile(r"-of-(?!0*1\.)\d+\.safetensors$")


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Every tensor of the checkpoint in `folder`: those the index names, or those of its single file.

    Only headers are read, and every file is held to its header: its length must be right to the byte.
    Raises UserError where there are no such weights, or where a file is missing, incomplete or corrupt.
    """
    index = read_index(folder)
    if index is None:
        return read_header(_single_file(folder))
    headers = {file: read_header(folder / file, INDEX_FILE) for file in sorted(set(index.values()))}
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
        instead += "" if names else ": the folder is empty"
        raise UserError(f"{folder}: no weights here ({instead}); give a folder or repository with *.safetensors files")
    if len(found) > 1 or ONE_OF_SEVERAL.search(found[0]):
        raise UserError(
            f"{folder}: {INDEX_FILE} is missing, and without it nobody can tell which of {', '.join(found[:3])}, ... "
            f"belong to the model; fetch the checkpoint again, or rename the right file {SINGLE_FILE}"
        )
    return folder / found[0]
