"""A whole run: warm-ups, levels, checks and the search for the limit, in order, into one report."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Protocol

from msgspec.structs import replace

from mini_infer.load.arrivals import Level
from mini_infer.load.check import CheckReport, asked_greedily, check_level, flatten, shuffled
from mini_infer.load.client import Client, Clock, Target
from mini_infer.load.figures import Slo, figures
from mini_infer.load.power import Energy, PowerMonitor
from mini_infer.load.records import Conversation
from mini_infer.load.report import LevelReport, Maximum, Report, sample
from mini_infer.load.runner import Extent, LevelRun, Observer, Runner
from mini_infer.load.scrape import Metrics, Scrape, server_side
from mini_infer.load.search import search
from mini_infer.load.words import warnings
from mini_infer.load.workload import Workload
from mini_infer.version import __version__


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to run. Without `requests` and `duration_s` a level has eight requests per stream, and at least 16."""

    levels: tuple[Level, ...]
    requests: int | None = None
    duration_s: float | None = None
    warmup: int | None = None
    repeats: int = 1
    slo: Slo = field(default_factory=Slo)
    check: bool = False
    cancel_rate: float = 0.0
    find_max: bool = False
    attainment: float = 0.9
    seed: int = 0

    def extent(self, level: Level) -> Extent:
        requests = self.requests
        if level.times:
            requests = min(len(level.times), requests or len(level.times))
        elif requests is None and self.duration_s is None:
            requests = max(16, 8 * level.concurrency if level.concurrency else math.ceil(20 * (level.rate or 0)))
        return Extent(requests=requests, duration_s=self.duration_s, cancel_rate=self.cancel_rate)

    def num_warmup(self, level: Level) -> int:
        """One for each stream, so that all connections are open before anything counts."""
        return self.warmup if self.warmup is not None else min(level.concurrency or 4, 64)


class Watcher(Observer, Protocol):
    """Hears how a campaign goes on."""

    def phase(self, what: str, level: Level | None, extent: Extent | None) -> None: ...
    def measured(self, level: LevelReport) -> None: ...


