"""Sampling whole answers from a tiny engine, and the exact distribution of their first tokens."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from mini_infer.config import EngineConfig
from mini_infer.engine import InferenceEngine
from mini_infer.models.config import ModelConfig
from mini_infer.models.runner import ModelRunner
from mini_infer.models.transformer import Transformer
from mini_infer.sampling.params import SamplingParams
from mini_infer.speculative.draft_model import DraftModel
from tests.sampling import naive
from tests.support.checkpoints import tiny_model
from tests.support.dense import dense_logits
from tests.support.speculation import ByRequest

SMALL = {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 32, "head_dim": 8}
PROMPT = (1, 2, 3)


@dataclass(frozen=True, eq=False)
class Pair:
    """A target and a draft that agrees with it on some of its tokens."""

    target: Transformer
    draft: Transformer
    config: ModelConfig


@functools.cache
def pair(vocab: int, noise: float, draft_seed: int = 0, small: bool = True) -> Pair:
    shape = SMALL if small else {}
    target, config = tiny_model(vocab=vocab, dtype=torch.float32, **shape)
    draft, _ = tiny_model(vocab=vocab, dtype=torch.float32, seed=draft_seed, **shape)
    generator = torch.Generator().manual_seed(9)
    for tensor in draft.checkpoint_parameters().values():
        tensor.add_(noise * torch.randn(tensor.shape, generator=generator))
    return Pair(target, draft, replace(config, eos_token_ids=()))


def sample(
    models: Pair, params: SamplingParams, count: int, *, ks: Sequence[int] = (), entropy_seed: int = 0, batch: int = 250
) -> tuple[list[tuple[int, ...]], InferenceEngine]:
    """The answers of `count` unseeded requests. `ks`: drafts of the first, second, … request, round and round."""
    blocks = 2 * batch
    proposer = None
    if ks:
        runner = ModelRunner(models.draft, models.config, blocks, 16, "cpu")
        proposer = DraftModel(runner, ByRequest(ks), models.config.vocab_size)
    options = EngineConfig(max_running=batch, max_batch_tokens=8 * batch, max_chunk=16, entropy_seed=entropy_seed)
    engine = InferenceEngine(models.target, models.config, blocks, options=options, proposer=proposer)
    answers = {engine.add_request(PROMPT, params): () for _ in range(count)}
    while engine.has_work:
        for seq_id, token in engine.step():
            answers[seq_id] += (token,)
    return list(answers.values()), engine


@functools.cache
def exact(models: Pair, params: SamplingParams, length: int) -> dict[tuple[int, ...], float]:
    """The probability of every possible beginning, by the dense model and blackboard sampling."""
    probs: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(length):
        longer = {}
        for prefix, weight in probs.items():
            tokens = [*PROMPT, *prefix]
            logits = dense_logits(models.target, models.config, tokens)[-1].tolist()
            found = naive.distribution(logits, params, tokens, len(PROMPT), ())
            longer |= {(*prefix, x): weight * p for x, p in enumerate(found) if p > 0}
        probs = longer
    return probs


def p_value(answers: Sequence[tuple[int, ...]], expected: dict[tuple[int, ...], float]) -> float:
    """Chi-square p-value of the answers' beginnings, cells pooled to at least 20 expected; 0 for an impossible one."""
    cells = {tokens: i for i, tokens in enumerate(expected)}
    length = len(next(iter(expected)))
    beginnings = [answer[:length] for answer in answers]
    if any(beginning not in cells for beginning in beginnings):
        return 0.0
    return naive.p_value([cells[b] for b in beginnings], list(expected.values()))
