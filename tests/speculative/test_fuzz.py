"""Random lives of an engine whose draft model is its target, on rows without tensors: every draft is right, always.

The rows are those of `tests.support.fake`: what a row holds depends on all rows before it as found through the block
table, so that a stale, missing or misplaced draft row gives a wrong draft, which is then refused.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mini_infer.errors import UserError
from mini_infer.observe.events import KReason
from mini_infer.sampling.rows import SampleRow
from mini_infer.scheduler.sequence import Sequence as Seq
from mini_infer.speculative.adaptive import Adaptive, Costs, StepTimes
from mini_infer.speculative.draft_model import DraftModel
from mini_infer.speculative.prompt_lookup import PromptLookup
from tests.support.fake import NAN, VOCAB, FakeRunner, draw, fake_engine, idle, mix
from tests.support.watch import Watch

RUNS = int(os.environ.get("MINI_INFER_FUZZ_RUNS", "0"))
HEADS = [[mix(7, head, p) % VOCAB for p in range(40)] for head in range(3)]


class DraftRunner(FakeRunner):
    """The rows of the draft, with what `DraftModel` asks of a runner."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self.config = SimpleNamespace(vocab_size=VOCAB)
        self.kv = SimpleNamespace(block_size=block_size, copy=self._copy)

    def _copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        size = self.size
        for old, new in pairs:
            self.rows[new * size : (new + 1) * size] = self.rows[old * size : (old + 1) * size]


class FakeDraft(DraftModel):
    """The draft model but for the mathematics: its drafts are what the target would draw from the same rows."""

    def _draw(self, logits: Any, rows: Sequence[SampleRow], tokens: Mapping[str, Any], q: Any) -> dict[str, int]:
        digests = [int(v) for v in logits]
        return {r.seq_id: draw(d, r.choice) for d, r in zip(digests, rows, strict=True) if d != NAN}


