"""The server: a socket, uvicorn, and an orderly end.

uvicorn ends an application only after its last connection, so the draining happens before that: on the first signal
new requests are refused while those in flight are answered, for a bounded time; then the engine stops, what is left
gets an error frame, and uvicorn goes. A second signal ends everything at once.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from types import FrameType

import uvicorn

from mini_infer.api.app import create_app
from mini_infer.api.serving import Serving
from mini_infer.errors import UserError

log = logging.getLogger("mini_infer")

LAST_WORDS_S = 5
"""What connections get to send their last frames in."""

TICK_S = 0.1
"""uvicorn's own, from one `on_tick` to the next."""

KEEP_ALIVE_S = 90
"""Longer than clients keep an idle connection: none of them writes into one that closes."""


def bind(host: str, port: int) -> socket.socket:
    """A socket that is bound and does not listen yet. Raises UserError where the address is taken or not ours."""
    try:
        found = socket.getaddrinfo(host or None, port, 0, socket.SOCK_STREAM, 0, socket.AI_PASSIVE)
        # of both, the one that every client tries: `localhost` may be ::1 first
        family, kind, proto, _, address = min(found, key=lambda info: info[0] != socket.AF_INET)
        sock = socket.socket(family, kind, proto)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
        except OSError:
            sock.close()
            raise
    except OSError as error:
        raise UserError(
            f"cannot listen on {host} port {port} ({error.strerror}): give another --host or --port"
        ) from error
    return sock


def url_of(sock: socket.socket) -> str:
    """Where a client on this machine finds the server."""
    host, port = sock.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Server(uvicorn.Server):
    """uvicorn around one `Serving`. `on_ready` is called once the model is loaded."""

    def __init__(self, serving: Serving, on_ready: Callable[[], object] = lambda: None) -> None:
        super().__init__(
            uvicorn.Config(
                create_app(serving),
                log_config=None,
                access_log=False,
                server_header=False,
                ws="none",
                lifespan="off",  # nothing of ours hangs on it: `Serving` is started before and closed after
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=LAST_WORDS_S,
            )
        )
        self.serving = serving
        self.url = ""
        self.failure: BaseException | None = None  # what loading raised
        self._on_ready = on_ready
        self.loop: asyncio.AbstractEventLoop | None = None  # while it runs
        self._tasks: set[asyncio.Task[None]] = set()
        self._due = math.inf  # when the next tick is

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.loop = asyncio.get_running_loop()
        await super().startup(sockets)
        self._spawn(self._load())

    async def on_tick(self, counter: int) -> bool:
        self.serving.http.lagged(perf_counter() - self._due)
        ends = await super().on_tick(counter)
        self._due = perf_counter() + TICK_S
        return ends

    def _spawn(self, coroutine: object) -> None:
        task = asyncio.ensure_future(coroutine)  # type: ignore[call-overload]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _load(self) -> None:
        try:
            await self.serving.service.wait_ready()
        except Exception as error:
            self.failure = error
            self.should_exit = True
        else:
            self._on_ready()

    # --- the end ----------------------------------------------------------------------------------------------------

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal, on the main thread."""
        self.end()

    def end(self) -> None:
        """Begin to drain; a second time, end at once. May be called from any thread."""
        if self.loop is None or self.serving.draining:
            self.should_exit = self.force_exit = True
        else:
            self.serving.draining = True
            self.loop.call_soon_threadsafe(lambda: self._spawn(self._drain()))

    async def _drain(self) -> None:
        service = self.serving.service
        if service.is_ready:
            seconds = self.serving.options.drain_seconds
            log.info("shutting down: answers in flight have %g s; again to end at once", seconds)
            stopped = asyncio.Event()
            loop = asyncio.get_running_loop()

            def stop() -> None:
                service.stop(seconds)
                if not loop.is_closed():
                    loop.call_soon_threadsafe(stopped.set)

            threading.Thread(target=stop, daemon=True).start()  # a pool's thread would hold up a forced end
            await stopped.wait()
        self.should_exit = True


def serve(serving: Serving, sock: socket.socket, on_ready: Callable[[], object] = lambda: None) -> None:
    """Serve until a signal. Raises what loading raised, UserError among it."""
    server = Server(serving.start(), on_ready)
    try:
        server.run([sock])
    finally:
        sock.close()
        if serving.service.is_ready:
            serving.service.stop()
        serving.close()
    if server.failure is not None:
        raise server.failure


@contextmanager
def running(serving: Serving, *, ready: bool = True) -> Iterator[Server]:
    """A server on a thread of its own, for scripts and tests; it has a `url`. Raises what loading raised.

    `ready`: wait until the model is loaded.
    """
    sock = bind(serving.options.host, serving.options.port)
    server = Server(serving.start())
    server.url = url_of(sock)
    thread = threading.Thread(target=server.run, args=([sock],), name="mini-infer-http", daemon=True)
    thread.start()
    try:
        if ready:
            serving.service.engine  # noqa: B018  (waits, and raises)
        yield server
    finally:
        server.end()
        thread.join(serving.options.drain_seconds + LAST_WORDS_S + 15)
        sock.close()
        serving.service.stop()
        serving.close()
