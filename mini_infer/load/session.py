"""One `mini-infer load` from its options to its report: finds the server, runs the campaign, obeys signals."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec

from mini_infer.load.campaign import Campaign, Plan, Watcher
from mini_infer.load.client import Clock, Target, http_client
from mini_infer.load.dataset import read_conversations
from mini_infer.load.own_server import OwnServer, own_server
from mini_infer.load.phrases import WORDS
from mini_infer.load.power import PowerMonitor, Source, find_meter
from mini_infer.load.report import Report
from mini_infer.load.scrape import Metrics
from mini_infer.load.workload import EXACT, TokenSource, WorkloadOptions, make_workload

LOCAL = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Everything a run needs. Without `url` a server is started with the engine options `own`."""

    plan: Plan
    workload: WorkloadOptions
    file: Path | None = None
    url: str | None = None
    model: str | None = None
    own: Sequence[str] = ()
    api_key: str | None = None
    timeout_s: float = 120.0
    max_time_s: float | None = None
    power: Source = "auto"
    settings: dict[str, Any]


async def run(session: Session, watch: Callable[[Clock, str], AbstractContextManager[Watcher]]) -> Report:
    """The report, also of what was measured until a signal came. `watch` makes the watcher from a clock and a title.

    Raises UserError for what a user can mend, and CancelledError where a signal came before anything ran.
    """
    recorded = read_conversations(session.file, session.workload) if session.file is not None else []
    start = time.perf_counter()

    def clock() -> float:
        return time.perf_counter() - start

    async with _signals() as signals, _server(session) as (url, own):
        target = Target(url, session.model or "", session.api_key, session.timeout_s)
        async with http_client(target, clock) as http:
            notes: list[str] = []
            model = session.model or await _first_model(http, target, notes)
            target = Target(url, model, session.api_key, session.timeout_s)
            tokens = await _token_source(http, target, session, notes)
            workload = make_workload(session.workload, tokens, recorded)
            monitor = PowerMonitor(find_meter(session.power) if _is_local(url) else None)
            with watch(clock, f"mini-infer load · {model or 'no model'} · {target.root}") as watcher:
                metrics = Metrics(target, http)
                campaign = Campaign(session.plan, target, workload, metrics, monitor, watcher, clock)
                signals.on_first = lambda name: campaign.stop(name)
                await _limited(campaign, session.max_time_s)
            if own is not None and own.process.returncode is not None:
                last = own.last_words[-1] if own.last_words else "it said nothing"
                notes.append(f"the server ended by itself (exit code {own.process.returncode}): {last}")
            server = await _about(http, target)
            return campaign.report(server, session.settings, notes)


async def _limited(campaign: Campaign, max_time_s: float | None) -> None:
    """A cap on the whole run: when it is reached, what was measured stands."""
    timer = None
    if max_time_s is not None:
        why = f"--max-time {max_time_s:g} s was over"
        timer = asyncio.get_running_loop().call_later(max_time_s, campaign.stop, why)
    try:
        await campaign.run()
    finally:
        if timer is not None:
            timer.cancel()


class _Signals:
    """The first signal stops the measuring, a second one everything; before there is a campaign, the first does."""

    def __init__(self) -> None:
        self.on_first: Callable[[str], None] | None = None
        self._task = asyncio.current_task()

    def __call__(self, number: signal.Signals) -> None:
        if self.on_first is not None:
            first, self.on_first = self.on_first, None
            first(INTERRUPTED)
        elif self._task is not None:
            self._task.cancel()


INTERRUPTED = "interrupted"


@asynccontextmanager
async def _signals() -> AsyncIterator[_Signals]:
    signals, loop = _Signals(), asyncio.get_running_loop()
    taken = []
    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(NotImplementedError, RuntimeError, ValueError):  # Windows has none; another thread must not
            loop.add_signal_handler(number, signals, number)
            taken.append(number)
    try:
        yield signals
    finally:
        for number in taken:
            loop.remove_signal_handler(number)


@asynccontextmanager
async def _server(session: Session) -> AsyncIterator[tuple[str, OwnServer | None]]:
    if session.url is not None:
        yield session.url, None
        return
    async with own_server(session.own) as own:
        yield own.url, own


def _is_local(url: str) -> bool:
    """Whether the server shares this machine's meters."""
    return httpx.URL(url).host in LOCAL


async def _first_model(http: httpx.AsyncClient, target: Target, notes: list[str]) -> str:
    """The first listed, or nothing: the requests will then tell what is wrong."""
    try:
        answer = await http.get(target.endpoint("models"))
        answer.raise_for_status()
        return str(answer.json()["data"][0]["id"])
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        notes.append(f"the server lists no models ({error}); requests named none")
        return ""


async def _token_source(http: httpx.AsyncClient, target: Target, session: Session, notes: list[str]) -> TokenSource:
    """Ids of plain words, by the server's own tokenizer."""
    if session.workload.kind not in EXACT:
        return TokenSource()
    text = " " + " ".join(WORDS)
    for field in ("prompt", "content"):  # vLLM's word, llama.cpp's word
        body = {"model": target.model, field: text, "add_special_tokens": False}
        try:
            answer = await http.post(f"{target.root}/tokenize", json=body)
            answer.raise_for_status()
            ids = msgspec.convert(answer.json()["tokens"], list[int])
        except (httpx.HTTPError, ValueError, LookupError, TypeError):
            continue
        if len(set(ids)) >= 10:
            return TokenSource(tuple(sorted(set(ids))))
    notes.append("the server has no /tokenize: prompt lengths are words, near the tokens asked for, not exact")
    return TokenSource()


async def _about(http: httpx.AsyncClient, target: Target) -> dict[str, Any]:
    """Which engine it is, where it says so."""
    found: dict[str, Any] = {}
    for path in ("health", "version"):
        try:
            told = (await http.get(f"{target.root}/{path}")).json()
        except (httpx.HTTPError, ValueError):
            continue
        if isinstance(told, dict):
            found |= {key: told[key] for key in ("engine", "version") if isinstance(told.get(key), str)}
    return found
