"""What the configuration says of weights: rotary base, window, head size, precision, end tokens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from mini_infer.models.loader import load_model_from_safetensors
from mini_infer.models.runner import ModelRunner
from tests.models.loading import (
    FILE,
    HEAD,
    PROMPT,
    assert_as_reference,
    edit_json,
    edit_weights,
    error_of,
    logits_of,
)
from tests.support.checkpoints import write_checkpoint

# Rotary base, window, head size: the configuration in the way of the weights.


@pytest.mark.parametrize("arch", ["qwen2", "llama"])
@pytest.mark.parametrize(
    ("keys", "theta"),
    [
        ({"rope_theta": 500000.0, "rope_scaling": ...}, 500000.0),
        ({"rope_theta": 500000.0, "rope_parameters": {"rope_type": "default"}}, 500000.0),
        ({"rope_theta": None}, 10000.0),
        ({"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}, 500000.0),
    ],
)
def test_L09_the_rotary_base_is_found_wherever_it_is(
    copy: Callable[[Path], Path], tmp_path: Path, arch: str, keys: dict[str, Any], theta: float
) -> None:
    folder = write_checkpoint(tmp_path, arch)
    edit_json(folder / "config.json", **keys)
    _, config = assert_as_reference(folder, PROMPT * 4)
    assert config.rope.theta == theta


def test_L11_a_window_that_is_switched_off_is_no_obstacle(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, sliding_window=8, use_sliding_window=False, max_window_layers=2)
    assert_as_reference(folder, [(7 * i) % 380 for i in range(64)])


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
def test_L13_the_head_size_of_the_configuration_counts(tmp_path: Path, arch: str) -> None:
    model, config = assert_as_reference(write_checkpoint(tmp_path, arch, head_dim=32))
    assert config.head_dim == 32
    kv = ModelRunner(model, config, 3, 16, "cpu").kv
    keys, values = kv.layer(0)
    assert keys.numel() == values.numel() == 3 * 16 * 2 * 32


# L15: which precision.


@pytest.fixture(scope="module")
def bf16(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("bf16"), dtype=torch.bfloat16)


def keep_norms_wide(tensors: dict[str, Tensor]) -> None:
    for name in tensors:
        if "norm" in name:
            tensors[name] = tensors[name].float()


@pytest.mark.parametrize(
    "keys",
    [
        {"dtype": "bfloat16", "torch_dtype": None},
        {"dtype": None, "torch_dtype": "bfloat16"},
        {"dtype": None, "torch_dtype": None},
        {"dtype": "bfloat16", "torch_dtype": "bfloat16"},
        {"dtype": ..., "torch_dtype": "bfloat16"},
        {"dtype": ..., "torch_dtype": ...},
        {"dtype": "auto", "torch_dtype": None},
    ],
)
@pytest.mark.parametrize("mixed", [False, True])
def test_L15_bf16_weights_run_in_bf16(
    copy: Callable[[Path], Path], bf16: Path, keys: dict[str, Any], mixed: bool
) -> None:
    folder = copy(bf16)
    edit_json(folder / "config.json", **keys)
    if mixed:
        edit_weights(folder / FILE, keep_norms_wide)
    model, config = load_model_from_safetensors(folder)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert logits_of(model, config, PROMPT).dtype == torch.bfloat16


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
@pytest.mark.parametrize("value", ["bf-16", "bfloat", "int8", "", 16, ["bfloat16"]])
def test_L15_a_misspelt_precision_is_an_error(
    copy: Callable[[Path], Path], bf16: Path, key: str, value: object
) -> None:
    folder = copy(bf16)
    edit_json(folder / "config.json", **({"torch_dtype": None} | {key: value}))
    text = error_of(folder)
    assert key in text and str(value).strip("[]'") in text and "bfloat16" in text


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float32", "float64"])
def test_L15_an_explicit_precision_wins(bf16: Path, name: str) -> None:
    for given in (name, getattr(torch, name)):
        model, config = load_model_from_safetensors(bf16, dtype=given)
        assert {parameter.dtype for parameter in model.parameters()} == {getattr(torch, name)}
    assert logits_of(model, config, PROMPT).isfinite().all()


def test_L15_no_value_is_changed_by_a_wider_precision(bf16: Path) -> None:
    model, _ = load_model_from_safetensors(bf16, dtype="float64")
    stored = load_file(bf16 / FILE)
    for name, parameter in model.checkpoint_parameters().items():
        assert torch.equal(parameter, stored[name].double())


def test_L15_auto_means_the_checkpoint(bf16: Path) -> None:
    assert load_model_from_safetensors(bf16, dtype="auto")[0].dtype == torch.bfloat16


@pytest.mark.parametrize("stored", [torch.float16, torch.float32, torch.float64])
def test_L15_without_a_field_the_weights_decide(tmp_path: Path, stored: torch.dtype) -> None:
    folder = write_checkpoint(tmp_path, dtype=stored)
    edit_json(folder / "config.json", torch_dtype=None)
    assert load_model_from_safetensors(folder)[0].dtype == stored


def test_L15_bytes_decide_not_the_number_of_tensors(tmp_path: Path) -> None:
    def widen(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {
            name: t if "embed" in name or "mlp" in name or name == HEAD else t.float() for name, t in tensors.items()
        }

    folder = write_checkpoint(tmp_path, "qwen2", dtype=torch.bfloat16, intermediate_size=256, edit=widen)
    edit_json(folder / "config.json", torch_dtype=None)
    types = [tensor.dtype for tensor in load_file(folder / FILE).values()]
    assert types.count(torch.float32) > types.count(torch.bfloat16)
    assert load_model_from_safetensors(folder)[0].dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", ["bf16", "int8", "Float32", "", "float8_e4m3fn", torch.int32, torch.float8_e5m2])
def test_L15_a_precision_that_is_none_is_answered_with_those_there_are(bf16: Path, dtype: Any) -> None:
    text = error_of(bf16, dtype=dtype)
    for name in ("auto", "bfloat16", "float16", "float32", "float64"):
        assert name in text


def test_L15_mixed_files_compute_as_the_reference_does(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, "llama", dtype=torch.bfloat16)
    edit_weights(folder / FILE, keep_norms_wide)
    assert_as_reference(folder)


# L17, L19: which tokens end an answer.


@pytest.mark.parametrize(
    ("in_config", "in_generation", "ends"),
    [
        (5, [5, 9], {5, 9}),
        (5, [9], {9}),
        ([5, 9], None, {5, 9}),
        (5, ..., {5}),
        (5, 9, {9}),
        (None, [5, 9], {5, 9}),
    ],
)
def test_L17_the_list_of_end_tokens_is_read(tmp_path: Path, in_config: Any, in_generation: Any, ends: set[int]) -> None:
    folder = write_checkpoint(tmp_path)
    edit_json(folder / "config.json", eos_token_id=in_config)
    edit_json(folder / "generation_config.json", eos_token_id=in_generation)
    _, config = load_model_from_safetensors(folder)
    assert set(config.eos_token_ids) == ends


def test_L17_without_a_generation_config_the_configuration_decides(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, eos_token_id=[7, 8])
    (folder / "generation_config.json").unlink()
    assert set(load_model_from_safetensors(folder)[1].eos_token_ids) == {7, 8}


def test_L19_one_place_holds_all_end_tokens(tmp_path: Path) -> None:
    """So whoever ignores end tokens ignores each of them: there is no second list to stop on."""
    folder = write_checkpoint(tmp_path, eos_token_id=5, generation={"eos_token_id": [5, 9]})
    _, config = load_model_from_safetensors(folder)
    assert set(config.eos_token_ids) == {5, 9}
    assert not {5, 9} & {value for value in config.generation.values() if not isinstance(value, bool)}