class Moody:
    """K of a request by chance, now and then none at all."""

    def __init__(self, seed: int) -> None:
        self.seed, self.costs = seed, Costs()

    def choose(self, seq: Seq) -> tuple[int, KReason | None]:
        k = (0, 0, 1, 2, 3, 5, 8, 8)[mix(self.seed, seq.arrival, seq.num_tokens // 7) % 8]
        return k, None if k else "ADAPTIVE"


def policy(kind: int) -> Any:
    if kind:
        return Moody(kind)
    adaptive = Adaptive()
    for k in range(9):
        adaptive.costs.add(StepTimes(1, 1 + k, 1.0 + 0.1 * k, k, k, 0.2 * k))
    return adaptive


class Life:
    def __init__(self, limits: dict[str, Any], kind: int, lookup: bool) -> None:
        self.engine = engine = fake_engine(context=60, draft="lookup" if lookup else "model", **limits)
        self.draft = DraftRunner(limits["num_blocks"], limits["block_size"])
        engine.proposer = PromptLookup(policy(kind)) if lookup else FakeDraft(self.draft, policy(kind), VOCAB)
        self.lookup = lookup
        self.watch = Watch(engine)
        self.ids: list[str] = []

    def ask(self, head: int, length: int, tail: int, max_tokens: int, n: int, priority: int) -> None:
        prompt = [*HEADS[head][:length], *(mix(tail, p) % VOCAB for p in range(tail % 4))] or [tail]
        try:
            stop = (tail,) if tail % 3 == 0 else ()
            self.ids.append(self.watch.ask(prompt, max_tokens, n, stop, priority=priority))
        except UserError:
            pass  # too long for this pool, or more choices than seats

    def live(self, k: int) -> str | None:
        live = [r for r in self.ids if not self.engine.is_finished(r)]
        return live[k % len(live)] if live else None

    def abort(self, k: int) -> None:
        if (request_id := self.live(k)) is not None:
            self.engine.abort(request_id)

    def step(self, count: int) -> None:
        for _ in range(count):
            try:
                self.watch.step()
            except KeyboardInterrupt:
                continue
            self.check_drafts()

    def preempt(self, k: int) -> None:
        """As if blocks had run out in the next step."""
        scheduler = self.engine.scheduler
        if not scheduler.running:
            return
        victim, make_room = scheduler.running[k % len(scheduler.running)], scheduler._make_room

        def instead(draft: Any, seq: Seq, *args: Any, **kwargs: Any) -> bool:
            if seq is victim and len(scheduler.running) > 1:  # alone it would have ended
                scheduler._make_room = make_room
                draft.preempted.append(scheduler._preempt(seq, cause=seq.seq_id))
                return False
            return make_room(draft, seq, *args, **kwargs)

        scheduler._make_room = instead

    def reset_cache(self) -> None:
        self.engine.reset_prefix_cache()

    def fail(self, runner: str, where: str, error: type[BaseException], skip: int) -> None:
        """A forward pass of the target or of the draft raises, once: the target's retry does not."""
        owner: Any = self.engine.runner if runner == "target" else self.draft
        owner.before_run = owner.after_run = lambda batch: None

        def raise_it(batch: Any) -> None:
            nonlocal skip
            skip -= 1
            if skip < 0:
                setattr(owner, where, lambda batch: None)
                raise error("made to fail")

        setattr(owner, where, raise_it)

    def check_drafts(self) -> None:
        totals = self.engine.recorder.totals
        if not self.lookup:
            assert totals["drafted"] == totals["accepted"], "a wrong draft"
        pool, size = self.engine.scheduler.pool, self.engine.scheduler.size
        for seq in self.engine.scheduler.running:
            assert seq.k == 0 or seq.k_why is None
            for block in seq.table.blocks[: seq.num_computed_draft // size]:
                assert pool.draft_valid[block], "rows of the draft whose block is not known to be valid"

    def end(self) -> None:
        for owner in (self.engine.runner, self.draft):
            owner.before_run = owner.after_run = lambda batch: None
        for _ in range(5000):
            if not self.engine.has_work:
                break
            self.step(1)
        self.watch.flush()
        self.watch.check_answers()
        assert idle(self.engine)
        assert {f.reason for f in self.watch.finished.values()} <= {"stop", "length", "abort"}


small = st.integers(0, 7)
asks = st.tuples(
    st.just("ask"), st.integers(0, 2), st.integers(0, 30), st.integers(0, VOCAB - 1), st.integers(1, 24),
    st.sampled_from((1, 1, 1, 2, 3)), st.sampled_from((0, 0, 1)),
)  # fmt: skip
steps = st.tuples(st.just("step"), st.integers(1, 5))
actions = st.one_of(
    asks, asks, asks, steps, steps, steps,
    st.tuples(st.just("abort"), small),
    st.tuples(st.just("preempt"), small),
    st.just(("reset_cache",)),
    st.tuples(
        st.just("fail"), st.sampled_from(("target", "draft", "draft")), st.sampled_from(("before_run", "after_run")),
        st.sampled_from((RuntimeError, RuntimeError, KeyboardInterrupt)), st.integers(0, 6),
    ),
)  # fmt: skip
limits = st.fixed_dictionaries(
    {
        "num_blocks": st.integers(3, 40),
        "block_size": st.sampled_from((1, 2, 4, 4, 8)),
        "max_running": st.integers(1, 6),
        "max_batch_tokens": st.sampled_from((6, 8, 16, 40)),
        "max_chunk": st.sampled_from((1, 3, 6)),
        "prefix_cache": st.sampled_from((True, True, True, False)),
    }
)
seen: Counter[str] = Counter()


@settings(
    max_examples=RUNS or 800,
    derandomize=not RUNS,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(limits, st.integers(0, 4), st.sampled_from((False, False, False, True)), st.lists(actions, max_size=60))
def test_whatever_happens_no_draft_is_wrong(limits, kind, lookup, actions):
    life = Life(limits, kind, lookup)
    for name, *arguments in actions:
        getattr(life, name)(*arguments)
    life.end()
    seen.update(life.engine.recorder.totals)


def test_the_lives_above_saw_everything():
    """Runs after it: speculation took part, and so did hits, preemptions and evictions."""
    if seen:  # not where this test is run alone
        assert min(seen[name] for name in ("rounds", "drafted", "cached_tokens", "preemptions", "evictions")) > 20
