"""The last row of a chunk that nobody draws from is held to be finite, so that no poisoned prefix is ever published."""

from __future__ import annotations

import math

import pytest
import torch

from mini_infer.sampling.params import SamplingParams
from tests.support.engines import Hooks, expected_greedy, prompt, tiny_engine


def test_rows_are_judged_one_by_one():
    hidden = torch.tensor([[1.0, math.nan], [math.inf, 0.0], [3.0, 4.0], [0.0, -math.inf]], dtype=torch.float16)
    assert tiny_engine().runner.finite(hidden) == [False, False, True, False]


@pytest.mark.parametrize("arch", ["qwen2", "llama"])
def test_M13_a_chunk_that_reads_nan_ends_its_request_at_once_and_nobody_else(arch):
    engine = tiny_engine(arch, max_chunk=8, max_batch_tokens=16)
    hooks = Hooks(engine)
    greedy = SamplingParams.greedy(max_tokens=6)
    bad, other = prompt(60, seed=1), prompt(30, seed=2)
    ids = [engine.add_request(tokens, greedy) for tokens in (bad, other)]
    hooks.after = lambda batch: hooks.spoil(batch, "r1", rows=slice(16, 17)) if len(hooks.batches) == 3 else None
    got: dict[str, list[int]] = {i: [] for i in ids}
    errors = {}
    while engine.has_work:
        report = engine.step()
        errors |= {f.seq_id: (report.step, f.error) for f in report.finished if f.reason == "error"}
        for seq_id, token in report:
            got[seq_id].append(token)
    assert errors == {"r1": (4, "the model's states are not finite")}  # four chunks before its answer
    assert got == {"r1": [], "r2": expected_greedy(other, 6, arch=arch)}
    assert not hooks.kv.isnan().any()
    again = engine.add_request(bad, greedy)
    tokens = []
    while not engine.is_finished(again):
        tokens += [token for _, token in engine.step()]
    assert tokens == expected_greedy(bad, 6, arch=arch)
