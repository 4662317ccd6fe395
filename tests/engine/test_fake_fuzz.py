"""Random lives of an engine on the fake model: whatever happens, answers, invariants and observers are right."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from mini_infer.errors import UserError
from mini_infer.scheduler.continuous import ContinuousScheduler
from mini_infer.scheduler.plan import StepPlan
from tests.support.fake import VOCAB, fake_engine, idle, mix
from tests.support.watch import Watch

HEADS = [[mix(7, head, p) % VOCAB for p in range(40)] for head in range(3)]
RUNS = int(os.environ.get("MINI_INFER_FUZZ_RUNS", "0"))
"""More runs, with new random choices each time; 0 is the fixed default."""


class Boom(Exception):
    """An injected fault."""


def break_once(owner: Any, name: str, at: int) -> None:
    """Make the call number `at` (from 0) of a method raise, once."""
    original = getattr(owner, name)

    def broken(*args: Any, **kwargs: Any) -> Any:
        nonlocal at
        at -= 1
        if at == -1:
            setattr(owner, name, original)
            raise Boom(f"{name} failed")
        return original(*args, **kwargs)

    setattr(owner, name, broken)


def requests_in(batch_or_rows: Any) -> set[str]:
    """The requests that take part in a forward pass, or whose rows are resolved."""
    return {part.seq_id.split("/")[0] for part in getattr(batch_or_rows, "spans", batch_or_rows)}


class Life:
    """One engine, what was done to it, and who may end with an error for it."""

    def __init__(self, limits: dict[str, Any]) -> None:
        self.engine = fake_engine(context=48, **limits)
        self.watch = Watch(self.engine, faults=1000)
        self.ids: list[str] = []
        self.guilty: set[str] = set()  # their own rows fail
        self.raised: list[set[str]] = []  # who took part in what raised, since the last report
        self.aborted: set[str] = set()
        self.wrong: list[str] = []  # reasons that were not true
        hold_reasons(self.engine.scheduler, self.wrong)

    def live(self, k: int) -> str | None:
        """One of the live requests."""
        live = [r for r in self.ids if not self.engine.is_finished(r)]
        return live[k % len(live)] if live else None

    # --- what can happen ------------------------------------------------------------------------------------------

    def ask(self, head: int, length: int, tail: int, max_tokens: int, n: int, priority: int, salt: str) -> None:
        prompt = [*HEADS[head][:length], *(mix(tail, p) % VOCAB for p in range(tail % 4))] or [tail]
        try:
            stop = (tail,) if tail % 3 == 0 else ()
            self.ids.append(self.watch.ask(prompt, max_tokens, n, stop, priority=priority, cache_salt=salt))
        except UserError:
            assert n > self.engine.options.max_running or self.too_long(prompt, n)

    def crowd(self, seed: int, count: int) -> None:
        """Several requests at once."""
        rng = random.Random(seed)
        for _ in range(count):
            n, salt = rng.choice((1, 1, 1, 2, 3)), rng.choice(("", "", "x"))
            length, tail, most = rng.randrange(25), rng.randrange(VOCAB), rng.randint(1, 30)
            self.ask(rng.randrange(3), length, tail, most, n, rng.choice((0, 0, 0, 1)), salt)

    def too_long(self, prompt: list[int], n: int) -> bool:
        pool = self.engine.scheduler.pool
        return len(prompt) + 1 > min(self.engine.max_model_len, (pool.num_blocks - n + 1) * pool.block_size)

    def abort(self, k: int) -> None:
        if (request_id := self.live(k)) is not None:
            assert self.engine.abort(request_id)
            self.aborted.add(request_id)
            assert not self.engine.abort(request_id)

    def step(self, count: int) -> None:
        for _ in range(count):
            try:
                report = self.watch.step()
            except KeyboardInterrupt:
                continue
            guilty = self.guilty.union(*(who for who in self.raised[1:] if len(who) == 1))  # what failed again, alone
            for f in report.finished:
                request_id = f.seq_id.split("/")[0]
                assert f.reason != "abort" or request_id in self.aborted
                if f.reason == "error" and not f.error.startswith("the engine failed and was rebuilt: Boom"):
                    assert request_id in guilty, f"{f} is innocent"
            assert not self.wrong
            self.raised.clear()

    def pause(self) -> None:
        self.engine.set_paused(not self.engine.scheduler.paused)

    def flush(self) -> None:
        self.watch.flush()

    def reset_cache(self) -> None:
        self.engine.reset_prefix_cache()

    def join(self) -> None:
        if len(self.watch.mirrors) < 4:
            self.watch.add_mirror()

    def leave(self, k: int) -> None:
        if self.watch.mirrors:
            self.engine.detach(self.watch.mirrors.pop(k % len(self.watch.mirrors)))

    # --- faults ---------------------------------------------------------------------------------------------------

    def fail_run(self, where: str, error: type[BaseException], times: int) -> None:
        """The next forward passes (or their resolution) raise."""

        def raise_it(_: object) -> None:
            nonlocal times
            times -= 1
            if times >= 0:
                raise error

        self.hook(where, raise_it)

    def fail_of(self, where: str, k: int) -> None:
        """Every forward pass (or resolution) that a certain request takes part in raises."""
        request_id = self.live(k)

        def raise_it(batch_or_rows: Any) -> None:
            if request_id in requests_in(batch_or_rows):
                raise Boom

        self.hook(where, raise_it)

    def hook(self, where: str, raise_it: Callable[[Any], None]) -> None:
        def hooked(batch_or_rows: Any) -> None:
            try:
                raise_it(batch_or_rows)
            except BaseException:
                self.raised.append(requests_in(batch_or_rows))
                raise

        setattr(self.engine.sampler if where == "before_resolve" else self.engine.runner, where, hooked)

    def fail_row(self, k: int, non_finite: bool) -> None:
        if (request_id := self.live(k)) is not None:
            self.guilty.add(request_id)
            self.engine.sampler.fail[min(self.engine.committer.requests[request_id])] = non_finite

    def poison(self, k: int) -> None:
        """The rows of a request are NaN from now on."""
        if (request_id := self.live(k)) is not None:
            self.guilty.add(request_id)
            self.engine.runner.poison.update(self.engine.committer.requests[request_id])

    def fail_draft(self, fails: bool) -> None:
        """Drafting raises from now on, or no more. The answers must not show it."""
        if self.engine.proposer is not None:
            self.engine.proposer.fail = fails

    def fail_bookkeeping(self, where: str, at: int) -> None:
        owner, _, name = where.partition(".")
        scheduler = self.engine.scheduler
        owners = {"scheduler": scheduler, "pool": scheduler.pool, "prefix": scheduler.prefix}
        break_once((owners | {"recorder": self.engine.recorder})[owner], name, at)

    def end(self) -> None:
        """No more faults: everybody is answered, nothing is left behind, and a new request is right."""
        self.step(2)
        self.hook("before_run", lambda _: None)
        self.hook("after_run", lambda _: None)
        self.hook("before_resolve", lambda _: None)
        self.engine.set_paused(False)
        for _ in range(5000):
            if not self.engine.has_work:
                break
            self.step(1)
        self.watch.flush()
        self.watch.check_answers()
        assert idle(self.engine)
        assert all(self.engine.is_finished(r) for r in self.ids)
        assert self.engine.proposer is None or not self.engine.proposer.stale
        self.watch.ask([1], 2)
        self.watch.run()


def hold_reasons(scheduler: ContinuousScheduler, wrong: list[str]) -> None:
    """After each plan, hold every waiting sequence's reason against the facts."""
    plan_it = scheduler.plan

    def plan(only: str | None = None, *args: Any, **kwargs: Any) -> StepPlan:
        plan = plan_it(only, *args, **kwargs)
        if only is None:
            for_drafts = sum(
                len(scheduler.sequences[s.seq_id].table.blocks) - -(-(s.start + s.n_new) // scheduler.size)
                for s in plan.slices
                if s.n_draft
            )
            for index, seq in enumerate(scheduler.queue):
                if seq.wait is None:
                    wrong.append(f"{seq.seq_id} waits without a reason")
                    continue
                hits, need, have = scheduler._blocks_needed(seq)
                if len(hits) + need > scheduler.pool.num_blocks:
                    wrong.append(f"{seq.seq_id} can never be admitted")
                seats = sum(s.n for s in scheduler.running)
                true = {
                    "TOKENS": plan.num_tokens == scheduler.max_batch_tokens,
                    "COOLDOWN": bool(plan.preempted),
                    "SEQS": seats + seq.n > scheduler.max_running,
                    "BLOCKS": need + seats > have + min(seats, for_drafts) and seq.wait.need > seq.wait.have >= have,
                    "ORDER": index > 0 and seq.wait.behind == scheduler.queue[index - 1].seq_id,
                    "PAUSED": False,
                }
                if not true[seq.wait.kind]:
                    wrong.append(f"{seq.seq_id} does not wait for {seq.wait}")
        return plan

    scheduler.plan = plan  # type: ignore[method-assign]


small = st.integers(0, 7)
asks = st.tuples(
    st.just("ask"), st.integers(0, 2), st.integers(0, 24), st.integers(0, VOCAB - 1), st.integers(1, 16),
    st.sampled_from((1, 1, 1, 2, 3)), st.sampled_from((0, 0, 1)), st.sampled_from(("", "", "x")),
)  # fmt: skip
crowds = st.tuples(st.just("crowd"), st.integers(0, 2**16), st.integers(2, 8))
steps = st.tuples(st.just("step"), st.integers(1, 12))
calm = st.one_of(
    asks, crowds, crowds, steps, steps, steps,
    st.tuples(st.just("abort"), small),
    st.sampled_from((("pause",), ("flush",), ("reset_cache",), ("join",))),
    st.tuples(st.just("leave"), small),
)  # fmt: skip
points = st.sampled_from(("before_run", "after_run", "before_resolve"))
troubles = st.one_of(
    st.tuples(st.just("fail_run"), points, st.sampled_from((Boom, Boom, KeyboardInterrupt)), st.integers(1, 3)),
    st.tuples(st.just("fail_of"), points, small),
    st.tuples(st.just("fail_row"), small, st.booleans()),
    st.tuples(st.just("poison"), small),
    st.tuples(st.just("fail_draft"), st.booleans()),
    st.tuples(
        st.just("fail_bookkeeping"),
        st.sampled_from((
            "scheduler.plan", "scheduler.begin_commit", "scheduler.commit_slice", "scheduler.fork",
            "scheduler.rollback", "pool.take", "prefix.publish", "prefix.match", "recorder.committed",
        )),
        st.integers(0, 5),
    ),
)  # fmt: skip
limits = st.fixed_dictionaries(
    {
        "num_blocks": st.integers(2, 24),
        "block_size": st.sampled_from((1, 2, 4, 4, 8)),
        "max_running": st.integers(1, 6),
        "max_batch_tokens": st.sampled_from((6, 8, 16, 40)),
        "max_chunk": st.sampled_from((1, 3, 6)),
        "draft": st.sampled_from(("none", "none", "lookup", "model")),
        "k": st.integers(1, 5),
        "prefix_cache": st.sampled_from((True, True, True, False)),
    }
)


def bursts(actions: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    """Lists long enough to fill a pool, of parts small enough to shrink."""
    return st.lists(st.lists(actions, max_size=16), max_size=16).map(lambda parts: [a for part in parts for a in part])


def live(limits: dict[str, Any], actions: list[tuple[Any, ...]]) -> dict[str, int]:
    """One life from beginning to end; what was counted in it."""
    life = Life(limits)
    for name, *arguments in actions:
        getattr(life, name)(*arguments)
    life.end()
    return life.engine.recorder.totals


def fuzz(actions: st.SearchStrategy[Any], runs: int) -> Counter[str]:
    """That many lives; the sum of what was counted, to show that they were not idle."""
    seen: Counter[str] = Counter()

    @settings(
        max_examples=RUNS or runs,
        derandomize=not RUNS,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
    )
    @given(limits, bursts(actions))
    def run(limits: dict[str, Any], actions: list[tuple[Any, ...]]) -> None:
        seen.update(live(limits, actions))
        seen["lives"] += 1

    run()
    return seen


def test_without_faults_nobody_fails():
    seen = fuzz(calm, runs=300)
    assert seen["lives"] >= 300
    assert min(seen[n] for n in ("preemptions", "evictions", "cached_tokens", "accepted", "abort", "stop")) > 50
    assert seen["length"] > 1000
    assert seen["error"] == seen["faults"] == 0


def test_faults_end_only_those_at_fault():
    seen = fuzz(st.one_of(*[calm] * 8, troubles), runs=300)
    assert seen["lives"] >= 300
    assert min(seen[n] for n in ("preemptions", "evictions", "cached_tokens", "error", "faults")) > 50
    assert seen["length"] > 500
