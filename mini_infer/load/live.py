"""How a run goes on: a dashboard on a terminal, plain lines elsewhere. Both hear the same events."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from mini_infer.load.arrivals import Level
from mini_infer.load.markdown import number, pair
from mini_infer.load.records import Record
from mini_infer.load.report import LevelReport
from mini_infer.load.runner import Extent
from mini_infer.load.words import causes

Clock = Callable[[], float]

SLOT_S = 0.5
"""Width of one bar of a sparkline."""
SLOTS = 60


class Progress:
    """What is going on: a `Watcher` that only counts. The pictures are drawn from it."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.what = "starting"
        self.level: Level | None = None
        self.extent: Extent | None = None
        self.began = clock()
        self.done: list[LevelReport] = []
        self.running = self.ended_ok = self.failed = self.pieces = 0
        self.causes: dict[str, int] = {}
        self.rate: deque[float] = deque(maxlen=SLOTS)  # pieces a second, by slot
        self.first: deque[float] = deque(maxlen=SLOTS)  # TTFT of the latest answers, ms
        self._slot = 0.0

    # --- the watcher ------------------------------------------------------------------------------------------------

    def phase(self, what: str, level: Level | None, extent: Extent | None) -> None:
        self.what, self.level, self.extent = what, level, extent
        self.began = self._slot = self.clock()
        self.running = self.ended_ok = self.failed = self.pieces = 0
        self.causes = {}
        self.rate.clear()
        self.first.clear()
        self.rate.append(0.0)

    def sent(self) -> None:
        self.running += 1

    def piece(self, at: float) -> None:
        self.pieces += 1
        self._roll(at)
        self.rate[-1] += 1 / SLOT_S

    def ended(self, record: Record) -> None:
        self.running -= 1
        if record.is_ok:
            self.ended_ok += 1
            if record.pieces:
                self.first.append(1e3 * (record.pieces[0] - record.scheduled))
        elif record.outcome == "failed":
            self.failed += 1
            cause = record.cause or "unknown"
            self.causes[cause] = self.causes.get(cause, 0) + 1

    def measured(self, level: LevelReport) -> None:
        self.done.append(level)

    # --- for the pictures -------------------------------------------------------------------------------------------

    def _roll(self, at: float) -> None:
        """Slots without a piece are there too."""
        steps = min(int((at - self._slot) / SLOT_S), SLOTS)
        if steps > 0:
            self.rate.extend([0.0] * steps)
            self._slot = at - (at - self._slot) % SLOT_S

    def rates(self) -> list[float]:
        """Pieces a second, slot by slot until now. Changes nothing: it may be asked from another thread."""
        rates, idle = list(self.rate), int((self.clock() - self._slot) / SLOT_S)
        return (rates + [0.0] * min(max(idle, 0), SLOTS))[-SLOTS:]

    @property
    def elapsed(self) -> float:
        return self.clock() - self.began

    @property
    def share(self) -> float | None:
        """Of the phase, 0 to 1; None where its length is unknown."""
        if self.extent is None:
            return None
        shares = []
        if self.extent.requests:
            shares.append((self.ended_ok + self.failed) / self.extent.requests)
        if self.extent.duration_s:
            shares.append(self.elapsed / self.extent.duration_s)
        return min(1.0, max(shares)) if shares else None


class PlainLines(Progress):
    """One line when a phase begins and when a level is measured."""

    def __init__(self, clock: Clock, say: Callable[[str], None]) -> None:
        super().__init__(clock)
        self._say = say

    def phase(self, what: str, level: Level | None, extent: Extent | None) -> None:
        super().phase(what, level, extent)
        where = f" level {level.name}" if level is not None and what in ("measuring", "warming up") else ""
        many = []
        if extent is not None and extent.requests is not None:
            many.append(f"{extent.requests} requests")
        if extent is not None and extent.duration_s is not None:
            many.append(f"{extent.duration_s:g} s")
        self._say(f"{what}{where}" + (f" ({', at most '.join(many)})" if many else ""))

    def measured(self, level: LevelReport) -> None:
        super().measured(level)
        f = level.figures
        line = f"level {level.level}: {f.ok} ok, {f.num_failed} failed in {f.window_s:.1f} s, "
        line += f"{number(f.output_tok_s)} tok/s, TTFT {pair(f.ttft_ms)} ms, TPOT {number(f.tpot_ms.p50)} ms"
        self._say(line + (f" ({causes(f.failed)})" if f.failed else ""))
