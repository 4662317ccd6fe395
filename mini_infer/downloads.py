"""Downloads from the Hugging Face hub, and what is said of one that failed: one line, whatever library is beneath."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mini_infer.errors import UserError


def snapshot(
    repository: str, revision: str | None, progress: bool, patterns: list[str], ignore: list[str] | None = None
) -> Path:
    """The folder of a repository in the hub's cache, with those of its files that the patterns name fetched into it.

    What is cached is not fetched again, and without a connection the cache is used as it is. Raises UserError.
    """
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
