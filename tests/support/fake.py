"""A model without tensors, whose answers depend on every KV row it should read, and on nothing else.

Row p of a sequence is `chain(row p - 1 as found through the block table, token)`. A logit row is a digest of all rows
0 … p as found through the table, so that a wrong block, a stale row, a missing copy or a wrong position changes the
answer. A row can be NaN, and spoils every product over its block, as a masked NaN does in a real one. `fake_answer`
says what the answer must be, from the tokens alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np

from mini_infer.batch import Batch
from mini_infer.config import EngineConfig
from mini_infer.engine import InferenceEngine
from mini_infer.observe.events import Finished, Output, StepReport
from mini_infer.observe.state import EngineState, fold
from mini_infer.sampling.params import SamplingParams
from mini_infer.sampling.rows import Judgement, SampleRow, Verdict
from mini_infer.scheduler.plan import StepPlan
from mini_infer.speculative.proposer import Drafts
from tests.support.integrity import check_integrity

VOCAB = 50
MASK = (1 << 61) - 1
NAN = -2
UNWRITTEN = -1


def mix(*values: int) -> int:
    h = 1469598103934665603
    for v in values:
        h = ((h ^ (v + 0x9E3779B97F4A7C15)) * 1099511628211 + (h >> 29)) & MASK
    return h


def chain(before: int, token: int, position: int) -> int:
    return NAN if before == NAN else mix(before, token, position)


def draw(digest: int, choice: int) -> int:
    return mix(digest, choice) % VOCAB


def fake_answer(prompt: Sequence[int], count: int, choice: int = 0, stop: Iterable[int] = ()) -> list[int]:
    """The tokens that a fault-free engine gives: at most `count`, ending with a stop id."""
    row, digest, answer = 0, 0, []
    for p, token in enumerate(prompt):
        row = chain(row, token, p)
        digest = mix(digest, row)
    for p in range(len(prompt), len(prompt) + count):
        token = draw(digest, choice)
        answer.append(token)
        if token in stop:
            break
        row = chain(row, token, p)
        digest = mix(digest, row)
    return answer


class FakeRunner:
    """`before_run` and `after_run` get the batch and may raise: before a row is written, or after all are.

    `poison` names sequences whose new rows are NaN; `batches` and `tokens` count what was run; `wrong` says what was
    wrong with a batch (an exception would be taken for a fault of the step, and lived with).
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.rows = [UNWRITTEN] * (num_blocks * block_size)
        self.size = block_size
        self.before_run: Callable[[Batch], None] = lambda batch: None
        self.after_run: Callable[[Batch], None] = lambda batch: None
        self.poison: set[str] = set()
        self.wrong: list[str] = []
        self.batches = 0
        self.tokens = 0

    def run(self, batch: Batch) -> np.ndarray:
        self.batches += 1
        self.tokens += len(batch.token_ids)
        self.before_run(batch)
        for old, new in batch.copies:
            self.rows[new * self.size : (new + 1) * self.size] = self.rows[old * self.size : (old + 1) * self.size]
        wanted, found = set(batch.logit_rows), []
        written: set[int] = set()
        for span in batch.spans:
            slots = [block * self.size + i for block in span.blocks for i in range(self.size)]
            for r in range(span.first_row, span.first_row + span.num_rows):
                p = batch.positions[r]
                if batch.slots[r] != slots[p] or slots[p] in written:
                    self.wrong.append(f"row {p} of {span.seq_id} is not written to a slot of its own")
                written.add(slots[p])
                before = self.rows[slots[p - 1]] if p else 0
                self.rows[slots[p]] = NAN if span.seq_id in self.poison else chain(before, batch.token_ids[r], p)
                if r in wanted:
                    digest = 0
                    for slot in slots[: p + 1]:
                        digest = mix(digest, self.rows[slot])
                    found.append(NAN if any(self.rows[slot] == NAN for slot in slots) else digest)
        self.after_run(batch)
        return np.array(found, dtype=np.int64)

    def logits(self, hidden: np.ndarray) -> np.ndarray:
        return hidden

    def finite(self, hidden: np.ndarray) -> list[bool]:
        return [digest != NAN for digest in hidden]

    def zero_blocks(self, blocks: Sequence[int]) -> None:
        for b in blocks:
            self.rows[b * self.size : (b + 1) * self.size] = [0] * self.size