class Campaign:
    """Runs a plan against a target. `stop` ends it early; the report has what was measured until then."""

    def __init__(
        self,
        plan: Plan,
        target: Target,
        workload: Workload,
        metrics: Metrics,
        monitor: PowerMonitor,
        watcher: Watcher,
        clock: Clock,
        make_client: Callable[[], Client] | None = None,
    ) -> None:
        self.plan = plan
        self.levels: list[LevelReport] = []
        self.check: CheckReport | None = None
        self.maximum: Maximum | None = None
        self.stopped: str | None = None
        self._target = target
        self._workload = workload
        self._metrics = metrics
        self._monitor = monitor
        self._watcher = watcher
        self._runner = Runner(make_client or (lambda: Client(target, clock)), clock, watcher)

    def stop(self, why: str) -> None:
        if self.stopped is None:
            self.stopped = why
        self._runner.stop.set()

    async def run(self) -> None:
        """Measures everything. Ends after a level in which all requests failed: the next would tell no more."""
        try:
            await self._run()
        finally:
            await self._runner.aclose()

    async def _run(self) -> None:
        if self._monitor.meter is not None:
            self._watcher.phase("measuring the idle machine", None, None)
            await self._monitor.measure_idle()
        if self.plan.find_max:
            await self._find_max()
        else:
            for repeat in range(self.plan.repeats):
                for level in self.plan.levels:
                    if not self._is_over:
                        await self._measure(level, repeat)
        if self.plan.check and not self._is_over:
            await self._check()

    def report(self, server: dict[str, Any], settings: dict[str, Any], notes: list[str]) -> Report:
        """What is known by now."""
        return Report(
            version=__version__,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            url=self._target.root,
            model=self._target.model,
            server=server,
            seed=self.plan.seed,
            settings=settings,
            slo=self.plan.slo,
            levels=list(self.levels),
            check=self.check,
            maximum=self.maximum,
            stopped=self.stopped,
            notes=notes,
        )

    @property
    def _is_over(self) -> bool:
        return self.stopped is not None or any(level.all_failed for level in self.levels)

    # --- levels -----------------------------------------------------------------------------------------------------

    async def _measure(self, level: Level, repeat: int) -> LevelReport:
        seed = f"{self.plan.seed} {level.name} {repeat}"
        if (count := self.plan.num_warmup(level)) > 0:
            extent = Extent(requests=count, duration_s=self.plan.duration_s)
            self._watcher.phase("warming up", level, extent)
            warm = Level(concurrency=min(count, level.concurrency or count))
            await self._runner.run(warm, self._conversations(f"{seed} warm-up"), extent, seed)
        extent = self.plan.extent(level)
        before = await self._metrics.settled()
        self._watcher.phase("measuring", level, extent)
        async with self._monitor.running():
            run = await self._runner.run(level, self._conversations(seed), extent, seed)
        after = await self._metrics.settled()
        made = self._level_report(run, repeat, before, after)
        self.levels.append(made)
        self._watcher.measured(made)
        return made

    def _conversations(self, seed: str) -> Iterator[Conversation]:
        return self._workload.conversations(seed)

    def _level_report(self, run: LevelRun, repeat: int, before: Scrape | None, after: Scrape | None) -> LevelReport:
        found = figures(run, self.plan.slo)
        counted = all(r.is_ok and r.counted_by == "usage" for r in run.records) and bool(run.records)
        server = server_side(before, after, found.output_tokens if counted else None)
        energy = self._monitor.result(found.output_tokens + found.unfinished_tokens) if found.ok else Energy()
        if found.drafted is None and server.drafted and server.accepted is not None:
            rate = server.accepted / server.drafted
            found = replace(found, drafted=server.drafted, accepted=server.accepted, acceptance=rate)
        return LevelReport(
            level=run.level.name,
            concurrency=run.level.concurrency,
            rate=run.level.rate,
            repeat=repeat,
            figures=found,
            energy=energy,
            server=server,
            is_cut=run.is_cut,
            warnings=warnings(found, server, cut=run.is_cut),
            samples=[sample(record, run.start) for record in run.records],
        )

    # --- the limit --------------------------------------------------------------------------------------------------

    async def _find_max(self) -> None:
        """Doubles until the objectives break, then halves the interval. Streams at once, or requests a second."""
        start = self.plan.levels[0]

        async def keeps(size: int) -> bool | None:
            level = _sized(start, size)
            found = (await self._measure(level, 0)).figures
            if self.stopped is not None:
                return None
            return found.attainment is not None and found.attainment >= self.plan.attainment

        kept, broken = await search(keeps, first=1 if start.is_open else start.concurrency or 1)
        self.maximum = Maximum(
            kept=None if kept is None else _sized(start, kept).name,
            broken=None if broken is None else _sized(start, broken).name,
            attainment=self.plan.attainment,
        )

    # --- the check --------------------------------------------------------------------------------------------------

    async def _check(self) -> None:
        """One at a time first, then the same prompts at every level."""
        levels = list({level.name: level for level in self.plan.levels}.values())
        count = max(self.plan.extent(level).requests or 32 for level in levels)
        kinds = map(asked_greedily, self._conversations(f"{self.plan.seed} check"))
        conversations = list(islice(kinds, count))
        extent = Extent(requests=count)
        alone = Level(concurrency=1)
        self._watcher.phase("check: one at a time", alone, extent)
        run = await self._runner.run(alone, iter(conversations), extent, "check")
        pairs = flatten(conversations, run.records)
        base = [record for _, record in pairs]
        checked, divergences = [], []
        for level in levels:
            if self.stopped is not None:
                break
            self._watcher.phase(f"check at {level.name}", level, extent)
            order = shuffled(len(pairs), f"{self.plan.seed} {level.name}")
            single = iter([Conversation(pairs[i][0]) for i in order])
            again = await self._runner.run(level, single, Extent(requests=len(pairs)), "check")
            found_at = {order[record.number]: record for record in again.records}
            one, found = check_level(level.name, base, found_at)
            checked.append(one)
            divergences += found
        self.check = CheckReport(
            prompts=len(base),
            levels=checked,
            divergences=divergences,
            has_logprobs=any(record.logprobs for record in base),
        )


def _sized(start: Level, size: int) -> Level:
    """The level of the search: `size` streams, or `size` times the first rate."""
    if start.is_open:
        return Level(rate=(start.rate or 1.0) * size, burstiness=start.burstiness, cap=start.cap)
    return Level(concurrency=size)
