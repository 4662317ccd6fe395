"""What the engine itself costs per step: all of `step` but the model's forward, its head and the sampler.

So planning, the flat batch, its index tensors, commit, keys, text and the report are in; kernels are not. Medians over
many steps, on one thread.
"""

from __future__ import annotations

from statistics import median
from time import perf_counter

import pytest
import torch

from mini_infer.sampling.params import SamplingParams
from tests.support.engines import prompt, tiny_engine

pytestmark = pytest.mark.timing

SEQUENCES = 16
STEPS = 300


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Clock:
    """Adds up the time spent in calls it stands in front of."""

    def __init__(self):
        self.spent = 0.0

    def around(self, function):
        def timed(*args, **kwargs):
            began = perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.spent += perf_counter() - began

        return timed


def overheads(monkeypatch, length, text=None, params=None, **options):
    """Milliseconds of the engine's own work in each of `STEPS` steps that decode 16 sequences."""
    blocks = SEQUENCES * (-(-(length + STEPS + 500) // 16) + 1)
    engine = tiny_engine(num_blocks=blocks, dtype=torch.float32, text=text, max_running=SEQUENCES, **options)
    clock = Clock()
    monkeypatch.setattr(engine.runner.model, "forward", clock.around(engine.runner.model.forward))
    monkeypatch.setattr(engine.runner, "logits", clock.around(engine.runner.logits))
    monkeypatch.setattr(engine.sampler, "resolve", clock.around(engine.sampler.resolve))
    params = params or SamplingParams(temperature=0, max_tokens=STEPS + 500)
    for i in range(SEQUENCES):
        engine.add_request(prompt(length, seed=i), params)
    while len(engine.step().outputs) < SEQUENCES:  # until all decode
        pass
    found = []
    for _ in range(STEPS):
        clock.spent = 0.0
        began = perf_counter()
        report = engine.step()
        found.append(1000 * (perf_counter() - began - clock.spent))
        assert len(report.outputs) == SEQUENCES
    assert not engine.scheduler.preemptions
    return found


@pytest.mark.parametrize("length", [20, 1000])
@pytest.mark.parametrize("text", [None, "chatml"])
def test_the_engines_own_work_at_16_sequences_is_under_1500_us_a_step(monkeypatch, length, text):
    found = overheads(monkeypatch, length, text)
    print(f"\n{length} tokens of prompt, text {text}: median {median(found):.3f} ms, worst {max(found):.3f} ms")
    assert median(found) < 1.5
