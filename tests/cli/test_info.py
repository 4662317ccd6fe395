"""`mini-infer info`, and what every command has."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mini_infer.commands import generate as generate_command
from mini_infer.errors import UserError
from mini_infer.safetensors_header import read_header
from mini_infer.version import __version__
from tests.support.command import Run, refused


def test_info_of_the_embedded_model_is_diagnostics_too(run: Run) -> None:
    code, out, err = run("info", "--device", "cpu")
    assert (code, err) == (0, "")
    for part in (f"mini-infer  {__version__}", f"torch       {torch.__version__}", "CUDA", "threads", "plan of demo"):
        assert part in out
    machine = json.loads(run("info", "--device", "cpu", "--json")[1])
    assert machine["plan"]["draft"] == "demo" and machine["torch"] == torch.__version__
    assert machine["cuda_available"] is torch.cuda.is_available() and machine["total_memory"] > 2**28


def test_info_plans_the_memory_of_a_model(run: Run, tiny: Path) -> None:
    args = ("info", "--device", "cpu", "--model", tiny, "--dtype", "float64", "--kv-blocks", 10)
    plan = json.loads(run(*args, "--json")[1])["plan"]
    assert plan["kv_bytes_per_block"] == 2 * 2 * 16 * 2 * 16 * 8  # layers, K and V, rows, heads, head_dim, bytes
    assert (plan["kv_blocks"], plan["kv_tokens"]) == (10, 160)
    assert plan["kv_memory"] == 10 * plan["kv_bytes_per_block"]
    stored = sum(tensor.nbytes for tensor in read_header(tiny / "model.safetensors").values())
    assert plan["weights"] == 2 * stored  # stored in float32, held in float64
    assert (plan["max_model_len"], plan["dtype"], plan["architecture"]) == (128, "float64", "qwen2")
    out = run(*args)[1]
    assert f"Memory plan of {tiny}" in out and "10 blocks of 16: 160 tokens" in out


def test_info_says_where_the_cache_holds_less_than_one_context(run: Run, tiny: Path) -> None:
    args = ("info", "--device", "cpu", "--model", tiny, "--kv-blocks")
    hint = "The KV cache holds less than one full context: more fit with --kv-blocks or --kv-memory."
    assert hint in run(*args, 7)[1]  # 112 of 128 tokens
    assert hint not in run(*args, 8)[1]


def test_a_revision_of_the_embedded_model_is_refused_rather_than_ignored(run: Run) -> None:
    for command in (["info"], ["generate", "hi"]):
        said = refused(run(*command, "--revision", "v1"))
        assert "--revision is for repositories, and demo comes with the package: drop it" in said


def test_version_and_help(run: Run) -> None:
    assert run("--version") == (0, f"mini-infer {__version__}\n", "")
    code, out, _ = run()
    assert code == 0 and all(name in out for name in ("generate", "info", "trace"))
    assert run("--help")[1] == run("-h")[1] == out
    assert "export" in run("trace")[1]


def test_python_m_is_the_same_command() -> None:
    command = [sys.executable, "-m", "mini_infer", "--version"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == f"mini-infer {__version__}\n"


def test_errors_of_click_and_ours_are_told_apart_by_nobody(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise UserError("line one\n  line two")

    monkeypatch.setattr(generate_command, "run", refuse)
    assert refused(run("generate", "hi")) == "mini-infer: line one line two\n"
