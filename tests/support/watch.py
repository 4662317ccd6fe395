"""Watching an engine over the fake model: what was asked and got, and every invariant after every report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mini_infer.engine import InferenceEngine
from mini_infer.observe.events import Finished, Output, StepReport
from mini_infer.observe.state import EngineState, fold
from mini_infer.sampling.params import SamplingParams
from tests.support.fake import fake_answer
from tests.support.integrity import check_integrity


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