class FakeSampler:
    """Draws from the digest; drafts are accepted while they are what it would draw.

    `fail` maps sequences whose row fails by itself to whether it is not finite; `before_resolve` gets the rows and may
    raise.
    """

    def __init__(self) -> None:
        self.fail: dict[str, bool] = {}
        self.before_resolve: Callable[[Sequence[SampleRow]], None] = lambda rows: None

    def resolve(self, logits: np.ndarray, rows: Sequence[SampleRow], *_: Any, **__: Any) -> list[Verdict]:
        self.before_resolve(rows)
        return [self._verdict([int(v) for v in logits[r.row : r.row + len(r.drafts) + 1]], r) for r in rows]

    def _verdict(self, digests: list[int], row: SampleRow) -> Verdict:
        if row.seq_id in self.fail:
            return Verdict(row.seq_id, error="made to fail", non_finite=self.fail[row.seq_id])
        if NAN in digests:
            return Verdict(row.seq_id, error="the logits are not finite", non_finite=True)
        tokens: list[int] = []
        judged: list[Judgement] = []
        for digest, draft in zip(digests, (*row.drafts, None), strict=True):
            tokens.append(draw(digest, row.choice))
            if draft is not None:
                judged.append(Judgement(draft, tokens[-1] == draft, gap=0.0))
            if tokens[-1] != draft:
                break
        return Verdict(row.seq_id, tuple(tokens), judged=tuple(judged))


class FakeProposer:
    """Drafts `k` tokens, most of them right. With `has_kv` it is a model whose rows live in the target's blocks."""

    name = "fake"

    def __init__(self, k: int, num_blocks: int, block_size: int, has_kv: bool) -> None:
        self.k, self.has_kv, self.fail = k, has_kv, False
        self.stale = 0  # rows that were read as valid and were not
        self.rows = [UNWRITTEN] * (num_blocks * block_size)
        self.size = block_size

    def wants(self, seq: Any) -> tuple[int, Any]:
        return self.k, None if self.k else "OFF"

    def propose(self, plan: StepPlan, sequences: Mapping[str, Any], rows: Mapping[str, SampleRow]) -> Drafts:
        if self.fail:
            raise RuntimeError("made to fail")
        for old, new in plan.copies:
            self.rows[new * self.size : (new + 1) * self.size] = self.rows[old * self.size : (old + 1) * self.size]
        wanted = {s.seq_id: s.n_draft for s in plan.slices if s.n_draft}
        if not self.has_kv:
            return Drafts({i: self._guess(list(rows[i].tokens), rows[i].choice, k) for i, k in wanted.items()})
        drafts = {}
        for s in plan.draft_slices:
            seq = sequences[s.seq_id]
            self._compute(seq.table.blocks, seq.tokens, s.start, s.start + s.n_new)
            if s.rows == "last":
                drafts[s.seq_id] = self._guess(list(seq.tokens), seq.choice, wanted[s.seq_id], seq.table.blocks)
        return Drafts(drafts)

    def _guess(self, tokens: list[int], choice: int, k: int, blocks: Sequence[int] = ()) -> tuple[int, ...]:
        known = len(tokens)
        for i in range(k):
            if i and blocks:
                self._compute(blocks, tokens, len(tokens) - 1, len(tokens))
            (token,) = fake_answer(tokens, 1, choice)
            tokens.append((token + (mix(token, len(tokens)) % 4 == 0)) % VOCAB)
        return tuple(tokens[known:])

    def _compute(self, blocks: Sequence[int], tokens: Sequence[int], start: int, stop: int) -> None:
        slots = [block * self.size + i for block in blocks for i in range(self.size)]
        before = 0
        for p in range(stop):
            right = chain(before, tokens[p], p)
            if p >= start:
                self.rows[slots[p]] = right
            else:
                self.stale += self.rows[slots[p]] != right
            before = right

    def observe(self, plan: StepPlan, *, draft_s: float, verify_s: float) -> None:
        assert draft_s >= 0 and verify_s >= 0

    def zero_blocks(self, blocks: Sequence[int]) -> None:
        for b in blocks:
            self.rows[b * self.size : (b + 1) * self.size] = [0] * self.size


