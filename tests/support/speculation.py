"""Engines that speculate: tiny pairs in float64, policies and stub proposers, and a run that watches every round."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from mini_infer.config import EngineConfig
from mini_infer.engine import InferenceEngine
from mini_infer.models.runner import ModelRunner
from mini_infer.models.transformer import Transformer
from mini_infer.observe.events import KReason, StepReport
from mini_infer.results import GenerationResult
from mini_infer.sampling.rows import SampleRow
from mini_infer.scheduler.plan import StepPlan
from mini_infer.scheduler.sequence import Sequence as Seq
from mini_infer.speculative.adaptive import Adaptive, Costs, Fixed, Policy
from mini_infer.speculative.draft_model import DraftModel
from mini_infer.speculative.prompt_lookup import PromptLookup
from mini_infer.speculative.proposer import Drafts, Proposer
from tests.support.checkpoints import tiny_model
from tests.support.engines import Job, Run, tiny, tiny_tokenizer
from tests.support.watch import Mirror

DRAFTS = ("good", "near", "bad", "ngram")
"""The target itself, the target with some noise, another model, and no model at all."""


@functools.cache
def draft_weights(kind: str, arch: str = "qwen2", dtype: torch.dtype = torch.float64) -> Transformer:
    if kind == "good":
        return tiny(arch, dtype)[0]
    model, _ = tiny_model(arch, dtype, seed=1 if kind == "bad" else 0)
    if kind == "near":
        generator = torch.Generator().manual_seed(5)
        for tensor in model.checkpoint_parameters().values():
            tensor.add_(0.005 * torch.randn(tensor.shape, generator=generator, dtype=torch.float32))
    return model


@dataclass
class ByRequest:
    """A K of its own for each request, in order of arrival, round and round."""

    ks: Sequence[int]
    costs: Costs = field(default_factory=Costs)

    def choose(self, seq: Seq) -> tuple[int, KReason | None]:
        k = self.ks[(seq.arrival - 1) % len(self.ks)]
        return k, None if k else "OFF"


def policy_of(k: int | str | Sequence[int]) -> Policy:
    if k == "auto":
        return Adaptive()
    return Fixed(k) if isinstance(k, int) else ByRequest(k)  # type: ignore[arg-type]


class Stub:
    """Proposes `k` tokens chosen by a function of the sequence's tokens: no model, no KV."""

    name, has_kv = "stub", False

    def __init__(self, choose: Callable[[Sequence[int]], Sequence[int]], k: int = 4) -> None:
        self.choose, self.policy = choose, Fixed(k)

    def wants(self, seq: Seq) -> tuple[int, KReason | None]:
        return self.policy.choose(seq)

    def propose(self, plan: StepPlan, sequences: Mapping[str, Seq], rows: Mapping[str, SampleRow]) -> Drafts:
        return Drafts(
            {s.seq_id: tuple(self.choose(sequences[s.seq_id].tokens))[: s.n_draft] for s in plan.slices if s.n_draft}
        )

    def observe(self, plan: StepPlan, *, draft_s: float, verify_s: float) -> None:
        pass

    def zero_blocks(self, blocks: Sequence[int]) -> None:
        pass


def spec_engine(
    draft: str | Proposer | None,
    k: int | str | Sequence[int] = 4,
    *,
    arch: str = "qwen2",
    num_blocks: int = 64,
    dtype: torch.dtype = torch.float64,
    text: bool = False,
    eos: tuple[int, ...] = (),
    **options: Any,
) -> InferenceEngine:
    """`tiny_engine` with a proposer: one of `DRAFTS`, an object, or None. `k`: fixed, "auto", or one per request."""
    model, config = tiny(arch, dtype)
    block_size = options.get("block_size", 16)
    proposer: Any = draft
    if draft == "ngram":
        proposer = PromptLookup(policy_of(k))
    elif isinstance(draft, str):
        runner = ModelRunner(draft_weights(draft, arch, dtype), config, num_blocks, block_size, "cpu")
        proposer = DraftModel(runner, policy_of(k), config.vocab_size)
    return InferenceEngine(
        model,
        replace(config, eos_token_ids=eos),
        num_blocks,
        options=EngineConfig(**options),
        tokenizer=tiny_tokenizer() if text else None,
        proposer=proposer,
    )


class SpecRun(Run):
    """A run whose observer sees every round; what it folds must be the engine's snapshot after every report."""

    def __init__(self, engine: InferenceEngine) -> None:
        super().__init__(engine)
        self.mirror = Mirror()
        engine.attach(self.mirror)

    def take(self, report: StepReport) -> None:
        super().take(report)
        assert self.mirror.state == self.engine.snapshot()
        planned = {s.seq_id: s.n_draft for s in report.sched}
        for r in report.spec:
            assert 0 <= r.kept <= len(r.draft) <= planned[r.seq_id] <= 8
            assert r.kept <= r.drafted <= planned[r.seq_id]

    @property
    def rounds(self) -> list[Any]:
        return [r for report in self.reports for r in report.spec]

    def reasons(self, seq_id: str) -> list[tuple[int, KReason | None]]:
        """K and its reason at every change, as reported."""
        return [(c.k, c.why) for report in self.reports for c in report.k if c.seq_id == seq_id]


def spec_all(engine: InferenceEngine, jobs: Iterable[Job], **how: Any) -> list[GenerationResult]:
    """All requests at once, to the end, under watch."""
    run = SpecRun(engine)
    for ids, params in jobs:
        run.add(ids, params)
    return run.finish(**how)


def totals(engine: InferenceEngine) -> dict[str, int]:
    return engine.recorder.totals
