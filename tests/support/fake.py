"""A model without tensors, whose answers depend on every KV row it should read, and on nothing else.

Row p of a sequence is `chain(row p - 1 as found through the block table, token)`. A logit row is a digest of all rows
0 … p as found through the table, so that a wrong block, a stale row, a missing copy or a wrong position changes the
answer. A row can be NaN, and spoils every product over its block, as a masked NaN does in a real one. `fake_answer`
says what the answer must be, from the tokens alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np

from mini_infer.batch import Batch
from mini_infer.config import EngineConfig
from mini_infer.engine import InferenceEngine
from mini_infer.sampling.rows import Judgement, SampleRow, Verdict
from mini_infer.scheduler.plan import StepPlan
from mini_infer.speculative.proposer import Drafts

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
