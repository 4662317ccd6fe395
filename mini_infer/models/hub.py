"""From what the user calls a model, a folder or `owner/name` on the Hugging Face hub, to a folder on this machine."""

from __future__ import annotations

import os
import re
from pathlib import Path

from mini_infer.downloads import snapshot
from mini_infer.errors import UserError
from mini_infer.models.checkpoint import SINGLE_FILE, read_index
from mini_infer.models.config import ModelConfig

# Everything but the weights. Small: fetched first, so that an unsupported model is refused before its gigabytes come.
DESCRIPTION = [
    "config.json",
    "generation_config.json",
    "model.safetensors.index.json",
    "adapter_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "additional_chat_templates/*.jinja",
]
REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
LIKE_A_PATH = re.compile(r"[./~]|.:|.*\\|.*/.*/", re.DOTALL)
PAGE = re.compile(r"https?://[^/]+/([\w.-]+/[\w.-]+)")


def resolve(source: str | Path, revision: str | None = None, progress: bool = True) -> Path:
    """The folder of the model called `source`: an existing folder, else the repository `owner/name`, fetched.

    `revision` is a branch, tag or commit of the repository. Of a repository already in the cache only what is missing
    is fetched, and without a connection the cache is used as it is. `progress` shows bars on stderr, on a terminal.
    Raises UserError in one line: no such folder or repository, no access, no connection, unsupported model, full disk.
    """
    name = str(source).strip()
    place = os.path.expanduser(name)  # os.path, unlike pathlib, answers no where it may not look
    if os.path.isdir(place):
        if revision is not None:
            raise UserError(f"{place} is a folder here, and a revision ({revision}) is for repositories only; drop it")
        if not os.access(place, os.R_OK | os.X_OK):
            raise UserError(f"{place}: permission denied; make the folder readable, or give another")
        return Path(place)
    if os.path.exists(place):
        raise UserError(f"{place} is a file; give the folder that holds it and its config.json")
    if page := PAGE.match(name):
        raise UserError(f"{name} is a web address; give the repository as {page[1]}")
    if isinstance(source, Path) or LIKE_A_PATH.match(name):
        raise UserError(f"{name}: no such folder")
    if not REPOSITORY.fullmatch(name):
        raise UserError(f"{name!r}: no such folder, and not a repository, which is written owner/name")
    return _fetch(name, revision, progress)


def _fetch(repository: str, revision: str | None, progress: bool) -> Path:
    folder = snapshot(repository, revision, progress, DESCRIPTION)
    if not (folder / "config.json").exists():
        adapter = (folder / "adapter_config.json").exists()
        what = "is an adapter (LoRA), not a whole model" if adapter else "has no config.json (GGUF only?)"
        raise UserError(f"{repository} {what}; give a repository in the transformers layout with all its weights")
    ModelConfig.from_folder(folder)
    commit = folder.name  # the weights must be those of the same commit
    index = read_index(folder)
    wanted = sorted(set(index.values())) if index else [SINGLE_FILE]
    snapshot(repository, commit, progress, wanted)
    if index is None and not (folder / SINGLE_FILE).exists():
        snapshot(repository, commit, progress, ["*.safetensors"], ignore=["*/*"])
        wanted = [path.name for path in folder.glob("*.safetensors")]
    missing = next((file for file in wanted or ["*.safetensors"] if not (folder / file).exists()), None)
    if missing:
        raise UserError(
            f"{repository} has no {missing} weights in the cache, or none at all, and nothing else is supported; "
            "connect once to fetch them, or give another repository"
        )
    return folder
