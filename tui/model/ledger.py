"""What views need beyond the engine's state: marks per step, rounds, lives of blocks, origins of tokens, events.

`Ledger.add` takes every report once. Reading happens through `lookback.Lookback`, as of any report. Everything is
bounded: rings, and the records of ended sequences are dropped oldest first.
"""

from __future__ import annotations

from collections import deque
from string import ascii_lowercase, ascii_uppercase

from mini_infer.observe.events import Finished, Round, StepReport
from mini_infer.observe.state import EngineState
from tui.model.events import events_of
from tui.model.history import KEPT_STEPS
from tui.model.records import (
    BlockLife,
    Event,
    KRecord,
    Origin,
    PreemptionRecord,
    RequestRecord,
    RoundRecord,
    StepRecord,
    step_record,
)
from tui.model.spans import Aligner, TextSpan

LETTERS = ascii_uppercase + ascii_lowercase
KEPT_ENDED = 64
KEPT_EVENTS = 4_000


class Ledger:
    """Fed with reports in order; `restart` after a gap."""

    def __init__(self, snapshot: EngineState) -> None:
        self.requests: dict[str, RequestRecord] = {}
        self.steps: deque[StepRecord] = deque(maxlen=KEPT_STEPS)
        self.events: deque[Event] = deque(maxlen=KEPT_EVENTS)
        self.lives: dict[int, list[BlockLife]] = {}
        self.latencies: deque[tuple[int, float]] = deque(maxlen=100)  # (seq, TTFT in s) of the last requests
        self.gaps: deque[tuple[int, float]] = deque(maxlen=512)  # (seq, ITL in s)
        self.keep: set[str] = set()  # ended sequences that are not dropped
        self._pieces: dict[int, str] = {}
        self._ended: deque[str] = deque()
        self._count = 0
        self.restart(snapshot)

    def restart(self, snapshot: EngineState) -> None:
        """Go on from a snapshot: sequences that are new to us join; tokens whose reports were missed are `unknown`."""
        self._pieces |= snapshot.pieces
        for seq in snapshot.ordered:
            record = self.requests.get(seq.seq_id)
            if record is None:
                record = self._new(seq.seq_id, seq.request_id, seq.prompt, snapshot.seq, snapshot.step, 0.0)
                record.priority, record.max_tokens = seq.priority, seq.max_tokens
            missed = len(seq.output) - len(record.output)
            record.output += seq.output[len(record.output) :]
            record.origins += [Origin("unknown", snapshot.seq, snapshot.step, 0.0)] * missed
            known = sum(len(span.text) for span in record.spans)
            if len(seq.text) > known:
                record.spans.append(TextSpan(seq.text[known:], max(0, len(record.output) - 1), snapshot.seq))
            record.aligner = Aligner(len(record.output))
            record.cached, record.miss = seq.cached, seq.miss
            if seq.cached is not None and record.admitted_seq is None:
                record.admitted_seq = snapshot.seq
            record.k.append(KRecord(snapshot.seq, seq.k, seq.k_why))
        for record in self.requests.values():
            if record.ended_seq is None and record.seq_id not in snapshot.sequences:
                finished = next((f for f in snapshot.finished if f.seq_id == record.seq_id), None)
                self._end(record, finished, snapshot.seq, snapshot.step)

    def add(self, report: StepReport) -> None:
        """Take the next report in, after it was folded."""
        self._pieces |= report.pieces
        marks: dict[str, str] = {}
        self._queue(report, marks)
        self.events += events_of(report, self.requests)
        rounds = {r.seq_id: r for r in report.spec}
        for slice_ in report.sched:
            made = rounds.get(slice_.seq_id)
            if slice_.kind == "prefill" or (slice_.n_draft == 0 and slice_.start + 1 < slice_.num_tokens):
                marks[slice_.seq_id] = "P"
                self.requests[slice_.seq_id].chunks.append(report.seq)
            else:
                marks[slice_.seq_id] = str(made.kept) if made is not None else "D"
        self._outputs(report, rounds)
        self._blocks(report)
        for choice in report.k:
            self.requests[choice.seq_id].k.append(KRecord(report.seq, choice.k, choice.why))
        for finished in report.finished:
            marks[finished.seq_id] = "A" if finished.reason == "abort" else "F"
            self._end(self.requests[finished.seq_id], finished, report.seq, report.step)
        self.steps.append(step_record(report, marks))

    def _queue(self, report: StepReport, marks: dict[str, str]) -> None:
        for a in report.arrived:
            t = report.t if a.t is None else a.t
            record = self._new(a.seq_id, a.request_id, a.prompt, report.seq, report.step, t)
            record.priority, record.max_tokens = a.priority, a.max_tokens
        taken: dict[str, int] = {}
        for move in report.blocks:
            if move.op in ("alloc", "cow"):
                taken[move.seq_id] = taken.get(move.seq_id, 0) + 1
        for p in report.preempted:
            marks[p.seq_id] = "!"
            self.requests[p.seq_id].preemptions.append(
                PreemptionRecord(report.seq, report.step, p.lost, p.freed, p.cause, tuple(taken.items()))
            )
        for let in report.admitted:
            record = self.requests[let.seq_id]
            if let.first:
                record.admitted_seq, record.cached, record.miss = report.seq, let.cached, let.miss
        for fork in report.forked:
            parent = self.requests[fork.parent]
            child = self._new(fork.child, parent.request_id, parent.prompt, report.seq, report.step, parent.t)
            child.priority, child.max_tokens = parent.priority, parent.max_tokens
            child.admitted_seq, child.cached, child.miss = report.seq, parent.cached, parent.miss

    def _outputs(self, report: StepReport, rounds: dict[str, Round]) -> None:
        for out in report.outputs:
            record = self.requests[out.seq_id]
            made = rounds.get(out.seq_id)
            record.spans += record.aligner.add(out.token_ids, out.text, report.seq, self._pieces)
            if out.token_ids:
                if record.last_t is None:
                    record.first_t = report.t
                    self.latencies.append((report.seq, report.t - record.t))
                else:
                    self.gaps.append((report.seq, report.t - record.last_t))
                record.last_t = report.t
            record.output += out.token_ids
            record.origins += [_origin(report, made, i) for i in range(len(out.token_ids))]
            if made is not None:
                record.rounds.append(_round(record, report, made, len(out.token_ids)))

    def _blocks(self, report: StepReport) -> None:
        step, seq = report.step, report.seq
        if any(c.action == "fault" for c in report.control):
            self.lives.clear()
        for move in report.blocks:
            lives = self.lives.setdefault(move.block, [BlockLife(-1)])
            life = lives[-1]._replace(seq=seq, last_step=step, last_op=move.op)
            match move.op:
                case "alloc" | "cow":
                    evicted = life.evicted_step if life.evicted_step == step else None
                    life = BlockLife(seq, step, move.seq_id, evicted_step=evicted, last_step=step, last_op=move.op)
                case "share":
                    life = life._replace(hits=life.hits + 1, last_hit=step, freed_step=None)
                case "hash":
                    life = life._replace(hashed_step=step)
                case "free":
                    life = life._replace(freed_step=step)
                case "evict":
                    life = life._replace(evicted_step=step)
                case "unhash":
                    life = life._replace(hashed_step=None)
            lives.append(life)
            if len(lives) > 64 and lives[32].last_step < step - KEPT_STEPS:
                del lives[:32]

    def _new(
        self, seq_id: str, request_id: str, prompt: tuple[int, ...], seq: int, step: int, t: float
    ) -> RequestRecord:
        record = RequestRecord(seq_id, request_id, self._count, self._letter(), prompt, seq, step, t)
        self._count += 1
        self.requests[seq_id] = record
        return record

    def _letter(self) -> str:
        """The next letter in order, round A to Z; where a live sequence has it, the next that none has."""
        used = {r.letter for r in self.requests.values() if r.ended_seq is None}
        order = [ascii_uppercase[(self._count + i) % 26] for i in range(26)]
        return next((c for c in (*order, *ascii_lowercase) if c not in used), "?")

    def _end(self, record: RequestRecord, finished: Finished | None, seq: int, step: int) -> None:
        record.ended_seq, record.ended_step, record.finished = seq, step, finished
        self._ended.append(record.seq_id)
        for seq_id in [i for i in self._ended if i not in self.keep][:-KEPT_ENDED]:
            self._ended.remove(seq_id)
            del self.requests[seq_id]


def _origin(report: StepReport, made: Round | None, index: int) -> Origin:
    if made is None:
        return Origin("plain", report.seq, report.step, report.t)
    if index >= made.kept:
        return Origin("bonus" if made.bonus else "own", report.seq, report.step, report.t)
    p, q, gap = (None if v is None or index >= len(v) else v[index] for v in (made.p, made.q, made.gap))
    return Origin("draft", report.seq, report.step, report.t, p, q, gap)


def _round(record: RequestRecord, report: StepReport, made: Round, tokens: int) -> RoundRecord:
    last = record.rounds[-1] if record.rounds else RoundRecord(0, 0, made, 0, 0, 0, 0, (), ())
    return RoundRecord(
        report.seq, report.step, made, last.rounds + 1, last.drafted + made.drafted, last.accepted + made.kept,
        last.tokens + tokens, _plus(last.accepted_at, made.kept), _plus(last.judged_at, len(made.draft)),
    )  # fmt: skip


def _plus(counts: tuple[int, ...], first: int) -> tuple[int, ...]:
    """One more at each of the first positions."""
    size = max(len(counts), first)
    return tuple((counts[i] if i < len(counts) else 0) + (i < first) for i in range(size))
