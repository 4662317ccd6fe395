"""The engine's telemetry as values: one `StepReport` per step, and the records it is made of.

A report names requests, blocks and reasons, never widgets or metrics; `state.fold` turns a snapshot and the reports
after it into the engine's state. Frozen, JSON-ready through msgspec; the JSON names are short because a report is sent
at every step, and records that come sixteen at a time are arrays. Every number must be finite: JSON has no infinity.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from msgspec import Struct, field
from msgspec.json import Decoder, Encoder

SCHEMA = 1
"""Version of the JSON form of reports and snapshots; raised when a reader of the old form would misread the new."""

FinishReason = Literal["stop", "length", "abort", "error"]
WaitKind = Literal["BLOCKS", "TOKENS", "SEQS", "ORDER", "COOLDOWN", "PAUSED"]
MissKind = Literal["DIFF", "EVICTED", "NEVER_SEEN", "SALT", "PARTIAL", "LAST_TOKEN"]
MoveOp = Literal["alloc", "share", "free", "cow", "hash", "unhash", "evict"]
KReason = Literal["OFF", "LAG", "BUDGET", "BLOCKS", "TAIL", "GRAMMAR", "NO_MATCH", "ADAPTIVE", "FAILED"]


class Wait(Struct, frozen=True, omit_defaults=True):
    """Why a waiting sequence waits. `need`/`have`: blocks (BLOCKS), seats (SEQS), tokens left (TOKENS, in `have`)."""

    kind: WaitKind = field(name="why")
    need: int = 0
    have: int = 0
    behind: str = ""  # ORDER: the sequence directly ahead in the queue


class Miss(Struct, frozen=True, omit_defaults=True):
    """Why a prefix hit ended where it did."""

    kind: MissKind = field(name="why")
    token: int = 0  # position of the first token that was not served from the cache (DIFF: the first that differs)
    ours: tuple[int, ...] = ()  # DIFF: the tokens from there on, ours and the closest cached ones
    theirs: tuple[int, ...] = ()
    step: int = 0  # EVICTED: when


class BlockMove(Struct, frozen=True, array_like=True):
    """One change of the pool: [op, block, sequence, index in its table, key, parent key].

    alloc, share: the block is appended to the sequence's table; free: the sequence's last block leaves it;
    cow: table[index] becomes `block`; hash: the block, table[index], is published under `key` (an index of -1 means
    wherever the table holds it); unhash, evict: it loses its key.
    """

    op: MoveOp
    block: int
    seq_id: str = ""
    index: int = -1
    key: str = ""
    parent: str = ""


class Arrived(Struct, frozen=True, omit_defaults=True):
    """A request joined the queue. `n` choices will be forked from it once its prompt is computed."""

    seq_id: str = field(name="r")
    request_id: str
    prompt: tuple[int, ...]
    arrival: int  # place in the order of arrival
    priority: int = 0  # lower goes first
    n: int = 1
    max_tokens: int = 0
    t: float | None = None  # when, on the clock of `StepReport.t`; None where nobody looked at the clock


class Forked(Struct, frozen=True):
    """`child` was made from `parent` at the commit of the last prompt row; it starts with the parent's table."""

    parent: str
    child: str
    choice: int


class Scheduled(Struct, frozen=True, array_like=True):
    """One sequence's part of a step: [sequence, first position, known tokens, drafted tokens, tokens in all]."""

    seq_id: str
    start: int
    n_new: int
    n_draft: int
    num_tokens: int

    @property
    def kind(self) -> Literal["prefill", "decode", "verify"]:
        """For display only; the engine itself knows no phases."""
        if self.n_draft:
            return "verify"
        return "decode" if self.n_new == 1 else "prefill"


class Waiting(Struct, frozen=True, omit_defaults=True):
    """A waiting sequence whose reason changed. None: it leads the queue and the next step will look at it."""

    seq_id: str = field(name="r")
    wait: Wait | None = None


class Admitted(Struct, frozen=True, omit_defaults=True):
    """A sequence left the queue with `cached` tokens of its prefix already in the pool."""

    seq_id: str = field(name="r")
    cached: int = 0
    first: bool = True  # first admission: this hit is the one that is counted
    miss: Miss | None = None


class Preempted(Struct, frozen=True):
    seq_id: str = field(name="r")
    lost: int  # computed tokens that must be computed (or hit) again
    freed: int  # blocks its table held
    cause: str  # the sequence that needed a block


