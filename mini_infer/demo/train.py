"""Trains the pair: tokenizer, target, then the draft on the target's distributions.

    python -m mini_infer.demo.train OUT

writes OUT/target and OUT/draft. Interrupted, the same command goes on from its last checkpoint in OUT/state. All
randomness hangs on the seed, the corpus is checked against `CORPUS`, so two runs see the same text in the same order.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from mini_infer.demo.corpus import fingerprint
from mini_infer.demo.net import Net, Rows, draft_shape, target_shape
from mini_infer.demo.packing import batches
from mini_infer.demo.vocabulary import Encoder, learn_tokenizer, write_tokenizer

CORPUS = "8ce9a16c1abc72159a28baca03949b4d3add6858bfaf346a308b19de0ce7e150"
"""`fingerprint(0)`: what the pair is trained on. Changed text needs a new value here, and a new training."""
SEED, HELD_OUT_SEED = 0, 1_000_003
Loss = Callable[[Net, Rows], Tensor]


@dataclass(frozen=True, slots=True)
class Recipe:
    target_steps: int = 1500
    draft_steps: int = 900
    rows: int = 4  # of each worker in a step
    length: int = 512
    workers: int = 2  # threads that each run whole passes; torch's own threads wait too much on a busy machine
    matrix_rate: float = 4e-3  # Muon
    other_rate: float = 3e-3  # AdamW: embedding, norms, biases
    warmup: int = 40
    cooldown: float = 0.5  # the last part of the steps, in which the rates fall to zero in a line
    save_every: int = 25
    held_out_batches: int = 8
    sample: int = 30_000  # conversations for the tokenizer


def main() -> None:
    usual = Recipe()
    parser = argparse.ArgumentParser(description="Train the demo pair.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--target-steps", type=int, default=usual.target_steps)
    parser.add_argument("--draft-steps", type=int, default=usual.draft_steps)
    parser.add_argument("--workers", type=int, default=usual.workers)
    given = parser.parse_args()
    recipe = Recipe(target_steps=given.target_steps, draft_steps=given.draft_steps, workers=given.workers)
    for name, value in train_pair(given.out, recipe).items():
        print(f"{name}: {value}")


def train_pair(out: Path, recipe: Recipe) -> dict[str, float]:
    """Both models, written as checkpoint folders. Returns held-out losses and seconds."""
    torch.set_num_threads(1)
    state = out / "state"
    state.mkdir(parents=True, exist_ok=True)
    if fingerprint(SEED) != CORPUS:
        raise ValueError("the corpus is not the one of CORPUS: set it to the new fingerprint if that is meant")
    file = state / "tokenizer.json"
    if not file.exists():
        learn_tokenizer(SEED, recipe.sample).save(str(file))
    tokenizer = Tokenizer.from_file(str(file))
    encoder, size = Encoder(tokenizer), tokenizer.get_vocab_size()
    report: dict[str, float] = {}

    torch.manual_seed(SEED)
    target = Net(target_shape(size))
    report |= _train("target", target, next_token_loss, recipe, recipe.target_steps, encoder, state)
    write_checkpoint(out / "target", target, tokenizer)

    torch.manual_seed(SEED + 1)
    draft = Net(draft_shape(size))
    loss = distillation_loss(target)
    report |= _train("draft", draft, loss, recipe, recipe.draft_steps, encoder, state)
    write_checkpoint(out / "draft", draft, tokenizer)
    (out / "report.json").write_text(json.dumps(report | asdict(recipe), indent=2) + "\n", encoding="utf-8")
    return report


def next_token_loss(net: Net, rows: Rows) -> Tensor:
    """Weighted cross entropy of the next tokens, in nats."""
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        chosen = rows.weights > 0
        logits = net.logits(net(rows)[chosen])
    losses = F.cross_entropy(logits.float(), rows.targets[chosen], reduction="none")
    weights = rows.weights[chosen]
    return (losses * weights).sum() / weights.sum()


def distillation_loss(target: Net) -> Loss:
    """Weighted KL(target || draft) over the vocabulary (Hinton et al. 2015 at temperature 1), in nats."""

    def loss(net: Net, rows: Rows) -> Tensor:
        chosen = rows.weights > 0
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            with torch.no_grad():
                wanted = target.logits(target(rows)[chosen]).float().log_softmax(-1)
            logits = net.logits(net(rows)[chosen])
        losses = F.kl_div(logits.float().log_softmax(-1), wanted, reduction="none", log_target=True).sum(-1)
        weights = rows.weights[chosen]
        return (losses * weights).sum() / weights.sum()

    return loss


def _train(
    name: str, net: Net, loss: Loss, recipe: Recipe, steps: int, encoder: Encoder, state: Path
) -> dict[str, float]:
    """Trains in place. Returns the held-out loss and the seconds spent."""
    parameters = list(net.parameters())
    optimizers = _optimizers(net, recipe)
    stream = batches(encoder, SEED, recipe.rows, recipe.length)
    file, first, spent = state / f"{name}.pt", 0, 0.0
    if file.exists():
        saved = torch.load(file, weights_only=True)
        net.load_state_dict(saved["net"])
        for optimizer, value in zip(optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(value)
        first, spent = saved["step"], saved["seconds"]
        next(itertools.islice(stream, first * recipe.workers, first * recipe.workers), None)
    began = time.perf_counter() - spent
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with ThreadPoolExecutor(recipe.workers) as pool, Progress(*columns, TimeRemainingColumn()) as progress:
        task = progress.add_task(name, total=steps, completed=first)
        mean: float | None = None
        for step in range(first, steps):
            work = list(itertools.islice(stream, recipe.workers))
            results = list(pool.map(lambda rows: _gradients(net, parameters, loss, rows), work))
            for parameter, *grads in zip(parameters, *(grads for _, grads in results), strict=True):
                parameter.grad = sum(grads[1:], start=grads[0]) / len(grads)
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            rate = _rate(step, steps, recipe)
            list(pool.map(_apply, optimizers, itertools.repeat(rate)))
            now = sum(value for value, _ in results) / len(results)
            mean = now if mean is None else 0.95 * mean + 0.05 * now
            progress.update(task, completed=step + 1, description=f"{name} loss {mean:.4f}")
            if not progress.console.is_terminal and (step + 1) % 20 == 0:
                progress.console.print(f"{name} step {step + 1} loss {mean:.4f} {time.perf_counter() - began:.0f} s")
            if not math.isfinite(now):
                raise ArithmeticError(f"{name}: the loss of step {step + 1} is {now}")
            if (step + 1) % recipe.save_every == 0 or step + 1 == steps:
                saved = {
                    "net": net.state_dict(),
                    "optimizers": [optimizer.state_dict() for optimizer in optimizers],
                    "step": step + 1,
                    "seconds": time.perf_counter() - began,
                }
                torch.save(saved, file.with_suffix(".new"))
                file.with_suffix(".new").replace(file)
    seconds = time.perf_counter() - began
    return {f"{name}_held_out": held_out_loss(net, loss, encoder, recipe), f"{name}_seconds": seconds}


def _gradients(net: Net, parameters: Sequence[Tensor], loss: Loss, rows: Rows) -> tuple[float, tuple[Tensor, ...]]:
    value = loss(net, rows)
    return value.item(), torch.autograd.grad(value, parameters)


def _optimizers(net: Net, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon (Jordan et al. 2024) for the matrices of the layers, which needs about half the steps of AdamW; AdamW for
    the rest. The matrices are split in two, so that two workers can apply them."""
    matrices = [p for name, p in net.named_parameters() if p.dim() == 2 and "embed" not in name]
    others = [p for name, p in net.named_parameters() if p.dim() != 2 or "embed" in name]
    found: list[torch.optim.Optimizer] = [
        torch.optim.Muon(part, lr=recipe.matrix_rate, weight_decay=0.01, adjust_lr_fn="match_rms_adamw")
        for part in (matrices[::2], matrices[1::2])
    ]
    return [*found, torch.optim.AdamW(others, lr=recipe.other_rate, betas=(0.9, 0.95), weight_decay=0.0)]


