"""What the ledger remembers beside the engine's state. Records grow at their end only and carry the seq of the report
they come from, so that each can be read as it was at any report."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from mini_infer.observe.events import BlockMove, Budget, Durations, Finished, KReason, Miss, Round, StepReport
from tui.model.spans import Aligner, TextSpan

Source = Literal["plain", "draft", "own", "bonus", "unknown"]
"""Where an output token came from: a plain decode, an accepted draft, the target's own after a rejection, the target's
bonus after a round kept whole; unknown where its report was missed."""


class Origin(NamedTuple):
    """Where one output token came from, and the figures of its draft where it had one."""

    source: Source
    seq: int
    step: int
    t: float  # of that step's end
    p: float | None = None  # the target's and the draft's probability of it; None in greedy rounds
    q: float | None = None
    gap: float | None = None  # greedy rounds: the target's best logit minus the draft's


class RoundRecord(NamedTuple):
    """A speculative round, and what all rounds of the sequence so far come to, this one included."""

    seq: int
    step: int
    round: Round
    rounds: int
    drafted: int
    accepted: int
    tokens: int  # that rounds gave
    accepted_at: tuple[int, ...]  # by position
    judged_at: tuple[int, ...]


class KRecord(NamedTuple):
    seq: int
    k: int
    why: KReason | None


class PreemptionRecord(NamedTuple):
    seq: int
    step: int
    lost: int
    freed: int
    cause: str
    needs: tuple[tuple[str, int], ...] = ()  # who got how many blocks in that step


class BlockLife(NamedTuple):
    """A block since it was last taken, as of report `seq`."""

    seq: int
    alloc_step: int | None = None  # None: before anybody looked
    alloc_by: str = ""
    hits: int = 0  # times a further table took it since
    last_hit: int | None = None  # step
    hashed_step: int | None = None
    freed_step: int | None = None  # when the last holder left; None while held
    evicted_step: int | None = None  # of what it held before this
    last_step: int = 0  # the step of the last change of any kind
    last_op: str = ""


class Event(NamedTuple):
    """One line of the event list. `kind` is for its colour and for breaking."""

    seq: int
    step: int
    kind: str  # arrived admitted preempted finished error aborted spec blocks control evict
    seq_id: str
    text: str


class StepRecord(NamedTuple):
    """A report in short."""

    seq: int
    step: int
    t: float
    stepped: bool
    marks: dict[str, str]  # sequence -> P chunk, D plain decode, 0..9 drafts kept, ! preempted, F finished, A aborted
    durations: Durations | None
    budget: Budget | None
    tokens: int  # output tokens of the step
    moves: tuple[BlockMove, ...] = ()
    blocks_used: int = 0


@dataclass(slots=True, eq=False)
class RequestRecord:
    """A sequence from its arrival on, kept a while after its end."""

    seq_id: str
    request_id: str
    number: int  # order of arrival from 0: gives letter and hue
    letter: str
    prompt: tuple[int, ...]
    seq: int  # of the report it arrived in
    step: int
    t: float
    title: str | None = None  # made when it is first asked for
    priority: int = 0
    max_tokens: int = 0
    admitted_seq: int | None = None
    cached: int | None = None
    miss: Miss | None = None
    chunks: list[int] = field(default_factory=list)  # seqs of the reports that computed a chunk of its prompt
    preemptions: list[PreemptionRecord] = field(default_factory=list)
    rounds: deque[RoundRecord] = field(default_factory=lambda: deque(maxlen=512))
    k: deque[KRecord] = field(default_factory=lambda: deque(maxlen=256))
    output: list[int] = field(default_factory=list)
    origins: list[Origin] = field(default_factory=list)
    spans: list[TextSpan] = field(default_factory=list)  # the text, by the tokens that gave it
    aligner: Aligner = field(default_factory=Aligner)
    first_t: float | None = None
    last_t: float | None = None
    ended_seq: int | None = None
    ended_step: int = 0
    finished: Finished | None = None

    @property
    def hue(self) -> int:
        return self.number % 8


def step_record(report: StepReport, marks: dict[str, str]) -> StepRecord:
    return StepRecord(
        report.seq, report.step, report.t, report.stepped, marks, report.durations, report.budget,
        sum(len(o.token_ids) for o in report.outputs), report.blocks, report.pool.used if report.pool else 0,
    )  # fmt: skip
