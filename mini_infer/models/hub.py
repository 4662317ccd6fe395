"""From what the user calls a model, a folder or `owner/name` on the Hugging Face hub, to a folder on this machine."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
    folder = _snapshot(repository, revision, progress, DESCRIPTION)
    if not (folder / "config.json").exists():
        adapter = (folder / "adapter_config.json").exists()
        what = "is an adapter (LoRA), not a whole model" if adapter else "has no config.json (GGUF only?)"
        raise UserError(f"{repository} {what}; give a repository in the transformers layout with all its weights")
    ModelConfig.from_folder(folder)
    commit = folder.name  # the weights must be those of the same commit
    index = read_index(folder)
    wanted = sorted(set(index.values())) if index else [SINGLE_FILE]
    _snapshot(repository, commit, progress, wanted)
    if index is None and not (folder / SINGLE_FILE).exists():
        _snapshot(repository, commit, progress, ["*.safetensors"], ignore=["*/*"])
        wanted = [path.name for path in folder.glob("*.safetensors")]
    missing = next((file for file in wanted or ["*.safetensors"] if not (folder / file).exists()), None)
    if missing:
        raise UserError(
            f"{repository} has no {missing} weights in the cache, or none at all, and nothing else is supported; "
            "connect once to fetch them, or give another repository"
        )
    return folder


def _snapshot(
    repository: str, revision: str | None, progress: bool, patterns: list[str], ignore: list[str] | None = None
) -> Path:
    from huggingface_hub import snapshot_download  # slow to import, and not needed for folders

    try:
        with _bars(progress):
            folder = snapshot_download(repository, revision=revision, allow_patterns=patterns, ignore_patterns=ignore)
    except Exception as error:  # whatever HTTP library is beneath, its errors are not in our hands
        raise UserError(_explain(error, repository, revision)) from error
    return Path(folder)


@contextmanager
def _bars(show: bool) -> Iterator[None]:
    """Without `show`, no progress bars of the hub library in this block."""
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    if show or are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


def _explain(error: Exception, repository: str, revision: str | None) -> str:
    """One line for a failed fetch. The order matters: the library's errors derive from each other."""
    from huggingface_hub import constants, errors

    page = f"{constants.ENDPOINT}/{repository}"  # a mirror where HF_ENDPOINT names one
    log_in = "set HF_TOKEN (or run `hf auth login`)"
    absent = f"{repository} is not (wholly) in the cache, and"
    cause = error.__cause__ if isinstance(error, errors.LocalEntryNotFoundError) and error.__cause__ else error
    said = next((line.strip() for line in str(cause).splitlines() if line.strip()), type(cause).__name__)
    lines: tuple[tuple[type[Exception], str], ...] = (
        (errors.GatedRepoError, f"{repository} is gated: accept its terms at {page}, then {log_in}"),
        (errors.DisabledRepoError, f"{repository} has been disabled by its owner or the hub; give another repository"),
        (errors.RevisionNotFoundError, f"{repository} has no revision {revision!r}; see {page}/tree/main for those"),
        (
            errors.RepositoryNotFoundError,
            f"no folder and no repository {repository}: check the spelling, or, if it is private, {log_in}",
        ),
        (errors.HFValidationError, f"{repository}: not a name a repository can have: {said}"),
        (errors.OfflineModeIsEnabled, f"{absent} HF_HUB_OFFLINE forbids fetching it; unset it once, or give a folder"),
    )
    for kind, line in lines:
        if isinstance(cause, kind):
            return line
    if isinstance(cause, errors.HfHubHTTPError):
        status = cause.response.status_code
        if status in (401, 403):
            return f"{repository}: the hub refused access ({status}); {log_in}"
        advice = "wait a while and try again" if status == 429 or status >= 500 else "try again"
        return f"{repository}: the hub answered {status} ({said}); {advice}, or give a folder"
    if isinstance(error, errors.LocalEntryNotFoundError) or _is_connection_error(cause):
        return f"{absent} the hub cannot be reached; connect once to fetch it, or give a folder"
    if isinstance(cause, OSError) and cause.errno is not None:
        return f"{repository} cannot be stored: {cause.strerror}: {cause.filename or 'the cache folder'} (see HF_HOME)"
    return f"{repository} could not be fetched ({said}); what has arrived is kept, so try again"


def _is_connection_error(error: BaseException) -> bool:
    """Connection refused, name not resolved, time-out, proxy: by name, as httpx, httpx2 and requests each have own."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"ConnectionError", "TransportError", "TimeoutError", "Timeout", "RequestException"})
