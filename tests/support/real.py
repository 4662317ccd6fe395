"""Finds the real checkpoints that tests marked `real` run on, or skips with the reason."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import pytest

QWEN = "qwen2.5-coder-0.5b-instruct"
SMOLLM = "smollm2-135m-instruct"
REPOSITORIES = {QWEN: "Qwen/Qwen2.5-Coder-0.5B-Instruct", SMOLLM: "HuggingFaceTB/SmolLM2-135M-Instruct"}


def models_folder() -> Path:
    """`$MINI_INFER_TEST_MODELS`, else `mini-infer-test-models` in the user's cache folder."""
    stated = os.environ.get("MINI_INFER_TEST_MODELS")
    if stated:
        return Path(stated).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "mini-infer-test-models"


def real_checkpoint(name: str) -> Path:
    """The folder of a real checkpoint; downloads it where `MINI_INFER_TEST_DOWNLOAD=1`; skips the test otherwise."""
    folder = models_folder() / name
    if (folder / "config.json").is_file():
        return folder
    if os.environ.get("MINI_INFER_TEST_DOWNLOAD") == "1":
        return _download(REPOSITORIES[name])
    pytest.skip(
        f"no {name} in {models_folder()}; set MINI_INFER_TEST_MODELS, or MINI_INFER_TEST_DOWNLOAD=1 to fetch it"
    )


@functools.cache
def _download(repository: str) -> Path:
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(repository, allow_patterns=["*.json", "*.jinja", "*.safetensors"]))
