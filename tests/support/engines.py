"""Engines over tiny checkpoints in float64, what they must answer, and ways to disturb them."""

from __future__ import annotations

import functools
import random
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from mini_infer.batch import Batch, slot_index
from mini_infer.config import EngineConfig
from mini_infer.engine import InferenceEngine
from mini_infer.models.config import ModelConfig
from mini_infer.models.transformer import Transformer
from mini_infer.observe.events import StepReport
from mini_infer.results import Collector, GenerationResult, by_request
from mini_infer.sampling.params import SamplingParams
from mini_infer.sampling.random import Purpose, uniform
from mini_infer.sampling.rows import SampleRow
from mini_infer.scheduler.sequence import Sequence as Seq
from mini_infer.text.tokenizer import Tokenizer
from tests.sampling import naive
from tests.support import tokenizers
from tests.support.checkpoints import ENDOFTEXT, VOCAB, tiny_model
from tests.support.dense import dense_logits
from tests.support.integrity import check_integrity

TEXT_IDS = ENDOFTEXT
"""Ids below this one are ordinary tokens of the tiny tokenizer."""

Job = tuple[Sequence[int], SamplingParams]


@functools.cache
def tiny(
    arch: str = "qwen2", dtype: torch.dtype = torch.float64, vocab: int = VOCAB
) -> tuple[Transformer, ModelConfig]:
    """The model, and its config without end tokens, so that answers are as long as asked for."""
    model, config = tiny_model(arch, dtype, vocab=vocab)
    return model, replace(config, eos_token_ids=())


@functools.cache
def tiny_tokenizer(kind: str = "chatml") -> Tokenizer:
    """The tokenizer of the tiny checkpoints, or one of kind "llama" (`▁` pieces, byte fallback)."""
    write = {"chatml": tokenizers.write_chatml, "llama": tokenizers.write_llama}[kind]
    with tempfile.TemporaryDirectory() as folder:
        return tokenizers.load(write(Path(folder)))


def tiny_engine(
    arch: str = "qwen2",
    num_blocks: int = 64,
    *,
    dtype: torch.dtype = torch.float64,
    text: str | None = None,
    eos: tuple[int, ...] = (),
    generation: Mapping[str, Any] | None = None,
    **options: Any,
) -> InferenceEngine:
    """`text` is the kind of its tokenizer, if it is to have one; `eos` and `generation` are what the checkpoint says;
    `options` are EngineConfig's."""
    tokenizer = tiny_tokenizer(text) if text else None
    model, config = tiny(arch, dtype, tokenizer.vocab_size if tokenizer else VOCAB)
    config = replace(config, eos_token_ids=eos, generation=generation or {})
    return InferenceEngine(model, config, num_blocks, options=EngineConfig(**options), tokenizer=tokenizer)


def prompt(length: int, seed: int = 0) -> list[int]:
    """Random ordinary tokens; a longer prompt of one seed begins with the shorter ones."""
    rng = random.Random(seed)
    return [rng.randrange(TEXT_IDS) for _ in range(length)]


# --- running --------------------------------------------------------------------------------------------------------


class Run:
    """Requests of one engine, added at any time, stepped to the end with every invariant checked after every step."""

    def __init__(self, engine: InferenceEngine) -> None:
        self.engine = engine
        self.collectors: dict[str, Collector] = {}
        self.results: dict[str, GenerationResult] = {}
        self.reports: list[StepReport] = []

    def add(self, ids: Sequence[int], params: SamplingParams, **how: Any) -> str:
        request_id = self.engine.add_request(ids, params, **how)
        self.collectors[request_id] = Collector(request_id, params.n)
        return request_id

    def step(self) -> StepReport:
        report = self.engine.step()
        self.take(report)
        return report

    def take(self, report: StepReport) -> None:
        self.reports.append(report)
        for request_id, outputs in by_request(report).items():
            for output in outputs:
                chunk = self.collectors[request_id].add(output)
                if chunk.result is not None:
                    assert request_id not in self.results, "answered twice"
                    self.results[request_id] = chunk.result
        check_integrity(self.engine.scheduler)

    def finish(self, before_step: Callable[[int], None] = lambda step: None) -> list[GenerationResult]:
        """The results in the order in which the requests were added."""
        for step in range(20_000):
            if len(self.results) == len(self.collectors):
                return [self.results[i] for i in self.collectors]
            before_step(step)
            self.step()
        raise AssertionError(f"no end in sight: {len(self.results)} of {len(self.collectors)} answered")


def run_all(engine: InferenceEngine, jobs: Iterable[Job], **how: Any) -> list[GenerationResult]:
    """All requests at once, to the end."""
    run = Run(engine)
    for ids, params in jobs:
        run.add(ids, params)
    return run.finish(**how)


def run_one(engine: InferenceEngine, ids: Sequence[int], params: SamplingParams, **how: Any) -> GenerationResult:
    return run_all(engine, [(ids, params)], **how)[0]


def greedy_ids(engine: InferenceEngine, ids: Sequence[int], count: int) -> list[int]:
    return list(run_one(engine, ids, SamplingParams(temperature=0, max_tokens=count)).token_ids)


