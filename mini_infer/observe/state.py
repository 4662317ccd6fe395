"""The engine's state as an observer sees it, and `fold`, which carries it forward by one report.

`fold(snapshot, report)` after every report equals `engine.snapshot()`: a screen, a replay and a remote reader need
nothing else. States are values that share what did not change; no report is ever applied in place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import reduce

from msgspec import Struct, field
from msgspec.json import Decoder
from msgspec.structs import replace

from mini_infer.observe.events import SCHEMA, BlockMove, Finished, KReason, Miss, PoolCount, StepReport, Wait

KEPT_FINISHED = 32
"""How many ended sequences a state remembers."""


class BlockState(Struct, frozen=True):
    """A published block: its key, its parent's key and its tokens. Who holds it follows from the tables."""

    key: str
    parent: str
    tokens: tuple[int, ...]


class SequenceState(Struct, frozen=True, omit_defaults=True):
    """A live sequence as an observer sees it. Order of service: (priority, arrival, choice)."""

    seq_id: str = field(name="r")
    request_id: str
    choice: int
    n: int  # choices still to be forked from it, itself included
    priority: int
    arrival: int
    max_tokens: int
    prompt: tuple[int, ...]
    output: tuple[int, ...] = ()
    text: str = ""
    running: bool = False
    num_computed: int = 0
    num_computed_draft: int = 0
    cached: int | None = None  # tokens hit at the first admission; None before it
    miss: Miss | None = None
    wait: Wait | None = None
    preemptions: int = 0
    lost: int = 0  # computed tokens lost at the last preemption while it has not resumed
    table: tuple[int, ...] = ()
    k: int = 0
    k_why: KReason | None = None


class Totals(Struct, frozen=True):
    """Counters since the engine began."""

    steps: int = 0
    requests: int = 0
    prompt_tokens: int = 0  # of sequences admitted for the first time
    cached_tokens: int = 0
    computed_tokens: int = 0  # rows of the target's forward passes, drafts included
    output_tokens: int = 0
    preemptions: int = 0
    recomputed_tokens: int = 0
    evictions: int = 0
    faults: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    stop: int = 0  # sequences finished, by reason
    length: int = 0
    abort: int = 0
    error: int = 0


class EngineInfo(Struct, frozen=True):
    """What does not change while an engine lives."""

    model: str
    num_blocks: int
    block_size: int
    max_running: int
    max_batch_tokens: int
    max_chunk: int
    max_model_len: int
    prefix_cache: bool = True
    draft: str = "none"
    schema: int = SCHEMA


class EngineState(Struct, frozen=True):
    """The whole observable state: `engine.snapshot()`, and equally the fold of all reports since an earlier one."""

    seq: int
    step: int
    info: EngineInfo
    totals: Totals
    pool: PoolCount
    paused: bool = False
    sequences: dict[str, SequenceState] = {}
    blocks: dict[int, BlockState] = {}
    finished: tuple[Finished, ...] = ()  # the last 32, oldest first
    pieces: dict[int, str] = {}

    @property
    def waiting(self) -> list[SequenceState]:
        return [s for s in self.ordered if not s.running]

    @property
    def running(self) -> list[SequenceState]:
        return [s for s in self.ordered if s.running]

    @property
    def ordered(self) -> list[SequenceState]:
        """All live sequences in order of service."""
        return sorted(self.sequences.values(), key=lambda s: (s.priority, s.arrival, s.choice))

    @property
    def holders(self) -> dict[int, list[str]]:
        """The sequences that hold each block, in order of service."""
        result: dict[int, list[str]] = {}
        for s in self.ordered:
            for block in s.table:
                result.setdefault(block, []).append(s.seq_id)
        return result


decode_state = Decoder(EngineState).decode
"""A snapshot from its JSON. Raises msgspec.DecodeError for text that is not one."""


class Gap(ValueError):
    """A report does not follow the state: reports between them are missing. The remedy is a new snapshot."""

    def __init__(self, expected: int, got: int) -> None:
        super().__init__(f"expected report {expected}, got {got}")
        self.expected = expected
        self.got = got


def fold_all(state: EngineState, reports: Iterable[StepReport]) -> EngineState:
    """`fold` over several reports."""
    return reduce(fold, reports, state)


def fold(state: EngineState, report: StepReport) -> EngineState:
    """The state right after `report`, which must be the next one.

    Raises Gap where reports are missing, ValueError where it names a sequence or block that the state does not have.
    """
    if report.seq != state.seq + 1:
        raise Gap(state.seq + 1, report.seq)
    try:
        return _Folding(state, report).result()
    except (LookupError, ValueError) as error:
        raise ValueError(f"report {report.seq} does not fit the state ({type(error).__name__}: {error})") from error


