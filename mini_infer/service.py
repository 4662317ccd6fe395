"""The engine on a thread of its own, for asyncio callers.

Callers put commands into one queue; the thread carries them out between steps, steps while there is work, and sleeps
on a condition otherwise. Results come back by one `call_soon_threadsafe` per step and event loop. Only the thread
touches the engine, so nothing in the engine is locked.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TypeVar

from mini_infer.engine import InferenceEngine
from mini_infer.errors import UserError
from mini_infer.observe.events import Finished, StepReport, Usage
from mini_infer.observe.metrics import step_start
from mini_infer.observe.sinks import Sink
from mini_infer.observe.state import EngineState
from mini_infer.response_stream import Request, ResponseStream, put
from mini_infer.results import Chunk, Collector, by_request, request_of
from mini_infer.sampling.params import SamplingParams
from mini_infer.waiting_room import check_room

log = logging.getLogger("mini_infer")

T = TypeVar("T")


class ServiceStopped(RuntimeError):
    """The service is stopping or has stopped, and takes no more requests."""


@dataclass(slots=True)
class _Control:
    """What the thread is told about stepping."""

    paused: bool = False
    until: float | None = None  # the pause ends by itself at that time (a lease); None holds until resumed
    steps: int = 0  # single steps still to be taken while paused
    interval: float = 0.0  # least seconds from one step to the next
    draining: bool = False
    stopped: bool = False
    commands: deque[Callable[[], object]] = field(default_factory=deque)


class EngineService:
    """Runs an engine that `build` makes on the thread itself (loading included).

    All methods may be called from any thread; `submit` and `stream` belong to the event loop they are called in.
    `max_waiting`: most sequences that may wait; None is no limit.
    """

    def __init__(self, build: Callable[[], InferenceEngine], max_waiting: int | None = None) -> None:
        self._build = build
        self._max_waiting = max_waiting
        self._control = _Control()
        self._wake = threading.Condition()
        self._live: dict[str, Request] = {}  # only the thread touches it
        self._ready: Future[InferenceEngine] = Future()
        self._thread = threading.Thread(target=self._run, name="mini-infer-engine", daemon=True)

    # --- life -------------------------------------------------------------------------------------------------------

    def start(self) -> EngineService:
        """Begin loading. `wait_ready` says when requests are served."""
        self._thread.start()
        return self

    @property
    def is_ready(self) -> bool:
        """Loaded, and not failed while loading."""
        return self._ready.done() and self._ready.exception() is None

    @property
    def is_alive(self) -> bool:
        """The thread lives: it loads, serves or drains."""
        return self._thread.is_alive()

    @property
    def engine(self) -> InferenceEngine:
        """The engine, for its constants (limits, tokenizer, options). Raises what loading raised; waits for it."""
        return self._ready.result()

    async def wait_ready(self) -> InferenceEngine:
        """Raises what loading raised, UserError among it."""
        return await asyncio.wrap_future(self._ready)

    def stop(self, drain_s: float = 0.0) -> None:
        """Take no more requests, let those in flight end for `drain_s` seconds, abort the rest, end the thread.

        A pause ends. Blocks until the thread has ended (or a running step does not return within 10 s more).
        """
        with self._wake:
            if not self._control.draining:
                self._control.draining, self._control.interval = True, 0.0
                self._resume()
            if self._thread.ident is None and not self._ready.done():  # never started
                self._ready.set_exception(self._why_stopped())
        joins = self._thread is not threading.current_thread() and self._thread.ident is not None
        if drain_s > 0 and joins:
            self._thread.join(drain_s)
        with self._wake:
            self._control.stopped = True
            self._wake.notify()
        if joins:
            self._thread.join(10.0)

    # --- requests ---------------------------------------------------------------------------------------------------

    async def submit(
        self,
        prompt_tokens: Sequence[int],
        params: SamplingParams | None = None,
        *,
        priority: int = 0,
        cache_salt: str = "",
    ) -> ResponseStream:
        """Queue a request.

        Raises UserError where the engine refuses it, QueueFull where too many wait, ServiceStopped when it is too late.
        """
        return await self.submit_all([prompt_tokens], params, priority=priority, cache_salt=cache_salt)

    async def submit_all(
        self,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams | None = None,
        *,
        priority: int = 0,
        cache_salt: str = "",
    ) -> ResponseStream:
        """Queue a request for each prompt, all or none; one stream has the chunks of all. Raises as `submit`."""
        if not prompts:
            raise ValueError("submit_all needs at least one prompt")
        params = params or SamplingParams()
        loop, queue = asyncio.get_running_loop(), asyncio.Queue[Chunk | None]()
        tokens = [list(p) for p in prompts]
        requests = [Request(loop, queue, Collector("", params.n, i)) for i in range(len(tokens))]

        def add() -> None:
            engine = self.engine
            check_room(engine.scheduler, len(tokens) * params.n, self._max_waiting)
            for index, request in enumerate(requests):
                try:
                    request_id = engine.add_request(tokens[index], params, priority=priority, cache_salt=cache_salt)
                except Exception:  # a user's error or a caller's: none of the earlier ones is left behind
                    for added in requests[:index]:
                        engine.abort(added.request_id)
                        del self._live[added.request_id]
                    raise
                request.collector.request_id = request_id
                self._live[request_id] = request

        future = self._call(add)
        try:
            await asyncio.wrap_future(future)
        except asyncio.CancelledError:  # the caller is gone: whatever was or will be queued is not wanted
            future.add_done_callback(lambda done: self._abort_result(done, requests))
            raise
        return ResponseStream(requests, self.abort)

    def _abort_result(self, submitted: Future[None], requests: Sequence[Request]) -> None:
        if not submitted.cancelled() and submitted.exception() is None:
            for request in requests:
                self.abort(request.request_id)

    def abort(self, request_id: str) -> None:
        """End a request between two steps; its blocks are free then. Unknown and ended ones are ignored."""

        def end() -> None:
            if request_id in self._live:
                self.engine.abort(request_id)

        self._tell(end)

    # --- control ----------------------------------------------------------------------------------------------------

    def pause(self, lease_s: float | None = None) -> None:
        """Take no steps until resumed; with a lease, or until it runs out. Pausing again renews it."""
        with self._wake:
            if self._control.draining:
                return
            self._control.paused = True
            self._control.until = None if lease_s is None else time.monotonic() + lease_s
            self._control.commands.append(lambda: self.engine.set_paused(True))
            self._wake.notify()

    def resume(self) -> None:
        with self._wake:
            if not self._control.draining:
                self._resume()

    def _resume(self) -> None:
        self._control.paused, self._control.until, self._control.steps = False, None, 0
        self._control.commands.append(lambda: self.engine.set_paused(False))
        self._wake.notify()

    def step(self, count: int = 1) -> None:
        """Take so many single steps while paused; running, it does nothing."""
        with self._wake:
            self._control.steps += count if self._control.paused else 0
            self._wake.notify()

    def set_speed(self, steps_per_s: float | None) -> None:
        """Take at most so many steps a second; None is full speed. Raises ValueError for what is not above 0."""
        if steps_per_s is not None and not steps_per_s > 0:
            raise ValueError(f"a speed is a number of steps per second above 0, not {steps_per_s}")
        with self._wake:
            if not self._control.draining:
                self._control.interval = 0.0 if steps_per_s is None else 1.0 / steps_per_s
                self._wake.notify()

    @property
    def is_paused(self) -> bool:
        return self._control.paused

    def attach(self, sink: Sink) -> None:
        """Give the engine an observer; it is called on the engine's thread."""
        self._tell(lambda: self.engine.attach(sink))

    def detach(self, sink: Sink) -> None:
        self._tell(lambda: self.engine.detach(sink))

    def reset_prefix_cache(self) -> None:
        self._tell(lambda: self.engine.reset_prefix_cache())

    def set_draft_tokens(self, k: int | None) -> None:
        """Draft K tokens per sequence from the next step on; 0 none, None as many as pay."""
        self._tell(lambda: self.engine.set_draft_tokens(k))

    async def snapshot(self) -> EngineState:
        """The engine's state, taken between two steps."""

        def take() -> EngineState:
            self._deliver(self.engine.flush())
            return self.engine.snapshot()

        return await asyncio.wrap_future(self._call(take))

    # --- the queue --------------------------------------------------------------------------------------------------

    def _tell(self, command: Callable[[], object]) -> None:
        with self._wake:
            if not self._control.stopped:
                self._control.commands.append(command)
                self._wake.notify()

    def _call(self, function: Callable[[], T]) -> Future[T]:
        """Carry a function out on the thread; the future has its result or what it raised."""
        future: Future[T] = Future()

        def carry_out() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                if self._control.stopped:
                    raise self._why_stopped()
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)

        with self._wake:
            if self._control.draining or self._control.stopped:
                raise self._why_stopped()
            self._control.commands.append(carry_out)
            self._wake.notify()
        return future

    def _why_stopped(self) -> BaseException:
        failed = self._ready.exception() if self._ready.done() else None
        return failed or ServiceStopped("the engine is shutting down and takes no more requests")

    # --- the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            engine = self._build()
        except BaseException as error:
            self._ready.set_exception(error)
            if not isinstance(error, UserError):
                log.error("loading failed: %s: %s", type(error).__name__, error)
            self._refuse_all()
            return
        self._ready.set_result(engine)
        try:
            with _inference_mode():
                self._serve(engine)
        except BaseException as error:  # the engine mends what it can itself; this is a fault in the mending
            log.error("the engine's thread failed", exc_info=error)
            self._abandon(f"the engine's thread failed: {type(error).__name__}: {error}")
        finally:
            self._refuse_all()

    def _serve(self, engine: InferenceEngine) -> None:
        control, began = self._control, -math.inf
        while True:
            commands, step = self._next(engine, began)
            for command in commands:
                try:
                    command()
                except Exception as error:
                    log.error("a command failed: %s: %s", type(error).__name__, error)
            if control.stopped or (control.draining and not engine.has_work):
                for request_id in list(self._live):
                    engine.abort(request_id)
                self._deliver(engine.flush())
                return
            if step and engine.has_work:
                began = time.monotonic()
                self._deliver(engine.step())
            else:
                self._deliver(engine.flush())

    def _next(self, engine: InferenceEngine, began: float) -> tuple[Iterable[Callable[[], object]], bool]:
        """Sleep until there is something to do; gives the commands to carry out, and whether to step after them.

        `began` is when the last step did.
        """
        control = self._control
        with self._wake:
            while True:
                now, due = time.monotonic(), began + control.interval
                if control.paused and control.until is not None and now >= control.until:
                    self._resume()
                if control.commands or control.stopped or control.draining:
                    break
                stepping = control.steps > 0 if control.paused else engine.has_work
                if stepping and now >= due:
                    break
                waits = [due - now] if stepping else []
                if control.paused and control.until is not None:
                    waits.append(control.until - now)
                self._wake.wait(min(waits) if waits else None)
            commands, control.commands = control.commands, deque()
            step = now >= due and (not control.paused or control.steps > 0)
            if step and control.paused:
                control.steps -= 1
            return commands, step

    def _deliver(self, report: StepReport | None) -> None:
        """Hand each output to its request: one call into each event loop, however many requests it has."""
        if report is None:
            return
        for admitted in report.admitted:  # told while a sink listens
            request = self._live.get(request_of(admitted.seq_id))
            if request is not None and admitted.first:
                request.collector.admitted(step_start(report))
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Request, Chunk]]] = {}
        for request_id, outputs in by_request(report).items():
            request = self._live.get(request_id)
            if request is None:
                continue
            for output in outputs:
                chunk = request.collector.add(output)
                by_loop.setdefault(request.loop, []).append((request, chunk))
                if chunk.result is not None:
                    del self._live[request_id]
        for loop, chunks in by_loop.items():
            if not put(loop, chunks):  # nobody is left to read
                for request, _ in chunks:
                    self.abort(request.request_id)

    def _abandon(self, message: str) -> None:
        """Nobody will answer any more: every live request ends with an error."""
        for request_id, request in self._live.items():
            end = Finished(request_id, "error", Usage(0, 0), message)
            failed = Chunk(
                0, "", (), "error", (), request.collector.failed(end), request.collector.prompt, error=message
            )
            put(request.loop, [(request, failed)])
        self._live.clear()

    def _refuse_all(self) -> None:
        """The thread ends: whoever still waits for a command is told so."""
        with self._wake:
            self._control.draining = self._control.stopped = True
            commands, self._control.commands = self._control.commands, deque()
        for command in commands:
            try:
                command()
            except BaseException as error:  # what loading raised may be of any kind
                log.debug("a command came too late: %s", error)


def _inference_mode() -> AbstractContextManager[object]:
    """torch's inference mode for this thread; nothing where the engine runs without torch (tests)."""
    import sys

    torch = sys.modules.get("torch")
    return torch.inference_mode() if torch is not None else nullcontext()