def fake_engine(
    num_blocks: int = 64,
    block_size: int = 4,
    context: int = 512,
    eos: Sequence[int] = (),
    draft: Literal["none", "lookup", "model"] = "none",
    k: int = 3,
    **options: Any,
) -> InferenceEngine:
    """An engine over the fake model; `options` are those of EngineConfig."""
    config: Any = SimpleNamespace(
        vocab_size=VOCAB, max_position_embeddings=context, identity="fake", eos_token_ids=tuple(eos), generation={}
    )
    return InferenceEngine(
        None,
        config,
        num_blocks=num_blocks,
        block_size=block_size,
        options=EngineConfig(**options),
        runner=FakeRunner(num_blocks, block_size),
        sampler=FakeSampler(),
        proposer=None if draft == "none" else FakeProposer(k, num_blocks, block_size, draft == "model"),
    )


class Mirror:
    """A sink that folds what it is told; `state` must equal the engine's snapshot after every report."""

    def __init__(self) -> None:
        self.state: EngineState | None = None
        self.reports: list[StepReport] = []

    def start(self, snapshot: EngineState) -> None:
        assert self.state is None, "welcomed twice"
        self.state = snapshot

    def emit(self, report: StepReport) -> None:
        assert self.state is not None, "a report before the snapshot"
        self.reports.append(report)
        self.state = fold(self.state, report)

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class Asked:
    """A request as it was made."""

    prompt: tuple[int, ...]
    max_tokens: int
    n: int
    stop: tuple[int, ...]

    def choices(self, request_id: str) -> dict[str, int]:
        """Sequence id -> choice."""
        return {request_id if self.n == 1 else f"{request_id}/{c}": c for c in range(self.n)}


class Watch:
    """Steps an engine, keeps what each sequence got, and checks every invariant after every report.

    `lean` attaches no sink and checks nothing but the answers. `faults`: how often the bookkeeping may fail.
    """

    def __init__(self, engine: InferenceEngine, *, lean: bool = False, faults: int = 0) -> None:
        self.engine, self.lean, self.faults = engine, lean, faults
        self.asked: dict[str, Asked] = {}
        self.tokens: dict[str, list[int]] = {}
        self.finished: dict[str, Finished] = {}
        self.mirrors: list[Mirror] = []
        self._batches = engine.runner.batches  # forward passes as of the last report
        self.mirror = self.add_mirror() if not lean else Mirror()

    @property
    def state(self) -> EngineState | None:
        """The engine's state as the first sink sees it."""
        return self.mirror.state

    @property
    def reports(self) -> list[StepReport]:
        return self.mirror.reports

    @property
    def request_ids(self) -> list[str]:
        """All that were asked, in order."""
        return list(self.asked)

    @property
    def last(self) -> StepReport:
        return self.reports[-1]

    def add_mirror(self) -> Mirror:
        """One more sink, whose state is checked like the first one's."""
        mirror = Mirror()
        self.mirrors.append(mirror)
        self.engine.attach(mirror)
        return mirror

    def ask(self, prompt: Sequence[int], max_tokens: int = 8, n: int = 1, stop: Sequence[int] = (), **more: Any) -> str:
        """Add a greedy request and remember what it must answer."""
        params = SamplingParams(temperature=0, max_tokens=max_tokens, n=n, stop_token_ids=tuple(stop))
        request_id = self.engine.add_request(prompt, params, **more)
        self.asked[request_id] = Asked(tuple(prompt), max_tokens, n, tuple(stop))
        return request_id

    @staticmethod
    def number(seq_id: str) -> int:
        """Place of its request in the order of arrival, from 1."""
        return int(seq_id.split("/")[0].removeprefix("r"))

    def answer(self, seq_id: str) -> list[int]:
        return self.tokens.get(seq_id, [])

    def step(self) -> StepReport:
        before, batches = self.mirror.state, self._batches
        report = self.engine.step()
        self.take(report)
        if self.mirror in self.mirrors and self._batches == batches + 1 and not report.control:
            check_plan(before, report)
        return report

    def flush(self) -> None:
        """Take the news that wait for a report."""
        if (report := self.engine.flush()) is not None:
            self.take(report)

    def take(self, report: StepReport) -> None:
        self._batches = self.engine.runner.batches
        assert not self.engine.runner.wrong, self.engine.runner.wrong
        assert self.engine.recorder.totals["faults"] <= self.faults, "the engine was rebuilt"
        for output in report.outputs:
            self._take_output(output)
        if not self.lean:
            self.check()

    def _take_output(self, output: Output) -> None:
        assert output.seq_id not in self.finished, f"{output.seq_id} got something after its end"
        self.tokens.setdefault(output.seq_id, []).extend(output.token_ids)
        if output.finished is not None:
            self.finished[output.seq_id] = output.finished
            told = len(self.tokens[output.seq_id])
            assert output.finished.usage.completion_tokens == told, "tokens were counted that nobody got"

    def check_integrity(self) -> None:
        check_integrity(self.engine.scheduler)

    def check(self) -> None:
        """Integrity, and that every observer sees what is."""
        self.check_integrity()
        snapshot = self.engine.snapshot()
        for mirror in self.mirrors:
            assert mirror.state == snapshot, "an observer does not see what is"

    def run(self, limit: int = 10_000) -> Watch:
        """Step until nothing is left to do; then check every answer."""
        for _ in range(limit):
            if not self.engine.has_work:
                self.flush()
                self.check_answers()
                return self
            self.step()
        raise AssertionError(f"not done after {limit} steps")

    def check_answers(self) -> None:
        """What was asked was answered: exactly where it ended by itself, a beginning where it was ended."""
        pool = self.engine.scheduler.pool
        for request_id, asked in self.asked.items():
            most = min(asked.max_tokens, self.engine.max_model_len - len(asked.prompt))
            most = min(most, pool.num_blocks * pool.block_size + 1 - len(asked.prompt))  # alone, the pool is full then
            stop = (*asked.stop, *self.engine.config.eos_token_ids)
            for seq_id, choice in asked.choices(request_id).items():
                if seq_id not in self.finished:
                    assert not self.answer(seq_id), f"{seq_id} got tokens, but no end"
                    continue
                got, reason = self.answer(seq_id), self.finished[seq_id].reason
                right = fake_answer(asked.prompt, most, choice, stop)
                assert got == right[: len(got)], f"{seq_id} ({reason}) got {got}, not {right}"
                if reason in ("stop", "length"):
                    assert len(got) == len(right), f"{seq_id} ended with {reason} after {len(got)} of {len(right)}"
                    assert reason == ("stop" if right[-1] in stop else "length")


