"""Sends a level's requests and gathers their records.

Closed loops have one worker per stream, each with a client of its own. Open loops send on time, whatever becomes of
the requests before, and count latencies from that time: a server that stalls cannot slow its own examiner down.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from msgspec.structs import replace

from mini_infer.load.arrivals import Level
from mini_infer.load.client import Client, Clock
from mini_infer.load.records import Ask, Conversation, Record

EARLY_S = 0.05
"""Within which a cancelled request may be given up before its answer begins."""


class Observer(Protocol):
    """Hears of every request while a level runs."""

    def sent(self) -> None: ...
    def piece(self, at: float) -> None: ...
    def ended(self, record: Record) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """How much of a level is run: so many requests, or so many seconds, whichever comes first."""

    requests: int | None = None
    duration_s: float | None = None
    cancel_rate: float = 0.0


@dataclass(frozen=True, slots=True)
class LevelRun:
    """What happened in a level. Times are the run's clock; `cpu_share` is the client's own, of one core."""

    level: Level
    start: float
    end: float
    records: tuple[Record, ...]
    is_cut: bool = False
    cpu_share: float = 0.0
    lag_s: tuple[float, ...] = ()


class Runner:
    """Runs levels with clients made by `make_client`. `stop` set by anyone ends the level that runs, and all later.

    Clients are kept from level to level, so that a warm-up opens the connections that a level then measures on.
    """

    def __init__(self, make_client: Callable[[], Client], clock: Clock, observer: Observer) -> None:
        self.stop = asyncio.Event()
        self._make_client = make_client
        self._clock = clock
        self._observer = observer
        self._idle: list[Client] = []

    async def aclose(self) -> None:
        for client in self._idle:
            await client.aclose()
        self._idle.clear()

    def _client(self) -> Client:
        return self._idle.pop() if self._idle else self._make_client()

    async def run(self, level: Level, conversations: Iterator[Conversation], extent: Extent, seed: str) -> LevelRun:
        """One level. What runs when time is up, or on `stop`, is cut off and recorded as unfinished."""
        work = _Work(conversations, extent, random.Random(f"{seed} cancel"))
        records: list[Record] = []
        lag: list[float] = []
        watcher = asyncio.create_task(_watch_lag(lag))
        start, cpu, wall = self._clock(), time.process_time(), time.perf_counter()
        main = asyncio.create_task(
            self._open(level, work, records, seed, start) if level.is_open else self._closed(level, work, records)
        )
        stop = asyncio.create_task(self.stop.wait())
        try:
            await asyncio.wait({main, stop}, timeout=extent.duration_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            is_cut = not main.done()
            for task in (main, stop, watcher):
                task.cancel()
            await asyncio.wait({main, stop, watcher})
        end = self._clock()
        if not main.cancelled() and (error := main.exception()) is not None:
            raise error
        share = (time.process_time() - cpu) / max(time.perf_counter() - wall, 1e-9)
        return LevelRun(level, start, end, tuple(sorted(records, key=_number)), is_cut, share, tuple(lag))

    async def _closed(self, level: Level, work: _Work, records: list[Record]) -> None:
        async def worker() -> None:
            client = self._client()
            try:
                while not self.stop.is_set() and (begun := work.next()) is not None:
                    await self._converse(client, *begun, work, records, None)
            finally:
                self._idle.append(client)

        async with asyncio.TaskGroup() as workers:
            for _ in range(level.concurrency or 1):
                workers.create_task(worker())

    async def _open(self, level: Level, work: _Work, records: list[Record], seed: str, start: float) -> None:
        seats = asyncio.Semaphore(level.cap) if level.cap else None

        async def one(number: int, conversation: Conversation, scheduled: float) -> None:
            if seats is not None:
                try:
                    await seats.acquire()
                except asyncio.CancelledError:
                    records.append(_never_sent(number, self._clock(), scheduled))
                    raise
            client = self._client()
            try:
                await self._converse(client, number, conversation, work, records, scheduled)
            finally:
                self._idle.append(client)
                if seats is not None:
                    seats.release()

        async with asyncio.TaskGroup() as running:
            for after in level.arrivals(f"{seed} arrivals"):
                if self.stop.is_set() or (begun := work.next()) is None:
                    break
                if (wait := start + after - self._clock()) > 0:
                    await asyncio.sleep(wait)
                running.create_task(one(*begun, start + after))

    async def _converse(
        self,
        client: Client,
        number: int | None,
        conversation: Conversation,
        work: _Work,
        records: list[Record],
        scheduled: float | None,
    ) -> None:
        """All turns of a conversation, each sent as soon as the last was answered, while there is work left."""
        answers: list[str] = []
        while number is not None:
            record = await self._ask(client, conversation.ask(answers), number, work, records, scheduled)
            answers.append(record.text)
            if not record.is_ok or len(answers) == conversation.turns:
                return
            number, scheduled = work.take(), None

    async def _ask(
        self, client: Client, ask: Ask, number: int, work: _Work, records: list[Record], scheduled: float | None
    ) -> Record:
        observer = self._observer
        hang_up, patience = work.give_up(ask.max_tokens)
        observer.sent()
        try:
            async with asyncio.timeout(patience):
                record = await client.ask(ask, number, scheduled, on_piece=observer.piece, hang_up_after=hang_up)
        except (TimeoutError, asyncio.CancelledError) as error:
            record = client.unfinished or _never_sent(number, self._clock(), scheduled)
            if isinstance(error, TimeoutError):
                record = replace(record, outcome="cancelled")
            else:
                records.append(record)
                observer.ended(record)
                raise
        records.append(record)
        observer.ended(record)
        return record


class _Work:
    """What is left to ask. `take` gives the number of the next request, None once there is none."""

    def __init__(self, conversations: Iterator[Conversation], extent: Extent, rng: random.Random) -> None:
        self._conversations = conversations
        self._taken = 0
        self._extent = extent
        self._rng = rng

    def take(self) -> int | None:
        if self._extent.requests is not None and self._taken >= self._extent.requests:
            return None
        self._taken += 1
        return self._taken - 1

    def next(self) -> tuple[int, Conversation] | None:
        number = self.take()
        return None if number is None else (number, next(self._conversations))

    def give_up(self, max_tokens: int) -> tuple[int | None, float | None]:
        """(pieces, seconds) after which this request is given up, if it is one of those."""
        if self._rng.random() >= self._extent.cancel_rate:
            return None, None
        if self._rng.random() < 0.25:
            return None, EARLY_S * self._rng.random()
        return self._rng.randrange(max(1, max_tokens)), None


def _number(record: Record) -> int:
    return record.number


def _never_sent(number: int, now: float, scheduled: float | None) -> Record:
    at = now if scheduled is None else scheduled
    return Record(number=number, scheduled=at, sent=now, end=now, outcome="unfinished")


async def _watch_lag(found: list[float], every_s: float = 0.05) -> None:
    """How late the event loop is, again and again: a busy client measures itself."""
    while True:
        due = time.perf_counter() + every_s
        await asyncio.sleep(every_s)
        found.append(max(0.0, time.perf_counter() - due))
