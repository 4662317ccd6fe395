"""Collects what happens between two reports, and builds the report and the snapshot from it.

Outputs and totals are always kept: they are what a caller of `step` needs. Everything else is noted only while a sink
listens. The scheduler, its pool and its queue are read, never changed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING

from mini_infer.observe.events import (
    Admitted,
    Arrived,
    Budget,
    Control,
    Durations,
    Finished,
    Forked,
    KChoice,
    KReason,
    Output,
    PoolCount,
    Preempted,
    Round,
    Scheduled,
    StepReport,
    Waiting,
    four_digits,
)
from mini_infer.observe.state import KEPT_FINISHED, BlockState, EngineInfo, EngineState, SequenceState, Totals

if TYPE_CHECKING:
    from mini_infer.sampling.rows import Judgement
    from mini_infer.scheduler.continuous import ContinuousScheduler
    from mini_infer.scheduler.plan import Preemption, StepPlan
    from mini_infer.scheduler.sequence import Sequence


@dataclass(slots=True)
class _News:
    """What the next report will say. `outputs` is keyed by sequence: one output each."""

    planned: bool = False  # a step moved blocks, even if it was undone
    outputs: dict[str, Output] = field(default_factory=dict)
    arrived: list[Arrived] = field(default_factory=list)
    admitted: list[Admitted] = field(default_factory=list)
    forked: list[Forked] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    control: list[Control] = field(default_factory=list)
    sched: list[Scheduled] = field(default_factory=list)
    preempted: list[Preempted] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    spec: list[Round] = field(default_factory=list)


class Recorder:
    """`text_of(seq_id)` gives a sequence's text so far; `piece(id)` the text of one token id, for display."""

    def __init__(
        self, info: EngineInfo, text_of: Callable[[str], str], piece: Callable[[int], str] | None = None
    ) -> None:
        self.info = info
        self.seq = 0
        self.listening = False
        self.finished: deque[Finished] = deque(maxlen=KEPT_FINISHED)
        self.totals = dict.fromkeys(Totals.__struct_fields__, 0)
        self._reported = dict(self.totals)  # the totals of the last report, to which a fault returns
        self._text_of = text_of
        self._piece = piece
        self._pieces: dict[int, str] = {}
        self._told: dict[str, object] = {}  # the reason last reported for each waiting sequence
        self._told_k: dict[str, tuple[int, KReason | None, int]] = {}
        self._news = _News()

    @property
    def pending(self) -> bool:
        """Something happened that no report has told yet."""
        n = self._news
        return bool(n.planned or n.outputs or n.arrived or n.aborted or n.control)

    # --- listening --------------------------------------------------------------------------------------------------

    def listen(self, scheduler: ContinuousScheduler, on: bool) -> None:
        """Begin or end the notes that only an observer needs. Called between two reports, with nothing pending."""
        self.listening = on
        scheduler.pool.moves = [] if on else None
        scheduler.queue.changed = {} if on else None
        self._told = {s.seq_id: s.wait for s in scheduler.queue} if on else {}
        self._told_k = {}
        self._pieces = {}
        if on and self._piece is not None:
            for seq in scheduler.sequences.values():
                self._new_pieces(seq.tokens)
            for entry in scheduler.prefix.entries.values():
                self._new_pieces(entry.tokens)

    def _new_pieces(self, ids: list[int] | tuple[int, ...]) -> dict[int, str]:
        if self._piece is None:
            return {}
        new = {i: self._piece(i) for i in dict.fromkeys(ids) if i not in self._pieces}
        self._pieces.update(new)
        return new

    # --- notes ------------------------------------------------------------------------------------------------------

    def count(self, **counts: int) -> None:
        for name, n in counts.items():
            self.totals[name] += n

    def arrived(self, seq: Sequence) -> None:
        self.count(requests=1)
        if self.listening:
            self._news.arrived.append(
                Arrived(
                    seq_id=seq.seq_id,
                    request_id=seq.request_id,
                    prompt=tuple(seq.tokens),
                    arrival=seq.arrival,
                    priority=seq.priority,
                    n=seq.n,
                    max_tokens=seq.max_tokens,
                    t=perf_counter(),
                )
            )

    def output(self, output: Output) -> None:
        """What a step (or an abort) gave a sequence; a later output in the same report is merged into it."""
        before = self._news.outputs.get(output.seq_id)
        if before is not None:
            output = Output(
                output.seq_id,
                before.token_ids + output.token_ids,
                before.text + output.text,
                output.finished,
                before.logprobs + output.logprobs,
                output.prompt_logprobs or before.prompt_logprobs,
            )
        self._news.outputs[output.seq_id] = output

    def aborted(self, seq_id: str) -> None:
        self._news.aborted.append(seq_id)

    def control(self, control: Control) -> None:
        self._news.control.append(control)

    def preempted(self, preemptions: tuple[Preemption, ...]) -> None:
        """Of every plan, whether its step stands or was undone."""
        self._news.planned = True
        self.count(preemptions=len(preemptions))
        if self.listening:
            for p in preemptions:
                self._told_k.pop(p.seq_id, None)
            self._news.preempted += [Preempted(p.seq_id, p.lost, p.freed, p.cause) for p in preemptions]

    def committed(self, plan: StepPlan, scheduler: ContinuousScheduler) -> None:
        """The plan stands. Called before any of its results moves a sequence on."""
        self.preempted(plan.preempted)
        for a in plan.admitted:
            seq = scheduler.sequences[a.seq_id]
            self._told.pop(a.seq_id, None)
            if a.first:
                self.count(prompt_tokens=seq.num_prompt, cached_tokens=a.cached)
            else:
                self.count(recomputed_tokens=max(0, seq.lost - a.cached))
            if self.listening:
                self._news.admitted.append(Admitted(a.seq_id, a.cached, a.first, a.miss))
        self.count(computed_tokens=plan.num_tokens)
        if self.listening:
            self._news.copies += plan.copies
            for s in plan.slices:
                known = scheduler.sequences[s.seq_id].num_tokens
                self._news.sched.append(Scheduled(s.seq_id, s.start, s.n_new, s.n_draft, known))

    def forked(self, parent: str, children: list[Sequence]) -> None:
        if self.listening:
            self._news.forked += [Forked(parent, c.seq_id, c.choice) for c in children]

    def round(
        self, seq_id: str, judged: tuple[Judgement, ...], kept: int, own: tuple[int, ...], num_drafts: int
    ) -> None:
        """A round of speculation: the drafts that were judged, `kept` of them accepted, and the target's own token.

        `own` is empty where the answer ended within the accepted drafts.
        """
        drafted = num_drafts if own else kept
        self.count(rounds=1, drafted=drafted, accepted=kept)
        if self.listening:

            def column(name: str) -> tuple[float, ...] | None:
                values = [getattr(j, name) for j in judged]
                return None if None in values or not values else tuple(four_digits(v) for v in values)

            self._news.spec.append(
                Round(
                    seq_id,
                    tuple(j.draft for j in judged),
                    drafted,
                    kept,
                    own[0] if own else None,
                    kept == num_drafts and bool(own),
                    column("p"),
                    column("q"),
                    column("u"),
                    column("gap"),
                )
            )

    def fault(self, scheduler: ContinuousScheduler, message: str) -> None:
        """Everything was rebuilt: what this step had noted about blocks and plans did not happen."""
        self._news = _News(
            outputs=self._news.outputs,
            arrived=self._news.arrived,
            forked=self._news.forked,
            aborted=self._news.aborted,
            control=self._news.control,
        )
        self.totals = self._reported | {"requests": self.totals["requests"]}
        scheduler.pool.evictions = self.totals["evictions"]
        self.count(faults=1)
        self.control(Control("fault", message))
        self._told.clear()
        self._told_k.clear()
        if self.listening:
            scheduler.pool.moves, scheduler.queue.changed = [], {}

    # --- the report -------------------------------------------------------------------------------------------------

    def report(self, scheduler: ContinuousScheduler, t: float, durations: Durations | None) -> StepReport:
        """Everything since the last report, at `t` seconds of the engine's clock; no durations: no step was taken."""
        news, self._news = self._news, _News()
        self.seq += 1
        outputs = tuple(news.outputs.values())
        self.count(output_tokens=sum(len(o.token_ids) for o in outputs))
        for output in outputs:
            if output.finished is not None:
                self.finished.append(output.finished)
                self.count(**{output.finished.reason: 1})
                self._told.pop(output.seq_id, None)
                self._told_k.pop(output.seq_id, None)
        self.totals |= {"steps": scheduler.step, "evictions": scheduler.pool.evictions}
        self._reported = dict(self.totals)
        stepped = durations is not None
        if not self.listening:
            return StepReport(self.seq, scheduler.step, t, stepped, outputs)
        moves, scheduler.pool.moves = scheduler.pool.moves or [], []
        pieces: dict[int, str] = {}
        for arrived in news.arrived:
            pieces |= self._new_pieces(arrived.prompt)
        for output in outputs:
            pieces |= self._new_pieces(output.token_ids)
        return StepReport(
            seq=self.seq,
            step=scheduler.step,
            t=t,
            stepped=stepped,
            outputs=outputs,
            durations=durations,
            budget=Budget(
                sum(s.n_new + s.n_draft for s in news.sched),
                scheduler.max_batch_tokens,
                scheduler.seats,
                scheduler.max_running,
            ),
            pool=_pool_count(scheduler),
            num_waiting=len(scheduler.queue),
            arrived=tuple(news.arrived),
            admitted=tuple(news.admitted),
            forked=tuple(news.forked),
            aborted=tuple(news.aborted),
            control=tuple(news.control),
            sched=tuple(news.sched),
            waiting=self._changed_reasons(scheduler),
            preempted=tuple(news.preempted),
            blocks=tuple(moves),
            copies=tuple(news.copies),
            spec=tuple(news.spec),
            k=self._changed_drafting(scheduler) if self.info.draft != "none" else (),
            pieces=pieces,
        )

    def _changed_reasons(self, scheduler: ContinuousScheduler) -> tuple[Waiting, ...]:
        """Reasons of waiting sequences that differ from what was last reported."""
        changed, scheduler.queue.changed = scheduler.queue.changed or {}, {}
        result = []
        for seq_id in changed:
            seq = scheduler.sequences.get(seq_id)
            if seq is None or seq.is_running:
                self._told.pop(seq_id, None)
            elif seq.wait != self._told.get(seq_id):
                self._told[seq_id] = seq.wait
                result.append(Waiting(seq_id, seq.wait))
        return tuple(result)

    def _changed_drafting(self, scheduler: ContinuousScheduler) -> tuple[KChoice, ...]:
        """K, its reason and the draft's rows of each running sequence, where they differ from what was last reported.

        Who waits has none of them.
        """
        result = []
        for seq in scheduler.running:
            now = (seq.k, seq.k_why, seq.num_computed_draft)
            if self._told_k.get(seq.seq_id) != now:
                self._told_k[seq.seq_id] = now
                result.append(KChoice(seq.seq_id, *now))
        return tuple(result)

    def snapshot(self, scheduler: ContinuousScheduler, paused: bool) -> EngineState:
        """The state after the last report. Exact only while nothing is pending."""
        blocks = {e.block: BlockState(e.key.hex(), e.parent.hex(), e.tokens) for e in scheduler.prefix.entries.values()}
        return EngineState(
            seq=self.seq,
            step=scheduler.step,
            info=self.info,
            totals=Totals(**self.totals),
            pool=_pool_count(scheduler),
            paused=paused,
            sequences={s.seq_id: self._sequence(s) for s in scheduler.sequences.values()},
            blocks=blocks,
            finished=tuple(self.finished),
            pieces=dict(self._pieces),
        )

    def _sequence(self, seq: Sequence) -> SequenceState:
        return SequenceState(
            seq_id=seq.seq_id,
            request_id=seq.request_id,
            choice=seq.choice,
            n=seq.n,
            priority=seq.priority,
            arrival=seq.arrival,
            max_tokens=seq.max_tokens,
            prompt=tuple(seq.tokens[: seq.num_prompt]),
            output=tuple(seq.output),
            text=self._text_of(seq.seq_id),
            running=seq.is_running,
            num_computed=seq.num_computed,
            num_computed_draft=seq.num_computed_draft,
            cached=seq.num_cached,
            miss=seq.miss,
            wait=seq.wait,
            preemptions=seq.preemptions,
            lost=seq.lost,
            table=tuple(seq.table.blocks),
            k=seq.k,
            k_why=seq.k_why,
        )


def _pool_count(scheduler: ContinuousScheduler) -> PoolCount:
    pool = scheduler.pool
    return PoolCount(pool.num_used, pool.num_cached, pool.num_free - pool.num_cached)