class Round(Struct, frozen=True, array_like=True):
    """One speculative round: [sequence, judged drafts, drafted, accepted, own token, whether bonus, p, q, u, gap].

    p, q, u are null in greedy rounds, which have the logit gap (the target's best minus the draft's) instead; all of
    them to four digits (`four_digits`).
    """

    seq_id: str
    draft: tuple[int, ...]  # the kept ones and the first that was not
    drafted: int
    kept: int
    token: int | None  # the target's own: replacement or bonus; None where the answer ended before it
    bonus: bool
    p: tuple[float, ...] | None = None
    q: tuple[float, ...] | None = None
    u: tuple[float, ...] | None = None
    gap: tuple[float, ...] | None = None


class KChoice(Struct, frozen=True, array_like=True):
    """[sequence, how many drafts it got last, why none where that is 0, how far the draft model's rows go]."""

    seq_id: str
    k: int
    why: KReason | None = None
    rows: int = 0  # num_computed_draft


class Usage(Struct, frozen=True, omit_defaults=True):
    """Token counts of a sequence; `completion_tokens` includes the end token that stopped it."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    preemptions: int = 0
    recomputed_tokens: int = 0
    steps: int = 0  # that gave it tokens: one each without drafts
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_by_position: tuple[int, ...] = ()
    judged_by_position: tuple[int, ...] = ()
    off_reason: KReason | None = None  # why most decode steps had no drafts; None where most had some


class Finished(Struct, frozen=True, omit_defaults=True):
    seq_id: str = field(name="r")
    reason: FinishReason
    usage: Usage
    error: str | None = None
    stop: str | int | None = None  # the stop string or id that ended it


class TokenLogprob(Struct, frozen=True, array_like=True):
    """[id, natural logarithm of its probability, rank (1 = likeliest), [[id, logarithm] of the likeliest]].

    The logarithm of an impossible token is a large negative number, not an infinity.
    """

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


class Output(Struct, frozen=True, omit_defaults=True):
    """What a step gave one sequence. `text` is what may be shown now: it can lag behind the ids."""

    seq_id: str = field(name="r")
    token_ids: tuple[int, ...] = field(name="ids", default=())
    text: str = ""
    finished: Finished | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None  # once, when the prompt is done; [0] is None


class Durations(Struct, frozen=True):
    """Milliseconds of each phase of a step."""

    schedule: float = 0.0
    draft: float = 0.0
    forward: float = 0.0
    sample: float = 0.0
    commit: float = 0.0


class Budget(Struct, frozen=True):
    tokens: int
    max_tokens: int
    seqs: int
    max_seqs: int


class PoolCount(Struct, frozen=True):
    """used + cached + free = all blocks; cached blocks are idle but still hold a reusable prefix."""

    used: int
    cached: int
    free: int


class Control(Struct, frozen=True):
    """A change made from outside: pause, resume, reset_cache, and `fault` for a rebuild after a failed step."""

    action: Literal["pause", "resume", "reset_cache", "fault"]
    detail: str = ""


class StepReport(Struct, frozen=True, omit_defaults=True):
    """Everything that happened since the last report. Iterating gives (sequence id, token id) pairs in order.

    `out` is always there; the rest is filled only while a sink is attached. A report without a step (news while
    paused or idle) has `stepped` false and keeps the last step's number.
    """

    seq: int
    step: int
    t: float  # seconds, monotonic clock of the engine
    stepped: bool = True
    outputs: tuple[Output, ...] = field(name="out", default=())
    durations: Durations | None = field(name="dur_ms", default=None)
    budget: Budget | None = None
    pool: PoolCount | None = None
    num_waiting: int = 0
    arrived: tuple[Arrived, ...] = ()
    admitted: tuple[Admitted, ...] = ()
    forked: tuple[Forked, ...] = ()
    aborted: tuple[str, ...] = ()
    control: tuple[Control, ...] = ()
    sched: tuple[Scheduled, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    preempted: tuple[Preempted, ...] = ()
    blocks: tuple[BlockMove, ...] = ()
    copies: tuple[tuple[int, int], ...] = ()
    spec: tuple[Round, ...] = ()
    k: tuple[KChoice, ...] = ()
    pieces: dict[int, str] = {}

    def __iter__(self) -> Iterator[tuple[str, int]]:
        for output in self.outputs:
            for token_id in output.token_ids:
                yield output.seq_id, token_id

    @property
    def finished(self) -> tuple[Finished, ...]:
        return tuple(o.finished for o in self.outputs if o.finished is not None)


encode = Encoder().encode
"""The JSON of any record here or in `state`, as UTF-8 bytes without a line end."""

decode_report = Decoder(StepReport).decode
"""A report from its JSON. Raises msgspec.DecodeError for text that is not one."""


def four_digits(value: float) -> float:
    """`value` to four significant digits, as reports hold probabilities; an infinite one becomes ±1e9."""
    return float(f"{min(max(value, -1e9), 1e9):.4g}")
