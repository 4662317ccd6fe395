"""Loading checkpoints: right weights in the right places, on the right device. The reference is `transformers`."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from mini_infer.models import loader
from mini_infer.models.config import ModelConfig
from mini_infer.models.loader import inspect_checkpoint, load_model_from_safetensors
from mini_infer.models.transformer import Transformer
from tests.models.loading import (
    EMBEDDING,
    FILE,
    HEAD,
    PROMPT,
    assert_as_reference,
    edit_json,
    error_of,
    logits_of,
)
from tests.support.checkpoints import write_checkpoint

# Right files, right weights.


@pytest.mark.parametrize("arch", ["qwen2", "qwen3", "llama"])
@pytest.mark.parametrize("shards", [1, 3])
def test_every_architecture_loads_as_the_reference_does(tmp_path: Path, arch: str, shards: int) -> None:
    assert_as_reference(write_checkpoint(tmp_path, arch, shards=shards))


def test_the_documented_call(tiny: Path) -> None:
    model, config = load_model_from_safetensors(str(tiny), device="cpu")
    assert isinstance(model, Transformer) and isinstance(config, ModelConfig)
    assert model.config == config and model.device == torch.device("cpu")
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_every_stored_value_arrives_in_its_place(sharded: Path) -> None:
    model, _ = load_model_from_safetensors(sharded)
    stored = {name: tensor for file in sharded.glob("*.safetensors") for name, tensor in load_file(file).items()}
    parameters = model.checkpoint_parameters()
    assert parameters.keys() == stored.keys()
    for name, tensor in stored.items():
        assert torch.equal(parameters[name], tensor), name


def test_loading_works_inside_inference_mode_and_leaves_no_file_open(tiny: Path) -> None:
    with torch.inference_mode():
        model, config = load_model_from_safetensors(tiny)
    assert logits_of(model, config, PROMPT).isfinite().all()
    if Path("/proc/self/maps").exists():
        assert str(tiny) not in Path("/proc/self/maps").read_text()


def test_progress_is_told_in_bytes_from_nothing_to_all(tiny: Path) -> None:
    told: list[tuple[int, int]] = []
    load_model_from_safetensors(tiny, progress=lambda done, total: told.append((done, total)))
    total = sum(tensor.nbytes for tensor in load_file(tiny / FILE).values())
    assert told[0] == (0, total) and told[-1] == (total, total)
    steps = [after[0] - before[0] for before, after in itertools.pairwise(told)]
    assert steps == sorted(steps, reverse=True)  # largest first


def test_a_progress_bar_goes_to_stderr_alone(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load_model_from_safetensors(tiny, progress=True)
    assert capsys.readouterr().out == ""


# L01 and other ways to store a tied head.


@pytest.mark.parametrize("arch", ["qwen2", "llama"])
@pytest.mark.parametrize("shards", [1, 2])
def test_L01_tied_embedding_without_a_head_tensor(tmp_path: Path, arch: str, shards: int) -> None:
    folder = write_checkpoint(tmp_path, arch, tie=True, shards=shards)
    assert not any(HEAD in load_file(file) for file in folder.glob("*.safetensors"))
    model, _ = assert_as_reference(folder)
    assert model.lm_head.weight is model.embed_tokens


def test_L01_tied_embedding_stored_twice(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, tie=True, edit=lambda t: t | {HEAD: t[EMBEDDING].clone()})
    model, config = assert_as_reference(folder)
    assert config.tie_word_embeddings and model.lm_head.weight is model.embed_tokens


@pytest.mark.parametrize("shards", [1, 2])
def test_L01_tied_embedding_stored_under_the_name_of_the_head(tmp_path: Path, shards: int) -> None:
    folder = write_checkpoint(
        tmp_path, tie=True, shards=shards, edit=lambda t: {HEAD if n == EMBEDDING else n: x for n, x in t.items()}
    )
    assert_as_reference(folder)


def test_L01_a_stored_head_that_differs_from_the_embedding_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_checkpoint(tmp_path, tie=True, edit=lambda t: t | {HEAD: t[EMBEDDING].flip(0).contiguous()})
    _, config = assert_as_reference(folder)
    assert not config.tie_word_embeddings
    assert "tie_word_embeddings" in caplog.text and HEAD in caplog.text


def test_L01_a_difference_in_the_last_row_alone_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def edit(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        head = tensors[EMBEDDING].clone()
        head[-1, -1] += 1
        return tensors | {HEAD: head}

    monkeypatch.setattr(loader._same, "__defaults__", (100,))  # several portions
    _, config = load_model_from_safetensors(write_checkpoint(tmp_path, tie=True, edit=edit))
    assert not config.tie_word_embeddings


def test_L01_an_untied_model_without_a_head_is_incomplete(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, edit=lambda t: {name: x for name, x in t.items() if name != HEAD})
    text = error_of(folder)
    assert HEAD in text and FILE in text and "tie_word_embeddings" in text


# Devices.


@pytest.mark.parametrize("device", ["gpu", "cuda:99", "cpu:x", "meta", ""])
def test_a_device_that_is_not_there(tiny: Path, device: str) -> None:
    text = error_of(tiny, device=device)
    assert "device" in text and "cpu" in text.lower()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_where_there_is_none(tiny: Path) -> None:
    for device in ("cuda", torch.device("cuda")):
        assert "device cuda is not available" in error_of(tiny, device=device)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_weights_lie_on_the_device_asked_for(tiny: Path) -> None:
    model, _ = load_model_from_safetensors(tiny, device="cuda")
    stored = load_file(tiny / FILE)
    for name, parameter in model.checkpoint_parameters().items():
        assert parameter.is_cuda and torch.equal(parameter.cpu(), stored[name]), name


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate"),
        RuntimeError("[enforce] DefaultCPUAllocator: x"),
    ],
)
def test_too_little_memory_is_one_line(tiny: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def full(config: ModelConfig, dtype: torch.dtype, device: Any) -> Transformer:
        if str(device) == "meta":
            return Transformer(config, dtype, device)
        raise error

    monkeypatch.setattr(loader, "Transformer", full)
    text = error_of(tiny)
    assert "too little memory" in text and "float32" in text


def test_nothing_is_allocated_before_every_tensor_is_known_to_fit(
    copy: Callable[[Path], Path], tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def noted(config: ModelConfig, dtype: torch.dtype, device: Any) -> Transformer:
        asked.append(str(device))
        return Transformer(config, dtype, device)

    monkeypatch.setattr(loader, "Transformer", noted)
    folder = copy(tiny)
    edit_json(folder / "config.json", vocab_size=10**9)  # 256 GB of embedding
    assert EMBEDDING in error_of(folder)
    assert asked == ["meta"]


def test_inspection_says_what_loading_makes(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, tie=True, dtype=torch.bfloat16, edit=lambda t: t | {HEAD: t[EMBEDDING].clone()})
    config, dtype, stored = inspect_checkpoint(folder)
    model, loaded = load_model_from_safetensors(folder)
    assert (config, dtype) == (loaded, model.dtype) and stored.keys() == model.checkpoint_parameters().keys()
    assert sum(tensor.nbytes for tensor in stored.values()) == sum(p.nbytes for p in model.parameters())