def _apply(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = group.setdefault("full_lr", group["lr"]) * rate
    optimizer.step()


def _rate(step: int, steps: int, recipe: Recipe) -> float:
    """Part of the full learning rate: up in a line, level, down to zero in a line."""
    return min(1.0, (step + 1) / recipe.warmup, (steps - step) / max(steps * recipe.cooldown, 1))


def held_out_loss(net: Net, loss: Loss, encoder: Encoder, recipe: Recipe) -> float:
    """The loss on conversations of another seed."""
    stream: Iterator[Rows] = batches(encoder, HELD_OUT_SEED, recipe.rows, recipe.length)
    with torch.no_grad():
        values = [loss(net, rows).item() for rows in itertools.islice(stream, recipe.held_out_batches)]
    return sum(values) / len(values)


def write_checkpoint(folder: Path, net: Net, tokenizer: Tokenizer) -> None:
    """A Hugging Face folder in bfloat16."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: value.to(torch.bfloat16).contiguous() for name, value in net.state_dict().items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # written for its owner alone, but a package is for all
    end = tokenizer.token_to_id("<|im_end|>")
    ends = {"eos_token_id": end, "pad_token_id": tokenizer.token_to_id("<|endoftext|>")}
    _write_json(folder / "config.json", net.shape.config() | {"eos_token_id": end})
    _write_json(folder / "generation_config.json", ends | {"do_sample": True, "temperature": 0.7})
    write_tokenizer(tokenizer, folder)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
