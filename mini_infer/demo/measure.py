"""How well the draft guesses the target, and what a step of each costs.

    python -m mini_infer.demo.measure --n 20

Acceptance is that of greedy rounds: along the target's own greedy answers the draft proposes `--k` tokens at a time,
and each counts as accepted up to the first that differs.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from mini_infer.config import EngineConfig
from mini_infer.demo.evaluate import MAX_TOKENS, MODELS, cases
from mini_infer.demo.net import CONTEXT, Net, Rows, Shape
from mini_infer.llm import LLM
from mini_infer.models.config import ModelConfig
from mini_infer.sampling.params import SamplingParams


def load_net(folder: Path) -> Net:
    """The checkpoint as a network that reads a whole text at once."""
    from safetensors.torch import load_file

    config = ModelConfig.from_folder(folder)
    sizes = (config.vocab_size, config.hidden_size, config.intermediate_size, config.num_layers)
    net = Net(Shape(*sizes, config.num_heads, config.num_kv_heads))
    net.load_state_dict({name: value.float() for name, value in load_file(folder / "model.safetensors").items()})
    return net


@torch.inference_mode()
def agreement(draft: Net, prompt: Sequence[int], answer: Sequence[int]) -> list[bool]:
    """For each token of the answer, whether it is the draft's own best guess after all tokens before it."""
    ids = torch.tensor([[*prompt, *answer]])[:, :CONTEXT]
    positions, zeros = torch.arange(ids.shape[1])[None], torch.zeros_like(ids)
    hidden = draft(Rows(ids, positions, zeros, zeros, zeros))
    best = draft.logits(hidden).argmax(-1)[0, len(prompt) - 1 : -1]
    return (best == ids[0, len(prompt) :]).tolist()


def rounds(matches: Sequence[bool], k: int) -> tuple[int, int, int]:
    """(rounds, drafted, accepted) of one answer: each round drafts up to k tokens and adds those accepted plus one."""
    count = drafted = accepted = at = 0
    while at < len(matches):
        proposed = matches[at : at + k]
        good = next((i for i, match in enumerate(proposed) if not match), len(proposed))
        count, drafted, accepted = count + 1, drafted + len(proposed), accepted + good
        at += good + 1
    return count, drafted, accepted


def acceptance(target: Path, draft: Path, n: int, seed: int, k: int) -> dict[str, tuple[float, float]]:
    """Of each kind of case: accepted / drafted, and tokens per round."""
    llm, net = LLM(target, EngineConfig(entropy_seed=seed)), load_net(draft)
    asked = cases(n, seed)
    prompts = [llm.encode_chat(case.prompt) for case in asked]
    results = llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS))
    sums: dict[str, list[int]] = {}
    for case, prompt, result in zip(asked, prompts, results, strict=True):
        counts = (*rounds(agreement(net, prompt, result.token_ids), k), len(result.token_ids))
        sums[case.kind] = [a + b for a, b in zip(sums.get(case.kind, [0] * 4), counts, strict=True)]
    return {kind: (good / drafted, tokens / count) for kind, (count, drafted, good, tokens) in sums.items()}


def step_seconds(folders: Sequence[Path], tokens: int = 60, repeats: int = 5) -> list[float]:
    """Median seconds of one decode step at batch 1, the folders taking turns."""
    engines = [LLM(folder) for folder in folders]
    times: list[list[float]] = [[] for _ in folders]
    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
    for _ in range(repeats):
        for llm, found in zip(engines, times, strict=True):
            marks = [time.perf_counter() for _ in llm.stream("Tell me a story about a fox.", params)]
            found += [later - earlier for earlier, later in itertools.pairwise(marks[5:])]
    return [statistics.median(found) for found in times]


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the demo pair.")
    parser.add_argument("--models", type=Path, default=MODELS)
    parser.add_argument("--n", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--k", type=int, default=4)
    given = parser.parse_args()
    target, draft = given.models / "target", given.models / "draft"
    one, other = step_seconds((target, draft))
    print(f"step: target {one * 1e3:.2f} ms, draft {other * 1e3:.2f} ms, ratio {other / one:.2f}")
    for kind, (rate, per_round) in acceptance(target, draft, given.n, given.seed, given.k).items():
        speed = per_round / (1 + given.k * other / one)
        print(
            f"{kind}: accepted / drafted {rate:.3f}, {per_round:.2f} tokens per round, estimated speed-up {speed:.2f}"
        )


if __name__ == "__main__":
    main()
