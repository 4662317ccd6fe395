"""Peak resident memory of a process that loads a model: the weights, one tensor, and little else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from mini_infer.models.checkpoint import stored_tensors
from tests.models.loading import save_sharded, write_200_mb
from tests.support.real import QWEN, SMOLLM, real_checkpoint

MB = 10**6
# A fresh process: one forked from a big parent would inherit its peak.
CHILD = """
import json, resource, sys
from pathlib import Path
import torch
from mini_infer.models.loader import load_model_from_safetensors

def resident(key):
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS
    return next(int(line.split()[1]) * 1024 for line in status.read_text().splitlines() if line.startswith(key))

folder, dtype, sabotage = sys.argv[1:]
before = resident("VmRSS")
if sabotage:
    from safetensors import safe_open
    from mini_infer.models import loader
    handles = {}
    def one_handle_for_all(file, **options):
        handles.setdefault(file, safe_open(file, **options))
        class Kept:
            def __enter__(self): return handles[file]
            def __exit__(self, *args): pass
        return Kept()
    loader.safe_open = one_handle_for_all
model, config = load_model_from_safetensors(folder, dtype=dtype)
held = sum(parameter.nbytes for parameter in model.parameters())
print(json.dumps({"before": before, "peak": resident("VmHWM"), "held": held}))
"""


def measure(folder: Path, dtype: str, sabotage: str = "") -> dict[str, int]:
    """Bytes: resident before loading, the peak, and the parameters as held; and the largest tensor as stored."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(folder), dtype, sabotage],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    measured: dict[str, int] = json.loads(done.stdout)
    return measured | {"largest": max(tensor.nbytes for tensor in stored_tensors(folder).values())}


def assert_within_promise(measured: dict[str, int]) -> None:
    """The project's promise, on the whole process."""
    assert measured["peak"] <= 1.15 * measured["held"] + measured["largest"] + 450 * MB, measured


@pytest.fixture(scope="module", params=[1, 2], ids=["one file", "two shards"])
def synthetic(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 MB of bf16, no tensor above 17 MB."""
    return write_200_mb(tmp_path_factory.mktemp("synthetic"), request.param)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak alone, without a start, shows too little")
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_loading_holds_the_weights_and_one_tensor(synthetic: Path, dtype: str) -> None:
    measured = measure(synthetic, dtype)
    assert measured["held"] > 190 * MB
    assert_within_promise(measured)
    assert measured["peak"] - measured["before"] <= 1.02 * measured["held"] + measured["largest"] + 24 * MB, measured


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak alone, without a start, shows too little")
def test_sabotage_one_handle_for_all_tensors_is_seen(synthetic: Path) -> None:
    measured = measure(synthetic, "bfloat16", "one handle")
    assert measured["peak"] - measured["before"] > 1.5 * measured["held"], measured


@pytest.mark.real
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("name", [QWEN, SMOLLM])
def test_real_checkpoints_load_within_the_promised_memory(tmp_path: Path, name: str, shards: int, dtype: str) -> None:
    folder = real_checkpoint(name)
    if shards > 1:
        (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
        save_sharded(tmp_path, load_file(folder / "model.safetensors"), shards)
        folder = tmp_path
    measured = measure(folder, dtype)
    print({key: f"{value / MB:.0f} MB" for key, value in measured.items()})
    assert_within_promise(measured)
