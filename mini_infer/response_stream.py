"""The road from the engine's thread to the event loop that asked: one queue of chunks per request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from mini_infer.results import Chunk, Collector


@dataclass(slots=True, eq=False)
class Request:
    """A submitted request: where its chunks go. `queue` belongs to `loop`."""

    loop: asyncio.AbstractEventLoop
    queue: asyncio.Queue[Chunk]
    collector: Collector  # its clock starts at the submission

    @property
    def request_id(self) -> str:
        return self.collector.request_id


class ResponseStream:
    """The chunks of one request, to be read with `async for` in the loop that submitted it.

    Leaving the loop early, closing or dropping it aborts the request. The last chunk carries the result.
    """

    def __init__(self, request: Request, abort: Callable[[str], None]) -> None:
        self._abort = abort
        self._request = request
        self._done = False

    @property
    def request_id(self) -> str:
        return self._request.request_id

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self._chunks()

    async def _chunks(self) -> AsyncIterator[Chunk]:
        try:
            while not self._done:
                chunk = await self._request.queue.get()
                self._done = chunk.result is not None
                yield chunk
        finally:
            self.close()

    def drain(self) -> list[Chunk]:
        """The chunks that have arrived and were not read, without waiting: for a reader that lags."""
        chunks = []
        while not self._request.queue.empty():
            chunks.append(self._request.queue.get_nowait())
            self._done = chunks[-1].result is not None
        return chunks

    def close(self) -> None:
        """Abort the request unless it has ended."""
        if not self._done:
            self._done = True
            self._abort(self.request_id)

    def __del__(self) -> None:
        self.close()


def put(loop: asyncio.AbstractEventLoop, chunks: list[tuple[Request, Chunk]]) -> bool:
    """Hand the chunks over in their loop; False where that is closed."""

    def put_all() -> None:
        for request, chunk in chunks:
            request.queue.put_nowait(chunk)

    try:
        loop.call_soon_threadsafe(put_all)
    except RuntimeError:
        return False
    return True
