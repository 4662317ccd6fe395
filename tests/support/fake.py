"""A model without tensors, whose answers depend on every KV row it should read, and on nothing else.

Row p of a sequence is `chain(row p - 1 as found through the block table, token)`. A logit row is a digest of all rows
0 … p as found through the table, so that a wrong block, a stale row, a missing copy or a wrong position changes the
answer. `fake_answer` says what the answer must be, from the tokens alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace

import numpy as np

from mini_infer.config import EngineConfig
from mini_infer.engine import InferenceEngine
from mini_infer.sampling.rows import SampleRow, Verdict
from mini_infer.scheduler.integrity import check_integrity
from mini_infer.scheduler.plan import Batch

VOCAB = 50
MASK = (1 << 61) - 1


def mix(*values: int) -> int:
    h = 1469598103934665603
    for v in values:
        h = ((h ^ (v + 0x9E3779B97F4A7C15)) * 1099511628211 + (h >> 29)) & MASK
    return h


def chain(before: int, token: int, position: int) -> int:
    return mix(before, token, position)


def draw(digest: int, choice: int) -> int:
    return mix(digest, choice) % VOCAB


def fake_answer(prompt: Sequence[int], count: int, choice: int = 0, stop: frozenset[int] = frozenset()) -> list[int]:
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
    """`before_run(batch)` may raise, to inject a fault before anything is written."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.rows = [-1] * (num_blocks * block_size)
        self.size = block_size
        self.before_run: Callable[[Batch], None] = lambda batch: None
        self.batches = 0
        self.tokens = 0

    def run(self, batch: Batch) -> np.ndarray:
        self.batches += 1
        self.tokens += len(batch.token_ids)
        for old, new in batch.copies:
            self.rows[new * self.size : (new + 1) * self.size] = self.rows[old * self.size : (old + 1) * self.size]
        self.before_run(batch)
        wanted, found = set(batch.logit_rows), []
        written: set[int] = set()
        for span in batch.spans:
            slots = [span.blocks[p // self.size] * self.size + p % self.size for p in range(span.kv_len)]
            for r in range(span.first_row, span.first_row + span.num_rows):
                p = batch.positions[r]
                assert batch.slots[r] == slots[p] and slots[p] not in written, "two rows of a step in one slot"
                written.add(slots[p])
                before = self.rows[slots[p - 1]] if p else 0
                self.rows[slots[p]] = chain(before, batch.token_ids[r], p)
                if r in wanted:
                    digest = 0
                    for slot in slots[: p + 1]:
                        digest = mix(digest, self.rows[slot])
                    found.append(digest)
        return np.array(found, dtype=np.int64)

    def logits(self, hidden: np.ndarray) -> np.ndarray:
        return hidden

    def zero_blocks(self, blocks: Sequence[int]) -> None:
        for b in blocks:
            self.rows[b * self.size : (b + 1) * self.size] = [0] * self.size


class FakeSampler:
    """Draws from the digest. `fail` names sequences whose row fails by itself."""

    def __init__(self) -> None:
        self.fail: dict[str, bool] = {}  # sequence id -> whether its rows are not finite

    def resolve(self, logits: np.ndarray, rows: Sequence[SampleRow]) -> list[Verdict]:
        return [
            Verdict(r.seq_id, error="made to fail", non_finite=self.fail[r.seq_id])
            if r.seq_id in self.fail
            else Verdict(r.seq_id, (draw(int(logits[r.row]), r.choice),))
            for r in rows
        ]


def fake_engine(num_blocks: int = 64, block_size: int = 4, context: int = 512, **options: object) -> InferenceEngine:
    """An engine over the fake model; `options` are those of EngineConfig."""
    config = SimpleNamespace(
        vocab_size=VOCAB, max_position_embeddings=context, identity="fake", eos_token_ids=(), generation={}
    )
    return InferenceEngine(
        None,
        config,  # type: ignore[arg-type]
        num_blocks=num_blocks,
        block_size=block_size,
        options=EngineConfig(**options),  # type: ignore[arg-type]
        runner=FakeRunner(num_blocks, block_size),
        sampler=FakeSampler(),
    )


class Watch:
    """Steps an engine, keeps what each sequence got, and checks every invariant after every report."""

    def __init__(self, engine: InferenceEngine, *, check: bool = True) -> None:
        from mini_infer.observe.state import fold

        self.engine, self.check = engine, check
        self.tokens: dict[str, list[int]] = {}
        self.finished: dict[str, object] = {}
        self.reports: list = []
        self._fold = fold
        if check:
            engine.attach(self)

    def start(self, snapshot) -> None:
        self.state = snapshot

    def emit(self, report) -> None:
        self.reports.append(report)
        self.state = self._fold(self.state, report)

    def close(self) -> None:
        pass

    def step(self):
        report = self.engine.step()
        self.take(report)
        return report

    def take(self, report) -> None:
        for output in report.outputs:
            self.tokens.setdefault(output.seq_id, []).extend(output.token_ids)
            if output.finished is not None:
                assert output.seq_id not in self.finished, "answered twice"
                self.finished[output.seq_id] = output.finished
        if self.check:
            check_integrity(self.engine.scheduler)
            assert self.state == self.engine.snapshot()

    def run(self, limit: int = 10_000) -> None:
        for _ in range(limit):
            if not self.engine.has_work:
                if (news := self.engine.flush()) is not None:
                    self.take(news)
                return
            self.step()
        raise AssertionError(f"not done after {limit} steps")
