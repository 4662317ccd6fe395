"""Asks the demo model for unseen stories and the guide's questions in unseen words, and checks the answers by rule.

    python -m mini_infer.demo.evaluate --n 50 --seed 7

prints every answer with its verdict. The last line is "N of M pass"; the exit code is 1 below 90 %.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mini_infer.demo import TARGET
from mini_infer.demo.checks import story_faults, tour_faults
from mini_infer.demo.stories import make_story
from mini_infer.demo.tour import QUESTIONS, word_question

PASSING = 0.9
TEMPERATURE, MAX_TOKENS = 0.7, 400


@dataclass(frozen=True, slots=True)
class Case:
    kind: str
    prompt: str
    faults: Callable[[str, str | None], list[str]]  # of (answer, finish reason)


def cases(n: int, seed: int) -> list[Case]:
    """`n` stories of pairs of trait and species that training never saw, and `n` questions in words it never saw."""
    rng = random.Random(seed)
    found = []
    for _ in range(n):
        story = make_story(rng, unseen=True)
        found.append(Case("story", story.request, partial(story_faults, story)))
    for question in (rng.choice(QUESTIONS) for _ in range(n)):
        wording = word_question(rng, question, unseen=True)
        found.append(Case("tour", wording, partial(tour_faults, question)))
    return found


def evaluate(folder: Path, n: int, seed: int) -> tuple[int, int]:
    """Prints the transcript. Returns (passed, asked)."""
    from mini_infer.config import EngineConfig
    from mini_infer.llm import LLM
    from mini_infer.sampling.params import SamplingParams

    llm = LLM(folder, EngineConfig(entropy_seed=seed))
    asked = cases(n, seed)
    params = SamplingParams(temperature=TEMPERATURE, max_tokens=MAX_TOKENS)
    results = llm.generate([llm.encode_chat(case.prompt) for case in asked], params)
    passed: dict[str, int] = {}
    for case, result in zip(asked, results, strict=True):
        faults = case.faults(result.text, result.finish_reason)
        passed[case.kind] = passed.get(case.kind, 0) + (not faults)
        print(f"\n[{case.kind}] {case.prompt}\n{result.text}\n--> {'; '.join(faults) or 'pass'}")
    print("\n" + ", ".join(f"{kind}: {count} of {n}" for kind, count in passed.items()))
    return sum(passed.values()), len(asked)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Evaluate the demo model.")
    parser.add_argument("--n", type=int, default=50, help="cases of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", type=Path, default=TARGET, help="folder of another model")
    given = parser.parse_args(arguments)
    passed, asked = evaluate(given.model, given.n, given.seed)
    print(f"{passed} of {asked} pass")
    return 0 if passed >= PASSING * asked else 1


if __name__ == "__main__":
    sys.exit(main())
