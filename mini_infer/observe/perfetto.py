"""A trace as trace-event JSON, which ui.perfetto.dev and chrome://tracing open.

Process 1 is the engine: its steps with their phases inside, evictions, and counters for blocks, tokens and the queue.
Process 2 has a row per sequence: when it waited and why, and its part of every step. Times are whole microseconds
from the first event on, so that what is nested stays nested. Events are made report by report: a long trace does not
fill the memory. The format is Google's "Trace Event Format".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, BinaryIO

from msgspec import structs, to_builtins

from mini_infer.errors import UserError
from mini_infer.observe.events import MoveOp, StepReport, Wait, encode
from mini_infer.observe.state import EngineState, fold
from mini_infer.observe.trace_file import Trace

ENGINE, REQUESTS = 1, 2
STEPS, POOL = 1, 2

_GROWTH: dict[MoveOp, int] = {"alloc": 1, "share": 1, "free": -1}

Event = dict[str, Any]


_BEGIN = b'{"displayTimeUnit":"ms","otherData":{'


def is_export(start: bytes) -> bool:
    """Whether a file that starts so was written here."""
    return start.startswith(_BEGIN) and b'"mini-infer":' in start[:1000]


def write(trace: Trace, out: BinaryIO) -> None:
    """Writes the whole JSON, UTF-8. Raises UserError for a corrupt trace, after what came before it was written."""
    for chunk in export(trace):
        out.write(chunk)


def export(trace: Trace) -> Iterator[bytes]:
    """The JSON in pieces, one event each."""
    about = {**trace.header.versions, "model": trace.snapshot.info.model}
    yield _BEGIN[:-1] + encode(about) + b',"traceEvents":['
    comma = b"\n"
    for event in events(trace):
        yield comma + encode(event)
        comma = b",\n"
    yield b"\n]}\n"


def events(trace: Trace) -> Iterator[Event]:
    """The events as dictionaries. Those of one row come in order of time."""
    exporter = _Exporter(trace)
    yield from exporter.names()
    for report in trace.reports():
        try:
            made = list(exporter.report(report))
        except (LookupError, ValueError) as error:
            raise UserError(f"{trace.path}: report {report.seq} names what no report before it has made") from error
        yield from made
    yield from exporter.end()


class _Exporter:
    def __init__(self, trace: Trace) -> None:
        self.state = trace.snapshot
        self.origin: int | None = None  # the engine's clock at the first event, in microseconds
        self.now = 0  # end of the last report
        self.computing = False  # whether the counter of tokens stands above zero
        self.rows: dict[str, int] = {}  # live sequence -> its row
        self.last_row = 0
        self.waiting: dict[str, tuple[int, Wait | None]] = {}  # why, and since when that has been the reason

    def names(self) -> Iterator[Event]:
        for pid, name in ((ENGINE, "engine"), (REQUESTS, "requests")):
            yield _event("M", "process_name", pid, 0, 0, {"name": name})
            yield _event("M", "process_sort_index", pid, 0, 0, {"sort_index": pid})
        yield _event("M", "thread_name", ENGINE, STEPS, 0, {"name": "steps"})
        yield _event("M", "thread_name", ENGINE, POOL, 0, {"name": "pool"})
        for seq in self.state.ordered:
            yield from self._row(seq.seq_id)
            if not seq.running:
                self.waiting[seq.seq_id] = 0, seq.wait

    def report(self, report: StepReport) -> Iterator[Event]:
        end = round(report.t * 1e6)
        phases = structs.asdict(report.durations) if report.stepped and report.durations is not None else {}
        start = end - sum(round(ms * 1e3) for ms in phases.values())
        if self.origin is None:
            self.origin = min([start, *(round(a.t * 1e6) for a in report.arrived if a.t is not None)])
        start, end = max(start - self.origin, self.now), max(end - self.origin, self.now)
        if self.computing and start > self.now:
            yield self._tokens(self.now)
        yield from self._queue(report, start)
        before, self.state = self.state, fold(self.state, report)
        yield from self._parts(report, before, start, end)
        yield from self._ends(report, end)
        if report.stepped:
            yield from self._step(report, phases, start, end)
            yield self._tokens(start, report)
        for control in report.control:
            yield _event("i", control.action, ENGINE, STEPS, end, {"detail": control.detail}, "p")
        yield _event("C", "blocks", ENGINE, 0, end, structs.asdict(self.state.pool))
        yield _event("C", "waiting", ENGINE, 0, end, {"waiting": report.num_waiting})
        self.now = end

    def end(self) -> Iterator[Event]:
        for seq_id in list(self.waiting):
            yield from self._waited(seq_id, self.now)
        if self.computing:
            yield self._tokens(self.now)

    def _row(self, seq_id: str) -> Iterator[Event]:
        self.last_row += 1
        self.rows[seq_id] = self.last_row
        yield _event("M", "thread_name", REQUESTS, self.last_row, 0, {"name": seq_id})
        yield _event("M", "thread_sort_index", REQUESTS, self.last_row, 0, {"sort_index": self.last_row})

    def _queue(self, report: StepReport, start: int) -> Iterator[Event]:
        """Waiting spans that begin or end here; they are split where the reason changes, which is when a step plans."""
        for a in report.arrived:
            yield from self._row(a.seq_id)
            came = start if a.t is None else round(a.t * 1e6) - (self.origin or 0)
            self.waiting[a.seq_id] = min(max(came, 0), start), None
        for p in report.preempted:
            args = {"lost": p.lost, "freed": p.freed, "cause": p.cause}
            yield _event("i", "preempted", REQUESTS, self.rows[p.seq_id], start, args, "t")
            self.waiting[p.seq_id] = start, None
        for admitted in report.admitted:
            yield from self._waited(admitted.seq_id, start)
        for changed in report.waiting:
            since, old = self.waiting[changed.seq_id]
            if old is not None:
                yield from self._waited(changed.seq_id, start)
                since = start
            self.waiting[changed.seq_id] = since, changed.wait

    def _waited(self, seq_id: str, until: int) -> Iterator[Event]:
        since, wait = self.waiting.pop(seq_id)
        if since < until:
            args = to_builtins(wait) if wait is not None else {}
            if args:
                args["reason"] = args.pop("why")
            yield _slice("waiting", REQUESTS, self.rows[seq_id], since, until, args)

    def _parts(self, report: StepReport, before: EngineState, start: int, end: int) -> Iterator[Event]:
        """Each sequence's part of the step. `blocks` is the most that it held while the step ran."""
        held = {seq_id: len(seq.table) for seq_id, seq in before.sequences.items()}
        most = Counter(held)
        for move in report.blocks:
            held[move.seq_id] = held.get(move.seq_id, 0) + _GROWTH.get(move.op, 0)
            most[move.seq_id] = max(most[move.seq_id], held[move.seq_id])
        accepted = {r.seq_id: r.kept for r in report.spec}
        for s in report.sched:
            args: Event = {"tokens": s.n_new + s.n_draft, "start": s.start, "blocks": most[s.seq_id]}
            now = self.state.sequences.get(s.seq_id)
            if s.n_draft:
                args |= {"drafted": s.n_draft, "accepted": accepted.get(s.seq_id, 0)}
            elif now is not None and now.k_why is not None:
                args["reason"] = now.k_why
            yield _slice(s.kind, REQUESTS, self.rows[s.seq_id], start, end, args)
        if evicted := [move.block for move in report.blocks if move.op == "evict"]:
            yield _event("i", "evicted", ENGINE, POOL, start, {"blocks": evicted}, "t")

    def _ends(self, report: StepReport, end: int) -> Iterator[Event]:
        for fork in report.forked:
            yield from self._row(fork.child)
            yield _event("i", "forked", REQUESTS, self.rows[fork.child], end, {"parent": fork.parent}, "t")
        for f in report.finished:
            if f.seq_id in self.waiting:
                yield from self._waited(f.seq_id, end)
            args = {"reason": f.reason, "tokens": f.usage.completion_tokens, "cached": f.usage.cached_tokens}
            yield _event("i", "finished", REQUESTS, self.rows.pop(f.seq_id), end, args, "t")

    def _step(self, report: StepReport, phases: dict[str, float], start: int, end: int) -> Iterator[Event]:
        tokens = sum(s.n_new + s.n_draft for s in report.sched)
        args = {"tokens": tokens, "sequences": len(report.sched), "copies": len(report.copies)}
        yield _slice(f"step {report.step}", ENGINE, STEPS, start, end, args)
        inner, until = [], end
        for name, ms in reversed(phases.items()):
            begin = max(start, until - round(ms * 1e3))
            if begin < until:
                inner.append(_slice(name, ENGINE, STEPS, begin, until, {}))
            until = begin
        yield from reversed(inner)

    def _tokens(self, ts: int, report: StepReport | None = None) -> Event:
        """The counter of tokens by kind: those of a step while it runs, zero between steps."""
        count = {"prefill": 0, "decode": 0, "draft": 0}
        for s in report.sched if report is not None else ():
            count["prefill" if s.kind == "prefill" else "decode"] += s.n_new
            count["draft"] += s.n_draft
        self.computing = report is not None
        return _event("C", "tokens", ENGINE, 0, ts, count)


def _slice(name: str, pid: int, tid: int, start: int, end: int, args: Event) -> Event:
    return _event("X", name, pid, tid, start, args) | {"dur": end - start}


def _event(ph: str, name: str, pid: int, tid: int, ts: int, args: Event, scope: str | None = None) -> Event:
    event = {"ph": ph, "name": name, "pid": pid, "tid": tid, "ts": ts, "args": args}
    return event if scope is None else event | {"s": scope}
