"""The road from the engine's thread to the event loop that asked: one queue of chunks per stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from mini_infer.results import Chunk, Collector


@dataclass(slots=True, eq=False)
class Request:
    """A submitted request: where its chunks go. `queue` belongs to `loop`."""

    loop: asyncio.AbstractEventLoop
    queue: asyncio.Queue[Chunk | None]  # None wakes the reader of a stream that was closed
    collector: Collector  # its clock starts at the submission

    @property
    def request_id(self) -> str:
        return self.collector.request_id


class ResponseStream:
    """The chunks of requests that were submitted together, to be read in the loop that submitted them.

    Read with `async for` one by one, or with `read` as they arrive. Leaving the loop early, closing or dropping the
    stream aborts what has not ended. The last chunk of each request carries its result.
    """

    def __init__(self, requests: Sequence[Request], abort: Callable[[str], None]) -> None:
        self._abort = abort
        self._requests = requests
        self._queue = requests[0].queue  # all of them share it
        self._left = len(requests)  # those whose result was not read

    @property
    def request_id(self) -> str:
        """The engine's id of the (first) request."""
        return self._requests[0].request_id

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self._chunks()

    async def _chunks(self) -> AsyncIterator[Chunk]:
        try:
            while self._left:
                chunk = self._take(await self._queue.get())
                if chunk is not None:
                    yield chunk
        finally:
            self.close()

    async def read(self) -> list[Chunk]:
        """All chunks that have arrived, at least one; none once every request has ended or the stream was closed."""
        if not self._left:
            return []
        chunk = self._take(await self._queue.get())
        return [*([] if chunk is None else [chunk]), *self.drain()]

    def drain(self) -> list[Chunk]:
        """The chunks that have arrived and were not read, without waiting: for a reader that lags."""
        chunks = []
        while not self._queue.empty():
            chunk = self._take(self._queue.get_nowait())
            if chunk is not None:
                chunks.append(chunk)
        return chunks

    def _take(self, chunk: Chunk | None) -> Chunk | None:
        if chunk is not None and chunk.result is not None and self._left:
            self._left -= 1
        return chunk

    def close(self) -> None:
        """Abort what has not ended, and wake whoever reads."""
        if self._left:
            self._give_up()
            self._queue.put_nowait(None)

    def _give_up(self) -> None:
        self._left = 0
        for request in self._requests:
            self._abort(request.request_id)

    def __del__(self) -> None:  # in any thread
        if self._left:
            self._give_up()


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
