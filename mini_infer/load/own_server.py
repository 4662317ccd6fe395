"""A server of our own in a child process, from the options given to its orderly end."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from mini_infer.errors import UserError

_SERVING = re.compile(r"serving .* at (https?://\S+?)/v1\b")

END_S = 15.0
"""How long the child has to end before it is killed."""


class OwnServer:
    """A child that serves. `last_words` are the last lines it wrote to standard error."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.url = ""
        self.last_words: deque[str] = deque(maxlen=20)
        self._ready = asyncio.Event()

    async def read(self) -> None:
        """Until the child closes its standard error. A pipe that nobody reads would stop it in the end."""
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            said = line.decode(errors="replace").strip()
            if said:
                self.last_words.append(said)
            if (found := _SERVING.search(said)) is not None:
                self.url = found[1]
                self._ready.set()
        self._ready.set()

    async def wait_ready(self) -> None:
        """Raises UserError with the child's own words where it ends before it serves."""
        await self._ready.wait()
        if not self.url:
            await self.process.wait()
            words = self.last_words[-1].removeprefix("mini-infer: ") if self.last_words else "it said nothing"
            raise UserError(f"the server did not start: {words}")

    async def end(self) -> None:
        for ask in (self.process.send_signal, lambda _: self.process.kill()):
            with suppress(ProcessLookupError):
                ask(signal.SIGTERM)
            with suppress(TimeoutError):
                await asyncio.wait_for(self.process.wait(), END_S)
                return


@asynccontextmanager
async def own_server(options: Sequence[str], command: Sequence[str] = ()) -> AsyncIterator[OwnServer]:
    """`mini-infer serve` on a free port with these engine options, ready to be asked; ended in any case.

    It has a session of its own, so that Ctrl+C reaches us alone and it can answer until we have what we need.
    Raises UserError.
    """
    command = command or (sys.executable, "-m", "mini_infer", "serve")
    process = await asyncio.create_subprocess_exec(
        *command,
        *("--port", "0", "--host", "127.0.0.1", "--drain-seconds", "1", "--max-waiting", "100000"),
        *options,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    server = OwnServer(process)
    reader = asyncio.create_task(server.read())
    try:
        await server.wait_ready()
        yield server
    finally:
        await asyncio.shield(server.end())
        reader.cancel()
