"""How well the draft guesses the target, what a step of each costs, and what drafting gains.

    python -m mini_infer.demo.measure --n 20

asks the stories and questions of `evaluate` one at a time, greedy, with and without drafts in turn.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mini_infer.config import EngineConfig
from mini_infer.demo import MODELS
from mini_infer.demo.evaluate import MAX_TOKENS, cases
from mini_infer.llm import LLM
from mini_infer.observe.events import StepReport
from mini_infer.observe.sinks import CallbackSink
from mini_infer.results import GenerationResult
from mini_infer.sampling.params import SamplingParams


@dataclass
class Timed:
    """An engine with the steps of its last answer, and how long that took."""

    llm: LLM
    reports: list[StepReport] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.llm.engine.attach(CallbackSink(self.reports.append))

    def ask(self, prompt: Sequence[int]) -> tuple[GenerationResult, float]:
        """The greedy answer, and the seconds from the first token to the last."""
        self.reports.clear()
        marks, result = [], None
        for chunk in self.llm.stream(prompt, SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS), raw=True):
            marks.append(time.perf_counter())
            result = chunk.result
        assert result is not None
        return result, marks[-1] - marks[0]

    def decode_ms(self, k: int) -> tuple[list[float], list[float]]:
        """Milliseconds of each target step without drafts and of each draft step, the choice of a token included."""
        steps = [(r.sched[0], r.durations) for r in self.reports if r.sched and r.durations]
        target = [d.forward + d.sample for s, d in steps if s.kind == "decode"]
        return target, [d.draft / k for s, d in steps if s.n_draft == k]


@dataclass
class Figures:
    """Sums over the answers of one kind of case."""

    drafted: int = 0
    accepted: int = 0
    speedups: list[float] = field(default_factory=list)
    equal: int = 0

    @property
    def acceptance(self) -> float:
        return self.accepted / self.drafted if self.drafted else 0.0


def measure(models: Path, n: int, seed: int, k: int) -> tuple[dict[str, Figures], float, float]:
    """Figures by kind, and the median milliseconds of a target step (one row) and of a draft step."""
    plain = Timed(LLM(models / "target", EngineConfig(draft="none")))
    paired = Timed(LLM(models / "target", EngineConfig(draft=str(models / "draft"), draft_tokens=k)))
    found: dict[str, Figures] = {}
    target_ms: list[float] = []
    draft_ms: list[float] = []
    for case in cases(n, seed):
        prompt = plain.llm.encode_chat(case.prompt)
        for each in (plain, paired):  # not counted: kernels are prepared for every new length of the context
            each.ask(prompt)
        alone, slow = plain.ask(prompt)
        target_ms += plain.decode_ms(k)[0]
        both, quick = paired.ask(prompt)
        draft_ms += paired.decode_ms(k)[1]
        figures = found.setdefault(case.kind, Figures())
        figures.drafted += both.usage.drafted
        figures.accepted += both.usage.accepted
        figures.speedups.append(slow / quick)
        figures.equal += alone.token_ids == both.token_ids
    return found, statistics.median(target_ms), statistics.median(draft_ms)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Measure the demo pair.")
    parser.add_argument("--models", type=Path, default=MODELS)
    parser.add_argument("--n", type=int, default=20, help="cases of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--k", type=int, default=4)
    given = parser.parse_args(arguments)
    found, target, draft = measure(given.models, given.n, given.seed, given.k)
    print(f"step: target {target:.2f} ms, draft {draft:.2f} ms, ratio {draft / target:.2f}")
    for kind, figures in found.items():
        low, middle, high = statistics.quantiles(figures.speedups, n=4)
        print(
            f"{kind}: accepted / drafted {figures.acceptance:.3f}, speed-up {middle:.2f} (quartiles {low:.2f} to "
            f"{high:.2f}), {figures.equal} of {given.n} answers equal"
        )


if __name__ == "__main__":
    main()
