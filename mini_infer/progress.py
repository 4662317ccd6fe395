"""A progress bar on standard error, for whoever watches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[int, int], None]
"""Called with (done, in all)."""


@contextmanager
def bar(text: str, *, show: bool, of_bytes: bool = False) -> Iterator[Progress]:
    """The function that moves the bar. Without `show`, or where standard error is a file, it does nothing."""
    if not show:
        yield lambda done, total: None
        return
    from rich import progress  # slow to import
    from rich.console import Console

    console = Console(stderr=True)
    amount = progress.DownloadColumn() if of_bytes else progress.MofNCompleteColumn()
    columns = (progress.TextColumn(text), progress.BarColumn(), amount, progress.TimeRemainingColumn())
    watched = console.is_terminal or console.is_jupyter
    with progress.Progress(*columns, console=console, transient=True, disable=not watched) as shown:
        task = shown.add_task("", total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total)
