"""Packed products against plain ones, and what packing costs in memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from mini_infer.models import linear
from mini_infer.models.linear import Linear, packs
from mini_infer.models.runner import ModelRunner
from tests.models.loading import write_200_mb
from tests.support.checkpoints import tiny_model
from tests.support.paged import PagedDriver

MB = 10**6


def product(dtype: torch.dtype, bias: bool) -> Linear:
    generator = torch.Generator().manual_seed(0)
    module = Linear(96, {"q": 64, "k": 32}, bias=bias, dtype=dtype, device="cpu")
    for parameter in module.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return module


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.3)])
def test_packed_and_plain_products_agree(dtype: torch.dtype, tolerance: float, bias: bool) -> None:
    module = product(dtype, bias)
    weight, offset = module.weight.clone(), None if module.bias is None else module.bias.clone()
    expected_parts = {name: view.clone() for name, view in module.checkpoint_parameters().items()}
    if not packs(module.weight):
        pytest.skip("this CPU or this torch has no packed products")
    module.pack()
    module.pack()  # once is enough
    assert module.packed is not None and not hasattr(module, "weight"), "two copies are held"
    for rows in (1, 2, 7, 16, 100):
        x = torch.randn(rows, 96, generator=torch.Generator().manual_seed(rows)).to(dtype)
        exact = F.linear(x.double(), weight.double(), None if offset is None else offset.double())
        assert module(x).dtype == dtype
        torch.testing.assert_close(module(x).double(), exact, atol=tolerance, rtol=0)
        torch.testing.assert_close(F.linear(x, weight, offset).double(), exact, atol=tolerance, rtol=0)
    for name, part in module.checkpoint_parameters().items():
        assert torch.equal(part, expected_parts[name])


def test_a_row_of_nan_stays_alone() -> None:
    module = product(torch.bfloat16, True)
    module.pack()
    x = torch.ones(5, 96, dtype=torch.bfloat16)
    x[2] = float("nan")
    assert module(x).isnan().all(1).tolist() == [False, False, True, False, False]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_other_precisions_stay_as_they_are(dtype: torch.dtype) -> None:
    module = product(dtype, False)
    module.pack()
    assert module.packed is None and module.weight.dtype == dtype


def test_a_torch_without_the_calls_takes_the_plain_path(monkeypatch: pytest.MonkeyPatch) -> None:
    model, config = tiny_model("qwen2", torch.float32, seed=3)
    ids = list(range(20))
    monkeypatch.setattr(linear, "packs", lambda weight: False)
    plain = PagedDriver(model, config).step([("a", ids)])["a"]
    assert model.lm_head.packed is None
    monkeypatch.undo()
    packed = PagedDriver(model, config).step([("a", ids)])["a"]
    torch.testing.assert_close(packed, plain, atol=1e-4, rtol=0)


def test_a_tied_head_is_a_copy_and_the_embedding_stays() -> None:
    model, config = tiny_model("qwen2", torch.bfloat16, seed=4, tie_word_embeddings=True)
    before = model.checkpoint_parameters()["model.embed_tokens.weight"].clone()
    ModelRunner(model, config, 2, 16, "cpu")
    assert torch.equal(model.embed_tokens, before)
    assert model.lm_head.weight is model.embed_tokens
    if model.lm_head.packed is not None:
        assert torch.equal(model.lm_head.packed.to_dense(), before)


# A fresh process: one forked from a big parent would inherit its peak.
CHILD = """
import json, sys
from pathlib import Path
import torch
from mini_infer.models.loader import load_model_from_safetensors
from mini_infer.models.runner import ModelRunner

def resident(key):
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith(key))

before = resident("VmRSS")
model, config = load_model_from_safetensors(sys.argv[1])
ModelRunner(model, config, 2, 16, "cpu")
held = sum(parameter.nbytes for parameter in model.parameters())
largest = max(parameter.nbytes for parameter in model.parameters())
print(json.dumps({"before": before, "peak": resident("VmHWM"), "held": held, "largest": largest}))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs the peak and the start")
def test_packing_holds_one_product_twice_at_most(tmp_path: Path) -> None:
    """200 MB of bf16 in 17 MB pieces: the peak of load and packing is what is held in the end, and one piece."""
    write_200_mb(tmp_path, tie_word_embeddings=False)
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)
    assert measured["held"] > 190 * MB
    assert measured["peak"] - measured["before"] <= 1.02 * measured["held"] + 2 * measured["largest"] + 40 * MB, (
        measured
    )
