"""The ledger as of one report: every query answers as it would have right after that report."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby, islice, pairwise, takewhile
from statistics import median
from typing import NamedTuple, TypeVar

from mini_infer.observe.events import Durations, KReason
from tui.model.ledger import Ledger
from tui.model.records import BlockLife, Event, KRecord, Origin, RequestRecord, RoundRecord, StepRecord
from tui.model.spans import TextSpan

R = TypeVar("R", RoundRecord, KRecord)


class Column(NamedTuple):
    """One step of the timeline. `marks` names only sequences that did something; see `Lookback.mark`."""

    step: int
    seq: int  # of its last report
    marks: dict[str, str]


class Lookback:
    """Queries of a `Ledger`, as of the report numbered `seq`."""

    def __init__(self, ledger: Ledger, seq: int) -> None:
        self._ledger = ledger
        self.seq = seq
        self._steps: list[StepRecord] | None = None

    # --- requests ---------------------------------------------------------------------------------------------------

    def request(self, seq_id: str) -> RequestRecord | None:
        """The record of a sequence that had arrived by now; its fields are as of *today*, use the queries below."""
        record = self._ledger.requests.get(seq_id)
        return record if record is not None and record.seq <= self.seq else None

    @property
    def requests(self) -> list[RequestRecord]:
        """All that had arrived, ended ones included, in order of arrival."""
        return [r for r in self._ledger.requests.values() if r.seq <= self.seq]

    def is_ended(self, seq_id: str) -> bool:
        record = self.request(seq_id)
        return record is not None and record.ended_seq is not None and record.ended_seq <= self.seq

    def letter(self, seq_id: str) -> str:
        record = self._ledger.requests.get(seq_id)
        return record.letter if record is not None else "?"

    def hue(self, seq_id: str) -> int:
        record = self._ledger.requests.get(seq_id)
        return record.hue if record is not None else 7

    def by_letter(self, letter: str) -> str | None:
        """The newest sequence of that letter."""
        found = [r.seq_id for r in self.requests if r.letter == letter]
        return found[-1] if found else None

    def num_output(self, seq_id: str) -> int:
        record = self.request(seq_id)
        return 0 if record is None else bisect_right(record.origins, self.seq, key=lambda o: o.seq)

    def output(self, seq_id: str) -> list[int]:
        record = self.request(seq_id)
        return [] if record is None else record.output[: self.num_output(seq_id)]

    def origins(self, seq_id: str) -> list[Origin]:
        """Where each output token came from; parallel to the sequence's output."""
        record = self.request(seq_id)
        return [] if record is None else record.origins[: self.num_output(seq_id)]

    def spans(self, seq_id: str) -> list[TextSpan]:
        """The answer as it may be shown, by the tokens that gave it; it can lag behind the ids."""
        record = self.request(seq_id)
        return [] if record is None else record.spans[: bisect_right(record.spans, self.seq, key=lambda s: s.seq)]

    def text(self, seq_id: str) -> str:
        return "".join(span.text for span in self.spans(seq_id))

    def chunks(self, seq_id: str) -> int:
        """Steps that computed a chunk of its prompt (or of what it recomputes)."""
        record = self.request(seq_id)
        return 0 if record is None else bisect_right(record.chunks, self.seq)

    # --- the timeline -----------------------------------------------------------------------------------------------

    @property
    def steps(self) -> list[StepRecord]:
        """All reports kept, up to now, oldest first."""
        if self._steps is None:
            kept = self._ledger.steps
            if not kept or kept[-1].seq <= self.seq:
                self._steps = list(kept)
            else:
                self._steps = list(takewhile(lambda s: s.seq <= self.seq, kept))
        return self._steps

    def columns(self, count: int) -> list[Column]:
        """The last `count` steps, oldest first; news without a step are part of the step before them."""
        columns: list[Column] = []
        for record in reversed(self.steps):
            if columns and columns[-1].step == record.step:
                columns[-1] = columns[-1]._replace(marks=record.marks | columns[-1].marks)
            elif len(columns) == count:
                break
            else:
                columns.append(Column(record.step, record.seq, record.marks))
        return columns[::-1]

    def mark(self, seq_id: str, column: Column) -> str:
        """P chunk, D decode, 0..9 drafts kept, ! preempted, F finished, A aborted, W waiting, - not there."""
        mark = column.marks.get(seq_id)
        if mark is not None:
            return mark
        record = self.request(seq_id)
        if record is None or record.seq > column.seq:
            return "-"
        return "-" if record.ended_seq is not None and record.ended_seq <= column.seq else "W"

    # --- speculation ------------------------------------------------------------------------------------------------

    def rounds(self, seq_id: str) -> list[RoundRecord]:
        """Its rounds, oldest first (the last 512). The last one's sums cover all rounds of the sequence."""
        record = self.request(seq_id)
        return [] if record is None else list(_until(record.rounds, self.seq))

    def k(self, seq_id: str) -> tuple[int, KReason | None] | None:
        """The drafts it got last, and why none where that is 0."""
        record = self.request(seq_id)
        found = [] if record is None else list(_until(record.k, self.seq))
        return (found[-1].k, found[-1].why) if found else None

    # --- blocks, events, times --------------------------------------------------------------------------------------

    def block(self, block: int) -> BlockLife | None:
        """The block's life so far; None where nothing is known of it."""
        lives = self._ledger.lives.get(block, [])
        index = bisect_right(lives, self.seq, key=lambda life: life.seq) - 1
        return lives[index] if index >= 0 and lives[index].seq >= 0 else None

    def events(self, count: int) -> list[Event]:
        """The last events, newest first; those of one report in their own order."""
        newest = (e for e in reversed(self._ledger.events) if e.seq <= self.seq)
        groups = ([*group][::-1] for _, group in groupby(newest, key=lambda e: e.seq))
        return list(islice(chain.from_iterable(groups), count))

    def durations(self, count: int) -> list[tuple[int, Durations]]:
        """(step, times of its phases) of the last steps, oldest first."""
        timed = [(s.step, s.durations) for s in self.steps if s.stepped and s.durations is not None]
        return timed[-count:]

    def tokens_per_second(self, over: int = 30) -> float | None:
        """Output tokens per second over the last steps (30); None before the second step."""
        return rate([s for s in self.steps[-over - 1 :] if s.stepped])

    def rates(self, count: int, per: int = 4) -> list[float]:
        """Output tokens per second over stretches of `per` steps, oldest first."""
        stepped = [s for s in self.steps[-(count * per + 1) * 2 :] if s.stepped]
        ends = range(len(stepped) - 1, 0, -per)
        found = [rate(stepped[max(0, end - per) : end + 1]) for end in ends]
        return [r for r in reversed(found) if r is not None][-count:]

    @property
    def ttft(self) -> float | None:
        """Median seconds to the first token, of the last 100 requests."""
        values = [v for seq, v in self._ledger.latencies if seq <= self.seq]
        return median(values) if values else None

    @property
    def itl(self) -> float | None:
        """Median seconds between the steps that gave a sequence tokens, of the last 512."""
        values = [v for seq, v in self._ledger.gaps if seq <= self.seq]
        return median(values) if values else None


def rate(steps: Sequence[StepRecord]) -> float | None:
    """Output tokens per second after the first of these steps. Idle time and pauses between them do not count."""
    seconds = sum(_seconds(before, step) for before, step in pairwise(steps))
    return sum(s.tokens for s in steps[1:]) / seconds if seconds > 0 else None


def _seconds(before: StepRecord, step: StepRecord) -> float:
    """What a step took, with the wait before it where there was work: an engine may be slowed down to be watched."""
    if before.blocks_used and step.seq == before.seq + 1:
        return step.t - before.t
    d = step.durations
    return (d.schedule + d.draft + d.forward + d.sample + d.commit) / 1e3 if d is not None else 0.0


def _until(records: Iterable[R], seq: int) -> Iterator[R]:
    """Those of reports up to `seq`."""
    return takewhile(lambda r: r.seq <= seq, records)