def choices(result: GenerationResult) -> list[tuple[int, ...]]:
    return [c.token_ids for c in result.choices]


# --- what must come out ---------------------------------------------------------------------------------------------


def expected(
    ids: Sequence[int],
    params: SamplingParams,
    *,
    arch: str = "qwen2",
    choice: int = 0,
    seed: int | None = None,
    eos: Collection[int] = (),
) -> list[int]:
    """The answer by the dense model and blackboard sampling; ids only (stop strings are not looked for)."""
    stop_ids = {*params.stop_token_ids, *(() if params.ignore_eos else eos)}
    seed = seed if seed is not None else params.seed or 0
    key = (arch, tuple(ids), params, choice, seed, tuple(sorted(stop_ids)))
    if key not in _ANSWERS:
        _ANSWERS[key] = _answer(ids, params, arch, choice, seed, stop_ids)
    return _ANSWERS[key]


_ANSWERS: dict[object, list[int]] = {}


def _answer(
    ids: Sequence[int], params: SamplingParams, arch: str, choice: int, seed: int, stop_ids: set[int]
) -> list[int]:
    model, config = tiny(arch)
    tokens = list(ids)
    assert params.max_tokens is not None
    while len(tokens) < len(ids) + params.max_tokens:
        logits = dense_logits(model, config, tokens)[-1].tolist()
        probs = naive.distribution(logits, params, tokens, len(ids), sorted(stop_ids))
        tokens.append(naive.draw(probs, uniform(seed, choice, len(tokens), Purpose.SAMPLE)))
        if tokens[-1] in stop_ids:
            break
    return tokens[len(ids) :]


def expected_greedy(ids: Sequence[int], count: int, arch: str = "qwen2") -> list[int]:
    return expected(ids, SamplingParams(temperature=0, max_tokens=count), arch=arch)


def expected_logprobs(ids: Sequence[int], first: int, arch: str = "qwen2") -> list[float]:
    """Log-probability of each of `ids[first:]` after the tokens before it."""
    model, config = tiny(arch)
    scores = dense_logits(model, config, ids).log_softmax(-1)
    return [float(scores[p - 1, ids[p]]) for p in range(first, len(ids))]


# --- disturbances ---------------------------------------------------------------------------------------------------


def preempt_when(engine: InferenceEngine, asked: Callable[[Seq], bool]) -> None:
    """From now on a running sequence gives way, as if blocks had run out, whenever `asked` says so."""
    scheduler = engine.scheduler
    make_room = scheduler._make_room

    def instead(draft: Any, seq: Seq, *args: Any, **kwargs: Any) -> bool:
        if asked(seq):
            draft.preempted.append(scheduler._preempt(seq, cause=seq.seq_id))
            return False
        return make_room(draft, seq, *args, **kwargs)

    scheduler._make_room = instead  # type: ignore[method-assign]


def steer(engine: InferenceEngine, script: Sequence[int] | Callable[[SampleRow], Sequence[int]]) -> None:
    """Every answer is the script (a function gives that of each row), then what the model says. Bans and stops hold:
    only the logits are replaced."""
    resolve = engine.sampler.resolve

    def steered(logits: torch.Tensor, rows: Sequence[SampleRow], *args: Any, **kwargs: Any) -> Any:
        own: list[torch.Tensor] = []  # the choices of a fork share a row: here each gets its own
        moved = []
        for row in rows:
            moved.append(replace(row, row=len(own)))
            ids = script(row) if callable(script) else script
            for ahead in range(len(row.drafts) + 1):
                own.append(logits[row.row + ahead].clone())
                place = row.position + ahead - row.num_prompt
                if place < len(ids):
                    own[-1][:] = 0
                    own[-1][ids[place]] = 1000
        return resolve(torch.stack(own), moved, *args, **kwargs)

    engine.sampler.resolve = steered  # type: ignore[method-assign]


class Hooks:
    """Stands between an engine and its runner: `before(batch)` may raise, `after(batch)` may spoil the KV."""

    def __init__(self, engine: InferenceEngine) -> None:
        self.engine = engine
        self.before: Callable[[Batch], None] = lambda batch: None
        self.after: Callable[[Batch], None] = lambda batch: None
        self.batches: list[Batch] = []
        self._run = engine.runner.run
        engine.runner.run = self.run  # type: ignore[method-assign]

    def run(self, batch: Batch) -> Any:
        self.before(batch)
        self.batches.append(batch)
        hidden = self._run(batch)
        self.after(batch)
        return hidden

    @property
    def kv(self) -> torch.Tensor:
        """[layers, 2, slots, kv heads, head_dim]"""
        data: torch.Tensor = self.engine.runner.kv.data  # type: ignore[attr-defined]
        return data.flatten(2, 3)

    def spoil(self, batch: Batch, seq_id: str, value: float = float("nan"), rows: slice = slice(None)) -> None:
        """Overwrite the KV rows of one sequence."""
        for span in batch.spans:
            if span.seq_id == seq_id:
                slots = slot_index(span.blocks, 0, span.kv_len, batch.block_size)[rows]
                self.kv[:, :, slots] = value
