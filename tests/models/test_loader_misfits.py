"""Whole files whose tensors are not those of the configuration, and folders that hold no model."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.models.loading import (
    EMBEDDING,
    FILE,
    INDEX,
    assert_as_reference,
    edit_json,
    edit_weights,
    error_of,
    with_header,
)

# Missing, surplus, mis-shaped and mistyped tensors.


def test_a_missing_tensor_is_named_with_its_file(copy: Callable[[Path], Path], tiny: Path) -> None:
    folder = copy(tiny)
    edit_weights(folder / FILE, lambda t: t.pop("model.layers.1.mlp.up_proj.weight"))
    text = error_of(folder)
    assert str(folder / FILE) in text and "tensor model.layers.1.mlp.up_proj.weight is missing" in text
    edit_weights(folder / FILE, lambda t: [t.pop(name) for name in list(t) if "layers.1" in name])
    assert "and 11 more" in error_of(folder)


def test_a_surplus_tensor_is_named_with_its_file(copy: Callable[[Path], Path], tiny: Path) -> None:
    folder = copy(tiny)
    edit_weights(folder / FILE, lambda t: t.update({"model.layers.0.self_attn.o_proj.bias": torch.zeros(64)}))
    text = error_of(folder)
    assert str(folder / FILE) in text and "model.layers.0.self_attn.o_proj.bias is surplus" in text


def test_a_model_with_more_layers_than_the_configuration_says_is_refused(
    copy: Callable[[Path], Path], tiny: Path
) -> None:
    folder = copy(tiny)
    edit_json(folder / "config.json", num_hidden_layers=1)
    assert "model.layers.1." in error_of(folder)


def test_a_misshaped_tensor_is_named_with_its_file_and_both_shapes(copy: Callable[[Path], Path], tiny: Path) -> None:
    folder = copy(tiny)
    edit_weights(folder / FILE, lambda t: t.update({"model.norm.weight": torch.ones(65)}))
    text = error_of(folder)
    assert str(folder / FILE) in text and "model.norm.weight" in text and "[65]" in text and "[64]" in text


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("model.norm.weight", (1, 64)),
        ("model.norm.weight", (1,)),  # would broadcast
        ("model.norm.weight", ()),
        ("model.layers.0.self_attn.k_proj.weight", (64, 32)),  # transposed
        ("model.layers.0.self_attn.q_proj.bias", (64, 1)),
        (EMBEDDING, (385, 64)),
    ],
)
def test_no_other_shape_slips_through(
    copy: Callable[[Path], Path], tiny: Path, name: str, shape: tuple[int, ...]
) -> None:
    folder = copy(tiny)
    edit_weights(folder / FILE, lambda t: t.update({name: torch.ones(shape)}))
    text = error_of(folder)
    assert name in text and str(list(shape)) in text


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.float8_e4m3fn, torch.bool])
def test_integer_and_quantised_weights_are_refused(
    copy: Callable[[Path], Path], tiny: Path, dtype: torch.dtype
) -> None:
    folder = copy(tiny)
    name = "model.layers.0.mlp.down_proj.weight"
    edit_weights(folder / FILE, lambda t: t.update({name: t[name].to(dtype)}))
    text = error_of(folder, dtype="float32")
    assert str(folder / FILE) in text and name in text and "quantised" in text


def test_a_type_nobody_knows_is_refused_by_name(copy: Callable[[Path], Path], tiny: Path) -> None:
    folder = copy(tiny)
    edit = with_header(lambda header: header["model.norm.weight"].update(dtype="Q9"))
    (folder / FILE).write_bytes(edit((folder / FILE).read_bytes()))
    text = error_of(folder)
    assert str(folder / FILE) in text and "model.norm.weight" in text and "Q9" in text


def test_a_quantised_layout_is_called_by_its_name(copy: Callable[[Path], Path], tiny: Path) -> None:
    def quantise(tensors: dict[str, Tensor]) -> None:
        del tensors["model.layers.0.mlp.down_proj.weight"]
        tensors["model.layers.0.mlp.down_proj.qweight"] = torch.zeros(16, 64, dtype=torch.int32)

    folder = copy(tiny)
    edit_weights(folder / FILE, quantise)
    text = error_of(folder)
    assert "down_proj.qweight" in text and "quantised" in text


def test_rotary_buffers_of_older_writers_are_no_surplus(copy: Callable[[Path], Path], tiny: Path) -> None:
    folder = copy(tiny)
    buffers = [f"model.layers.{i}.self_attn.rotary_emb.inv_freq" for i in (0, 1)] + ["model.rotary_emb.inv_freq"]
    edit_weights(folder / FILE, lambda t: t.update({name: torch.ones(8) for name in buffers}))
    assert_as_reference(folder)


def test_an_index_that_names_a_missing_file(copy: Callable[[Path], Path], sharded: Path) -> None:
    folder = copy(sharded)
    (folder / "model-00002-of-00002.safetensors").unlink()
    text = error_of(folder)
    assert str(folder / "model-00002-of-00002.safetensors") in text and "missing" in text and INDEX in text


def test_an_index_that_places_a_tensor_in_the_wrong_file(copy: Callable[[Path], Path], sharded: Path) -> None:
    folder = copy(sharded)
    place = json.loads((folder / INDEX).read_text())["weight_map"]
    wrong = next(file for file in place.values() if file != place["model.norm.weight"])
    edit_json(folder / INDEX, weight_map=place | {"model.norm.weight": wrong})
    text = error_of(folder)
    assert str(folder / wrong) in text and "tensor model.norm.weight is missing" in text


def test_an_index_without_one_of_the_tensors(copy: Callable[[Path], Path], sharded: Path) -> None:
    folder = copy(sharded)
    place = json.loads((folder / INDEX).read_text())["weight_map"]
    edit_json(folder / INDEX, weight_map={name: file for name, file in place.items() if name != "model.norm.weight"})
    text = error_of(folder)
    assert str(folder) in text and "tensor model.norm.weight is missing" in text


@pytest.mark.parametrize("file", ["../secret.safetensors", "/etc/x.safetensors", "a\\b.safetensors", "weights.bin"])
def test_an_index_cannot_point_elsewhere(copy: Callable[[Path], Path], sharded: Path, file: str) -> None:
    folder = copy(sharded)
    place = json.loads((folder / INDEX).read_text())["weight_map"]
    edit_json(folder / INDEX, weight_map=place | {"model.norm.weight": file})
    text = error_of(folder)
    assert INDEX in text and "model.norm.weight" in text


# Folders that hold no model.


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, ["no weights", FILE]),
        ({"config.json": b"{}"}, ["no weights", FILE]),
        ({"config.json": b"{}", "pytorch_model.bin": b"x"}, ["pytorch_model.bin", "only safetensors is supported"]),
        ({"model.gguf": b"x"}, ["model.gguf", "only safetensors is supported"]),
        ({"adapter_config.json": b"{}", "adapter_model.safetensors": b"x"}, ["adapter"]),
    ],
)
def test_folders_without_usable_weights(tmp_path: Path, files: dict[str, bytes], words: list[str]) -> None:
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    text = error_of(tmp_path)
    for word in [str(tmp_path), *words]:
        assert word in text


def test_a_folder_without_a_configuration(copy: Callable[[Path], Path], tiny: Path) -> None:
    folder = copy(tiny)
    (folder / "config.json").unlink()
    assert str(folder / "config.json") in error_of(folder)


def test_a_file_or_nothing_in_place_of_a_folder(tiny: Path, tmp_path: Path) -> None:
    assert "give the folder" in error_of(tiny / FILE)
    assert "no such folder" in error_of(tmp_path / "nowhere")


def test_a_link_to_nothing(copy: Callable[[Path], Path], tiny: Path) -> None:
    folder = copy(tiny)
    (folder / FILE).unlink()
    (folder / FILE).symlink_to(folder / "gone")
    text = error_of(folder)
    assert str(folder / FILE) in text and "a link to nothing" in text


def test_a_folder_in_place_of_a_file(copy: Callable[[Path], Path], tiny: Path) -> None:
    folder = copy(tiny)
    (folder / FILE).unlink()
    (folder / FILE).mkdir()
    text = error_of(folder)
    assert str(folder / FILE) in text and "cannot be read" in text


@pytest.mark.parametrize("name", [FILE, "config.json", INDEX])
def test_a_file_without_permission(
    copy: Callable[[Path], Path], sharded: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = copy(sharded if name == INDEX else tiny)
    if os.name == "posix" and os.geteuid() != 0:
        (folder / name).chmod(0)
    else:  # the superuser may read everything
        original = Path.open

        def refuse(self: Path, *args: Any, **options: Any) -> Any:
            if self.name == name:
                raise PermissionError(13, "Permission denied", str(self))
            return original(self, *args, **options)

        monkeypatch.setattr(Path, "open", refuse)
        if sys.version_info >= (3, 14):
            pytest.skip("Path.read_bytes no longer goes through Path.open")
    text = error_of(folder)
    assert str(folder / name) in text and "ermission denied" in text
