"""Drives an engine step by step and says where the time of each step went."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from statistics import median
from time import perf_counter
from typing import Any

from mini_infer.engine import InferenceEngine
from mini_infer.models.runner import ModelRunner
from mini_infer.models.transformer import Transformer
from mini_infer.sampling.params import SamplingParams

GREEDY = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=10_000)
WARM_UP = 3


@dataclass(frozen=True, slots=True)
class Steps:
    """Medians over some steps, in milliseconds. `model` is forward and head, `own` all but these and `sample`."""

    count: int
    total: float
    model: float
    sample: float
    own: float
    recording: float
    tokens: int  # in all steps together

    @property
    def tokens_per_s(self) -> float:
        return 1000 * self.tokens / (self.count * self.total)


def model_of(engine: InferenceEngine) -> Transformer:
    """The weights behind an engine. Raises ValueError where it has a stand-in."""
    if not isinstance(engine.runner, ModelRunner):
        raise ValueError("this engine's runner is a stand-in: there is no model to measure")
    return engine.runner.model


class Clock:
    """Adds up the time spent in the calls it stands in front of; calls within calls count once."""

    def __init__(self) -> None:
        self.spent = 0.0
        self._inside = False

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def clocked(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return function(*args, **kwargs)
            self._inside, began = True, perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.spent += perf_counter() - began
                self._inside = False

        return clocked

    def take(self) -> float:
        """Milliseconds since the last take."""
        spent, self.spent = self.spent, 0.0
        return 1000 * spent


class Driver:
    """An engine whose requests are made up of random tokens, other ones for each `seed`."""

    def __init__(self, engine: InferenceEngine) -> None:
        self.engine = engine

    def prompt(self, length: int, *seed: object) -> list[int]:
        rng, size = Random(repr(seed)), self.engine.config.vocab_size
        ends = set(self.engine.config.eos_token_ids)
        return [token for token in (rng.randrange(size) for _ in range(length + len(ends))) if token not in ends][
            :length
        ]

    def fits(self, lengths: Sequence[int], more: int) -> bool:
        """Whether so many sequences can decode `more` tokens each, side by side."""
        size, blocks = self.engine.scheduler.size, self.engine.scheduler.pool.num_blocks
        need = sum(-(-(length + more) // size) + 1 for length in lengths)
        running, longest = self.engine.options.max_running or 0, max(lengths) + more
        return need <= blocks and len(lengths) <= running and longest <= self.engine.max_model_len

    def decode(self, prompts: Sequence[Sequence[int]], steps: int, params: SamplingParams = GREEDY) -> Steps:
        """Decode all prompts together for some steps, after all are read and a few steps more."""
        for prompt in prompts:
            self.engine.add_request(prompt, params)
        try:
            while len({output.seq_id for output in self.engine.step().outputs}) < len(prompts):
                pass
            for _ in range(WARM_UP):
                self.engine.step()
            return self._steps(steps)
        finally:
            self.clear()

    def first_token(self, prompt: Sequence[int]) -> float:
        """Milliseconds from the arrival of a request to its first token, the engine being idle."""
        began = perf_counter()
        self.engine.add_request(prompt, GREEDY)
        while not self.engine.step().outputs:
            pass
        took = 1000 * (perf_counter() - began)
        self.clear()
        return took

    def clear(self) -> None:
        """End every request; what they computed stays cached."""
        for request_id in list(self.engine.committer.requests):
            self.engine.abort(request_id)
        self.engine.flush()

    def _steps(self, count: int) -> Steps:
        rows: list[tuple[float, float, float, float, float]] = []
        tokens = 0
        with self._clocks() as (model, sample, recording):
            for _ in range(count):
                began = perf_counter()
                tokens += len(self.engine.step().outputs)
                total, m, s = 1000 * (perf_counter() - began), model.take(), sample.take()
                rows.append((total, m, s, total - m - s, recording.take()))
        total, m, s, own, recorded = (median(column) for column in zip(*rows, strict=True))
        return Steps(count, total, m, s, own, recorded, tokens)

    @contextmanager
    def _clocks(self) -> Iterator[tuple[Clock, Clock, Clock]]:
        runner, recorder = self.engine.runner, self.engine.recorder
        model: list[tuple[Any, list[str]]] = [(runner, ["logits"]), (model_of(self.engine), ["forward"])]
        sample: list[tuple[Any, list[str]]] = [(self.engine.sampler, ["resolve"])]
        methods = [name for name in vars(type(recorder)) if name[0] != "_" and name not in ("pending", "listen")]
        record: list[tuple[Any, list[str]]] = [(recorder, methods), (self.engine.audience, ["tell"])]
        clocks = Clock(), Clock(), Clock()
        put: list[tuple[Any, str]] = []
        for clock, group in zip(clocks, (model, sample, record), strict=True):
            for thing, names in group:
                for name in names:
                    if callable(getattr(thing, name)):
                        setattr(thing, name, clock.around(getattr(thing, name)))
                        put.append((thing, name))
        try:
            yield clocks
        finally:
            for thing, name in put:
                delattr(thing, name)