class _Folding:
    """One fold at work: dictionaries of its own, in which values are replaced and never changed."""

    def __init__(self, state: EngineState, report: StepReport) -> None:
        self.state, self.report = state, report
        self.sequences = dict(state.sequences)
        self.blocks = state.blocks
        self.new = Counter(steps=report.step - state.totals.steps)  # what the report adds to the totals

    def result(self) -> EngineState:
        state, report = self.state, self.report
        paused = self._control()
        self._queue()
        self._outputs()
        self._computed()
        if report.blocks:
            self._moves()
        for waiting in report.waiting:
            self._change(waiting.seq_id, wait=waiting.wait)
        for choice in report.k:
            self._change(choice.seq_id, k=choice.k, k_why=choice.why, num_computed_draft=choice.rows)
        for r in report.spec:
            self.new.update(rounds=1, drafted=r.drafted, accepted=r.kept)
        for finished in report.finished:
            del self.sequences[finished.seq_id]
            self.new[finished.reason] += 1
        return EngineState(
            report.seq, report.step, state.info,
            totals=replace(state.totals, **{name: getattr(state.totals, name) + n for name, n in self.new.items()}),
            pool=report.pool or state.pool,
            paused=paused,
            sequences=self.sequences,
            blocks=self.blocks,
            finished=(state.finished + report.finished)[-KEPT_FINISHED:],
            pieces=state.pieces | report.pieces if report.pieces else state.pieces,
        )  # fmt: skip

    def _change(self, seq_id: str, **fields: object) -> SequenceState:
        self.sequences[seq_id] = seq = replace(self.sequences[seq_id], **fields)
        return seq

    def _control(self) -> bool:
        """Whether the engine is paused afterwards. A fault empties the pool; `reset_cache` shows in the moves."""
        paused = self.state.paused
        for control in self.report.control:
            if control.action == "fault":
                self.new["faults"] += 1
                self.blocks = {}
                for seq_id in self.sequences:
                    self._change(seq_id, table=())
            elif control.action != "reset_cache":
                paused = control.action == "pause"
        return paused

    def _queue(self) -> None:
        """Who came, who lost its place, who was let in."""
        for a in self.report.arrived:
            seq = SequenceState(a.seq_id, a.request_id, 0, a.n, a.priority, a.arrival, a.max_tokens, a.prompt)
            self.sequences[a.seq_id] = seq
            self.new["requests"] += 1
        for p in self.report.preempted:
            times = self.sequences[p.seq_id].preemptions + 1
            nothing = {"num_computed": 0, "num_computed_draft": 0, "k": 0, "k_why": None}
            self._change(p.seq_id, running=False, **nothing, preemptions=times, lost=p.lost)
            self.new["preemptions"] += 1
        for let in self.report.admitted:
            seq = self.sequences[let.seq_id]
            self._change(let.seq_id, running=True, wait=None, num_computed=let.cached, lost=0)
            if let.first:
                self._change(let.seq_id, cached=let.cached, miss=let.miss)
                self.new.update(prompt_tokens=len(seq.prompt), cached_tokens=let.cached)
            else:
                self.new["recomputed_tokens"] += max(0, seq.lost - let.cached)

    def _outputs(self) -> None:
        """Forks first: each of the choices draws its own first token."""
        for f in self.report.forked:
            parent = self._change(f.parent, n=1)
            own = {"seq_id": f.child, "choice": f.choice, "output": (), "text": "", "table": (), "running": True}
            self.sequences[f.child] = replace(parent, **own, num_computed=len(parent.prompt))
        for o in self.report.outputs:
            seq = self.sequences[o.seq_id]
            self._change(o.seq_id, output=seq.output + o.token_ids, text=seq.text + o.text)
            self.new["output_tokens"] += len(o.token_ids)

    def _computed(self) -> None:
        """What the step leaves valid: all rows but those of rejected drafts. The newest token has none yet."""
        for s in self.report.sched:
            seq = self.sequences[s.seq_id]
            rows = s.n_new + s.n_draft
            self._change(s.seq_id, num_computed=min(s.start + rows, len(seq.prompt) + len(seq.output) - 1))
            self.new["computed_tokens"] += rows

    def _moves(self) -> None:
        """The changes of tables and keys, in order."""
        blocks = self.blocks = dict(self.blocks)
        tables: dict[str, list[int]] = {}
        for move in self.report.blocks:
            if move.op == "evict" or move.op == "unhash":
                del blocks[move.block]
                self.new["evictions"] += move.op == "evict"
                continue
            table = tables.get(move.seq_id)
            if table is None:
                table = tables[move.seq_id] = list(self.sequences[move.seq_id].table)
            if move.op == "alloc" or move.op == "share":
                table.append(move.block)
            elif move.op == "cow":
                table[move.index] = move.block
            elif move.op == "hash":
                blocks[move.block] = self._published(move, table)
            elif table.pop() != move.block:
                raise ValueError(f"block {move.block} is not the last of {move.seq_id!r}")
        for seq_id, table in tables.items():
            self._change(seq_id, table=tuple(table))

    def _published(self, move: BlockMove, table: list[int]) -> BlockState:
        seq, size = self.sequences[move.seq_id], self.state.info.block_size
        first = (move.index if move.index >= 0 else table.index(move.block)) * size
        past = first - len(seq.prompt)  # where in the output the block begins, negative while in the prompt
        tokens = seq.prompt[first : first + size] + seq.output[max(past, 0) : max(past + size, 0)]
        return BlockState(move.key, move.parent, tokens)
