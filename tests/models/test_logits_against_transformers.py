"""Logits against transformers on the same files: 1e-4 in float32, up to position 2,000, paged and in mixed batches."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from mini_infer.models.config import ModelConfig
from mini_infer.models.transformer import Transformer
from tests.support.checkpoints import write_checkpoint
from tests.support.dense import dense_logits
from tests.support.paged import PagedDriver

transformers = pytest.importorskip("transformers")

LINEAR = {"rope_type": "linear", "factor": 4.0}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
YARN_FULL = YARN | {"attention_factor": 1.3, "beta_fast": 24, "beta_slow": 2, "truncate": False}
YARN_MSCALE = YARN | {"mscale": 0.7, "mscale_all_dim": 1.4, "factor": 16}

KINDS: dict[str, dict[str, Any]] = {
    "default": {},
    "default_tied": {"tie": True},
    "default_theta_1e6": {"rope_theta": 1e6},
    "linear": {"rope": LINEAR},
    "llama3_tied": {"rope": LLAMA3, "tie": True, "rope_theta": 500000.0},
    "yarn": {"rope": YARN},
    "yarn_every_key": {"rope": YARN_FULL, "tie": True},
    "yarn_mscale": {"rope": YARN_MSCALE},
    "rope_parameters": {"rope_theta": None, "rope_parameters": LLAMA3 | {"rope_theta": 20000.0}},
}
CASES = [(arch, name, keys) for arch in ("qwen2", "qwen3", "llama") for name, keys in KINDS.items()]
CASES += [
    ("llama", "head_dim_32", {"head_dim": 32}),
    ("qwen2", "head_dim_32", {"head_dim": 32}),
    ("qwen3", "head_dim_32", {"head_dim": 32, "tie": True}),
    ("llama", "attention_bias", {"attention_bias": True}),
    ("llama", "mlp_bias", {"mlp_bias": True}),
    ("llama", "both_biases", {"attention_bias": True, "mlp_bias": True, "tie": True}),
    ("qwen3", "attention_bias", {"attention_bias": True}),
    ("llama", "one_kv_head", {"num_key_value_heads": 1}),
    ("llama", "no_sharing", {"num_key_value_heads": None}),
    ("llama", "eps_1e-3", {"rms_norm_eps": 1e-3}),
    ("qwen2", "plain_head_dim", {"head_dim": None}),
]


def load(folder: Path, dtype: torch.dtype = torch.float32) -> tuple[Transformer, ModelConfig]:
    """The plain way in, so that this file tests the model and not the loader."""
    config = ModelConfig.from_folder(folder)
    model = Transformer(config, dtype)
    stored = load_file(folder / "model.safetensors")
    parameters = model.checkpoint_parameters()
    assert parameters.keys() == stored.keys()
    for name, tensor in stored.items():
        assert parameters[name].shape == tensor.shape
        parameters[name].copy_(tensor)
    return model, config


def reference_logits(folder: Path, prompts: dict[str, list[int]]) -> dict[str, Tensor]:
    reference = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return {name: reference(torch.tensor([ids])).logits[0] for name, ids in prompts.items()}


@pytest.mark.parametrize(("arch", "name", "keys"), CASES, ids=[f"{arch}-{name}" for arch, name, _ in CASES])
def test_logits_agree_up_to_position_2000(tmp_path: Path, arch: str, name: str, keys: dict[str, Any]) -> None:
    folder = write_checkpoint(tmp_path, arch, **keys)
    model, config = load(folder)
    rng = random.Random(len(name))
    prompts = {who: [rng.randrange(384) for _ in range(length)] for who, length in (("long", 2003), ("short", 40))}
    driver = PagedDriver(model, config, num_blocks=160)
    got = [driver.step([("short", prompts["short"][:20]), ("long", prompts["long"][:997])])]
    for i in range(10):  # chunks of the long one between decodes of the short one
        chunk = prompts["long"][997 + 100 * i : 997 + 100 * (i + 1)]
        got.append(driver.step([("short", prompts["short"][20 + i : 21 + i]), ("long", chunk)]))
    got.append(driver.step([("short", prompts["short"][30:35]), ("long", prompts["long"][1997:2002])]))
    got.append(driver.step([("long", prompts["long"][2002:]), ("short", prompts["short"][35:])]))
    for who, reference in reference_logits(folder, prompts).items():
        torch.testing.assert_close(torch.cat([step[who] for step in got]), reference, atol=1e-4, rtol=0)
        assert reference.std() > 1  # spread out: the bound means something


@pytest.mark.parametrize("arch", ["qwen2", "qwen3", "llama"])
def test_the_dense_reference_agrees_with_transformers(tmp_path: Path, arch: str) -> None:
    folder = write_checkpoint(tmp_path, arch, rope=YARN, tie=arch == "llama")
    model, config = load(folder)
    ids = list(range(0, 380, 3))
    reference = reference_logits(folder, {"a": ids})["a"]
    torch.testing.assert_close(dense_logits(model, config, ids), reference, atol=1e-4, rtol=0)


def test_L13_head_dim_is_not_hidden_over_heads(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, "llama", head_dim=32)
    model, config = load(folder)
    driver = PagedDriver(model, config, num_blocks=8)
    ids = list(range(50))
    got = driver.step([("a", ids)])["a"]
    torch.testing.assert_close(got, reference_logits(folder, {"a": ids})["a"], atol=1e-4, rtol=0)
    assert driver.runner.kv.data.shape == (2, 2, 8, 16, 2, 32)


def test_L11_an_unused_sliding_window_changes_nothing(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, "qwen2", sliding_window=8, use_sliding_window=False, max_window_layers=2)
    model, config = load(folder)
    ids = list(range(64))
    got = PagedDriver(model, config).step([("a", ids)])["a"]
    torch.testing.assert_close(got, reference_logits(folder, {"a": ids})["a"], atol=1e-4, rtol=0)


def test_greedy_answers_are_those_of_transformers(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, "qwen2")
    model, config = load(folder)
    reference = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    prompt = [10, 20, 30, 40]
    expected = reference.generate(torch.tensor([prompt]), max_new_tokens=40, do_sample=False, eos_token_id=None)
    driver = PagedDriver(model, config)
    answer = [int(driver.step([("a", prompt)])["a"][-1].argmax())]
    while len(answer) < 40:
        answer.append(int(driver.step([("a", answer[-1:])])["a"][-1].argmax()))
    assert answer == expected[0, 4:].tolist()
    assert len(set(answer)) > 15
