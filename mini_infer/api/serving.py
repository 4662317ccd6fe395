"""What the routes of one server share: the engine's service, the options, the model's names, the metrics."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Literal, TypeVar

from prometheus_client import CollectorRegistry

from mini_infer.api.errors import bad, queue_full, shutting_down, unavailable
from mini_infer.api.gpu import GpuCollector
from mini_infer.api.metrics import EngineMetrics, HttpMetrics
from mini_infer.api.names import ModelNames
from mini_infer.api.options import ServerOptions
from mini_infer.service import EngineService
from mini_infer.version import __version__

if TYPE_CHECKING:
    import torch

    from mini_infer.engine import InferenceEngine
    from mini_infer.text.tokenizer import Tokenizer

log = logging.getLogger("mini_infer")

T = TypeVar("T")

Status = Literal["ready", "loading", "paused", "draining", "stalled", "dead"]

STALLED_S = 60.0
"""A server with work and no step for so long is not ready for more."""

SHORT_TEXT = 4_000
"""Characters that are encoded in the event loop; more go to a thread."""


class Serving:
    """One engine behind one server. `service` is started by `start`; `model` is the model as the user named it."""

    def __init__(self, build: Callable[[], InferenceEngine], options: ServerOptions, model: str) -> None:
        self.options = options
        self.service = EngineService(build, max_waiting=options.max_waiting)
        self.names = ModelNames(model, options.served_model_name, any_model=options.any_model)
        self.registry = CollectorRegistry()
        self.registry.register(GpuCollector(self._device))
        self.http = HttpMetrics(self.registry)
        self.metrics = EngineMetrics(self.registry, self.names.served)
        self.created = int(time.time())
        self.draining = False
        self._preparing = 0  # requests between their complete body and the engine's queue
        self._busy_since = 0.0
        self._fingerprint = ""
        self._encoders = ThreadPoolExecutor(max_workers=2, thread_name_prefix="mini-infer-encode")

    def start(self) -> Serving:
        """Begin loading."""
        self.service.start()
        self.service.attach(self.metrics)
        return self

    def close(self) -> None:
        """After the service was stopped."""
        self.metrics.close()
        self._encoders.shutdown(wait=False, cancel_futures=True)

    def _device(self) -> torch.device | None:
        return getattr(self.service.engine.runner, "device", None) if self.service.is_ready else None

    @property
    def status(self) -> Status:
        if self.draining:
            return "draining"
        if not self.service.is_alive:
            return "dead"
        if not self.service.is_ready:
            return "loading"
        if self.service.is_paused:
            return "paused"
        has_work = self._preparing or self.service.engine.has_work
        last = max(self.metrics.last_report, self._busy_since)
        return "stalled" if has_work and perf_counter() - last > STALLED_S else "ready"

    @property
    def engine(self) -> InferenceEngine:
        """The engine, for its constants. Raises ApiError 503 while there is none to ask."""
        match self.status:
            case "loading":
                raise unavailable("model_loading", "the model is still loading")
            case "draining":
                raise shutting_down()
            case "dead":
                raise unavailable("engine_dead", "the engine has stopped; restart the server")
        return self.service.engine

    @property
    def tokenizer(self) -> Tokenizer:
        tokenizer = self.engine.tokenizer
        if tokenizer is None:
            raise bad("this model has no tokenizer: send token ids to the completions route", None)
        return tokenizer

    @property
    def fingerprint(self) -> str:
        """Equal for servers that give equal answers to seeded requests."""
        if not self._fingerprint:
            engine = self.engine
            parts = (__version__, engine.recorder.info.model, engine.options.dtype, engine.options.device)
            self._fingerprint = "fp_" + hashlib.sha256(repr(parts).encode()).hexdigest()[:12]
        return self._fingerprint

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """While a request is encoded and queued. Raises ApiError 429 where so many are that they could not all wait."""
        engine = self.engine
        if self._preparing >= (engine.options.max_running or 0) + self.options.max_waiting:
            raise queue_full("too many requests at once: try again later")
        if not (self._preparing or engine.has_work):
            self._busy_since = perf_counter()
        self._preparing += 1
        try:
            yield
        finally:
            self._preparing -= 1

    async def encode(self, function: Callable[[], T], length: int) -> T:
        """Carry out the encoding of a text of that length: a long one must not hold up everybody else."""
        if length <= SHORT_TEXT:
            return function()
        return await asyncio.get_running_loop().run_in_executor(self._encoders, function)

    def note_ignored(self, names: list[str]) -> None:
        """Count fields that nobody knows; each is logged once, not once per request."""
        for name in names[:20]:
            if self.http.ignored(name):
                log.info("ignoring the field %s of requests: nobody here knows it", ascii(name[:80]))
