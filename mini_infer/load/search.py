"""The largest size that still keeps a promise."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

MOST = 4096


async def search(
    keeps: Callable[[int], Awaitable[bool | None]], first: int = 1, most: int = MOST
) -> tuple[int | None, int | None]:
    """(largest size found to keep it, smallest found to break it).

    Doubles from `first` until it breaks, then bisects; down to 1 where `first` breaks already. `keeps` returns None
    to end the search at once.
    """
    kept: int | None = None
    broken: int | None = None
    size = first
    while True:
        answer = await keeps(size)
        if answer is None:
            return kept, broken
        if answer:
            kept = size
        else:
            broken = size
        if broken is None:
            if size >= most:
                return kept, None
            size = min(2 * size, most)
        elif broken - (kept or 0) <= max(1, (kept or 0) // 16):
            return kept, broken
        else:
            size = ((kept or 0) + broken) // 2
