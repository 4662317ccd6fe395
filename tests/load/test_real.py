"""Real checkpoints through the real server: nothing is wrong under load, and all counts agree."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real


def sweep(folder: Path, out: Path, *more: str) -> None:
    command = [sys.executable, "-m", "mini_infer", "load", "--model", str(folder), "--concurrency", "1,4,16"]
    command += ["--requests", "16", "--output-tokens", "16", "--check", "--seed", "11", "--json", str(out), *more]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(out.read_text())
    assert [level["level"] for level in report["levels"]] == ["1", "4", "16"]
    for level in report["levels"]:
        assert level["figures"]["ok"] == 16
        assert level["server"]["agrees"] is True
        assert level["server"]["prompt_tokens"] == level["figures"]["input_tokens"]
        assert level["server"]["leaked"] == {}
    for checked in report["check"]["levels"]:
        assert (checked["wrong"], checked["compared"], checked["unreconciled"]) == (0, 16, [])


def test_a_sweep_of_smollm_with_check_has_nothing_wrong(smollm_folder: Path, tmp_path: Path) -> None:
    """In float32: this model's logits in bf16 move by more than the tie allows, alone or not."""
    sweep(smollm_folder, tmp_path / "r.json", "--dtype", "float32")


def test_a_sweep_of_qwen_with_check_and_drafts_has_nothing_wrong(qwen_folder: Path, tmp_path: Path) -> None:
    sweep(qwen_folder, tmp_path / "r.json", "--draft", "ngram")


def test_random_prompts_have_the_length_that_was_asked_for(smollm_folder: Path, tmp_path: Path) -> None:
    """Lengths that differ from the server's own count would be failures."""
    out = tmp_path / "r.json"
    lengths = ("--workload", "shared-prefix", "--prefix-tokens", "48", "--input-tokens", "17")
    sweep(smollm_folder, out, "--dtype", "float32", *lengths)
    for level in json.loads(out.read_text())["levels"]:
        assert {s["prompt_tokens"] for s in level["samples"]} == {65}
        assert {s["tokens"] for s in level["samples"]} == {16}
        assert level["figures"]["cached_share"] > 0.3
