"""Work per step depends on who runs, not on how many wait, how long the engine has lived or what it has seen."""

from __future__ import annotations

import sys
import time
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

from mini_infer.engine import InferenceEngine
from mini_infer.sampling.params import SamplingParams
from tests.support.fake import VOCAB, FakeRunner, fake_engine, mix
from tests.support.watch import Mirror

RUNNING, WAITING = 16, 1000


class ShallowRunner(FakeRunner):
    """Computes nothing, so that what is counted is the engine's own work."""

    def run(self, batch) -> np.ndarray:
        self.batches += 1
        return np.zeros(len(batch.logit_rows), dtype=np.int64)


class Listener(Mirror):
    """Reads every report and keeps none."""

    def emit(self, report) -> None:
        assert report.num_waiting >= 0


def crowd(waiting: int, listening: bool) -> tuple[InferenceEngine, Callable[[], None]]:
    """An engine with 16 running and `waiting` waiting sequences, and a step that replaces whoever ended."""
    engine = fake_engine(num_blocks=256, block_size=16, max_running=RUNNING, max_batch_tokens=64, max_chunk=32)
    engine.runner = ShallowRunner(256, 16)
    if listening:
        engine.attach(Listener())
    params = [SamplingParams(temperature=0, max_tokens=most) for most in range(8, 32)]
    arrivals = 0

    def step() -> None:
        nonlocal arrivals
        while len(engine.scheduler.sequences) < RUNNING + waiting:
            arrivals += 1
            prompt = [mix(arrivals, i) % VOCAB for i in range(arrivals % 29 + 4)]
            engine.add_request(prompt, params[arrivals % len(params)])
        engine.step()

    return engine, step


def calls_per_step(step: Callable[[], None], steps: int = 150) -> float:
    """Function calls, Python's and C's, on average."""
    count = 0

    def note(frame, event, arg) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        for _ in range(steps):
            step()
    finally:
        sys.setprofile(None)
    return count / steps


def test_work_per_step_is_flat_over_20_000_steps():
    engine, step = crowd(WAITING, listening=True)
    for _ in range(500):
        step()
    early = calls_per_step(step)
    while engine.scheduler.step < 20_000:
        step()
    late = calls_per_step(step)
    assert len(engine.scheduler.running) >= RUNNING - 2
    assert len(engine.scheduler.queue) >= WAITING
    assert late < 1.05 * early


@pytest.mark.parametrize("listening", [False, True])
def test_work_per_step_does_not_grow_with_the_queue(listening):
    work = {}
    for waiting in (50, WAITING):
        _, step = crowd(waiting, listening)
        for _ in range(300):
            step()
        work[waiting] = calls_per_step(step)
    assert work[WAITING] < 1.1 * work[50]  # a binary search is a little deeper


@pytest.mark.timing
def test_200_000_steps_show_no_growth_in_time_or_memory():
    _, step = crowd(WAITING, listening=False)
    for _ in range(5_000):
        step()
    tracemalloc.start()
    sizes, times = [], []
    for _ in range(4):
        began = time.perf_counter()
        for _ in range(50_000):
            step()
        times.append(time.perf_counter() - began)
        sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert max(sizes[1:]) < sizes[0] + 1_000_000
    assert max(times[1:]) < 1.3 * times[0]