def check_plan(before: EngineState, report: StepReport) -> None:
    """What holds of every step that was one forward pass: the budgets, the order of service, and that all advance."""
    info = before.info
    names = [s.seq_id for s in report.sched]
    lost, ended = {p.seq_id for p in report.preempted}, {f.seq_id for f in report.finished}
    assert names, "a step without progress"
    assert len(names) == len(set(names)), "a sequence twice in one plan"
    assert sum(s.n_new + s.n_draft for s in report.sched) <= info.max_batch_tokens, "over the budget of a step"
    assert all(1 <= s.n_new <= info.max_chunk for s in report.sched), "over the cap of a request"
    assert {s.seq_id for s in before.running} <= {*names, *lost, *ended}, "a running sequence did not advance"
    assert not (report.preempted and report.admitted), "an admission in a step that preempted"
    assert not lost & set(names), "a victim was planned"
    place = {s.seq_id: (s.priority, s.arrival, s.choice) for s in before.sequences.values()}
    place |= {a.seq_id: (a.priority, a.arrival, 0) for a in report.arrived}
    admitted = {a.seq_id for a in report.admitted}
    ready = [s for s in report.sched if s.seq_id not in admitted]
    decodes, chunks = ([s for s in ready if (s.start + 1 == s.num_tokens) is one] for one in (True, False))
    for group in (decodes, chunks, [s for s in report.sched if s.seq_id in admitted]):
        assert [place[s.seq_id] for s in group] == sorted(place[s.seq_id] for s in group), "out of order"
    assert [*decodes, *chunks] == ready, "a chunk before a decode"


def raising(error: type[BaseException], times: int = 1) -> Callable[[Any], None]:
    """A hook that raises in its first `times` calls."""

    def hook(*_: object, **__: object) -> None:
        nonlocal times
        times -= 1
        if times >= 0:
            raise error("injected")

    return hook


def idle(engine: InferenceEngine) -> bool:
    """No sequence, and every block free."""
    scheduler = engine.scheduler
    return not scheduler.sequences and scheduler.pool.num_free == scheduler.pool.num_blocks


def prompts(count: int, length: int, seed: int = 0) -> list[list[int]]:
    """`count` prompts of pseudo-random ids that differ from their first id on (up to VOCAB of them)."""
    return [[(i + seed) % VOCAB, *(mix(seed, i, p) % VOCAB for p in range(1, length))] for i in range(count)]
