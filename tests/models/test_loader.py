"""Loading checkpoints: what is read, what is refused and in which words. The reference is `transformers`."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from mini_infer.cli import main
from mini_infer.errors import UserError
from mini_infer.models import loader
from mini_infer.models.config import ModelConfig
from mini_infer.models.loader import inspect_checkpoint, load_model_from_safetensors
from mini_infer.models.runner import ModelRunner
from mini_infer.models.transformer import Transformer
from mini_infer.safetensors_header import read_header
from tests.support.checkpoints import write_checkpoint
from tests.support.paged import PagedDriver

FILE, INDEX = "model.safetensors", "model.safetensors.index.json"
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
PROMPT = [17, 3, 250, 99, 4, 4, 311, 42, 8]
LFS_POINTER = (
    b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22e\nsize 988097824\n"
)


def logits_of(model: Transformer, config: ModelConfig, ids: list[int]) -> Tensor:
    """Logits of every position, [T, vocab]."""
    return PagedDriver(model, config).step([("a", ids)])["a"]


def greedy(model: Transformer, config: ModelConfig, ids: list[int], n: int = 8) -> list[int]:
    out: list[int] = []
    for _ in range(n):
        out.append(int(logits_of(model, config, ids + out)[-1].argmax()))
    return out


def assert_as_reference(folder: Path, ids: list[int] = PROMPT) -> tuple[Transformer, ModelConfig]:
    """Logits within 1e-4 of those of `transformers` on the same files, in float32, and the same 8 greedy tokens."""
    from transformers import AutoModelForCausalLM

    model, config = load_model_from_safetensors(folder, dtype="float32")
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        expected = reference(torch.tensor([ids])).logits[0]
        tokens = reference.generate(
            torch.tensor([ids]), max_new_tokens=8, min_new_tokens=8, do_sample=False, repetition_penalty=1.0
        )
    assert (logits_of(model, config, ids) - expected).abs().max() < 1e-4
    assert greedy(model, config, ids) == tokens[0, len(ids) :].tolist()
    return model, config


def error_of(folder: str | Path, **options: Any) -> str:
    """The one line a user sees."""
    with pytest.raises(UserError) as caught:
        load_model_from_safetensors(folder, **options)
    text = str(caught.value)
    assert "\n" not in text and len(text) < 500, text
    return text


def edit_json(path: Path, **changes: Any) -> None:
    """Set keys; None takes a key out, `...` sets null."""
    value = json.loads(path.read_text()) | changes
    value = {key: None if item is ... else item for key, item in value.items() if item is not None}
    path.write_text(json.dumps(value))


def edit_weights(path: Path, edit: Callable[[dict[str, Tensor]], Any]) -> None:
    tensors = load_file(path)
    edit(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, metadata={"format": "pt"})


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("tiny"), "qwen2")


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("sharded"), "qwen2", shards=2)


@pytest.fixture
def copy(tmp_path: Path) -> Callable[[Path], Path]:
    return lambda folder: Path(shutil.copytree(folder, tmp_path / "model"))


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


# L05 and other strays.


@pytest.mark.parametrize("stray", ["old.safetensors", "model.safetensors", "a.safetensors", "model-00003.safetensors"])
def test_L05_stray_safetensors_is_not_read(copy: Callable[[Path], Path], sharded: Path, stray: str) -> None:
    before = logits_of(*assert_as_reference(sharded), PROMPT)
    folder = copy(sharded)
    save_file({"model.norm.weight": torch.zeros(64)}, folder / stray)
    assert torch.equal(logits_of(*load_model_from_safetensors(folder, dtype="float32"), PROMPT), before)


@pytest.mark.parametrize("stray", ["old.safetensors", "._model.safetensors", "consolidated.safetensors"])
@pytest.mark.parametrize("content", [b"", b"not weights at all", LFS_POINTER])
def test_L05_a_corrupt_stray_does_not_matter(
    copy: Callable[[Path], Path], tiny: Path, stray: str, content: bytes
) -> None:
    folder = copy(tiny)
    (folder / stray).write_bytes(content)
    load_model_from_safetensors(folder)


def test_L05_strays_of_other_formats_and_folders_do_not_matter(copy: Callable[[Path], Path], tiny: Path) -> None:
    folder = copy(tiny)
    (folder / "pytorch_model.bin").write_bytes(b"x")
    (folder / "model.gguf").write_bytes(b"x")
    (folder / "original").mkdir()
    save_file({"model.norm.weight": torch.zeros(64)}, folder / "original" / FILE)
    assert_as_reference(folder)


def test_L05_a_tensor_held_by_two_shards_is_read_where_the_index_says(
    copy: Callable[[Path], Path], sharded: Path
) -> None:
    folder = copy(sharded)
    place = json.loads((folder / INDEX).read_text())["weight_map"]
    other = next(file for file in place.values() if file != place["model.norm.weight"])
    edit_weights(folder / other, lambda t: t.update({"model.norm.weight": torch.zeros(64), "leftover": torch.ones(1)}))
    before, after = (load_model_from_safetensors(path)[0] for path in (sharded, folder))
    assert torch.equal(before.norm.weight, after.norm.weight)


def test_L05_a_hidden_copy_beside_the_only_weights_is_not_counted(copy: Callable[[Path], Path], tiny: Path) -> None:
    folder = copy(tiny)
    (folder / FILE).rename(folder / "weights.safetensors")
    (folder / "._weights.safetensors").write_bytes(b"x")
    load_model_from_safetensors(folder)


def test_L05_several_files_without_an_index_are_not_merged(copy: Callable[[Path], Path], tiny: Path) -> None:
    folder = copy(tiny)
    (folder / FILE).rename(folder / "new.safetensors")
    save_file({"model.norm.weight": torch.zeros(64)}, folder / "old.safetensors")
    text = error_of(folder)
    assert "new.safetensors" in text and "old.safetensors" in text and INDEX in text


@pytest.mark.parametrize("keep", [1, 2])
def test_L05_shards_without_an_index_are_not_guessed(copy: Callable[[Path], Path], sharded: Path, keep: int) -> None:
    folder = copy(sharded)
    (folder / INDEX).unlink()
    for file in sorted(folder.glob("*.safetensors"))[keep:]:
        file.unlink()
    text = error_of(folder)
    assert f"{INDEX} is missing" in text and "model-00001-of-00002.safetensors" in text


# L07 and other files that are not whole.


def cut_to(share: float) -> Callable[[bytes], bytes]:
    return lambda data: data[: int(len(data) * share)]


def with_header(change: Callable[[dict[str, Any]], Any]) -> Callable[[bytes], bytes]:
    """The same file with another header."""

    def edit(data: bytes) -> bytes:
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        header = change(header) or header
        raw = header if isinstance(header, bytes) else json.dumps(header).encode()
        return struct.pack("<Q", len(raw)) + raw + data[8 + length :]

    return edit


def shift(header: dict[str, Any]) -> None:
    begin, end = header["model.norm.weight"]["data_offsets"]
    header["model.norm.weight"]["data_offsets"] = [begin - 4, end - 4]


BAD_FILES: dict[str, Callable[[bytes], bytes]] = {
    "five bytes": lambda data: data[:5],
    "sixty percent": cut_to(0.6),
    "ten bytes too many": lambda data: data + b"0123456789",
    "pointer": lambda data: LFS_POINTER,
    "empty": lambda data: b"",
    "eight bytes": lambda data: data[:8],
    "cut in the header": lambda data: data[:200],
    "header only": lambda data: data[: 8 + int.from_bytes(data[:8], "little")],
    "one byte short": lambda data: data[:-1],
    "one byte too many": lambda data: data + b"\0",
    "zeros": lambda data: bytes(len(data)),
    "web page": lambda data: b"<!DOCTYPE html><html><body>Access denied</body></html>",
    "zip": lambda data: b"PK\x03\x04" + data,
    "gguf": lambda data: b"GGUF\x03\x00\x00\x00" + data,
    "random": lambda data: bytes(range(256)) * 40,
    "header is no JSON": with_header(lambda header: b"{'a': 1}"),
    "header is not text": with_header(lambda header: b"\xff\xfe{}"),
    "header is a list": with_header(lambda header: [header]),
    "header is nested": with_header(lambda header: b"[" * 100_000),
    "entry is a number": with_header(lambda header: header | {"model.norm.weight": 5}),
    "entry without dtype": with_header(lambda header: header["model.norm.weight"].pop("dtype") and None),
    "shape is negative": with_header(lambda header: header["model.norm.weight"].update(shape=[-64])),
    "shape is text": with_header(lambda header: header["model.norm.weight"].update(shape=["64"])),
    "shape is another": with_header(lambda header: header["model.norm.weight"].update(shape=[65])),
    "dtype is another": with_header(lambda header: header["model.norm.weight"].update(dtype="BF16")),
    "offsets are backwards": with_header(lambda header: header["model.norm.weight"]["data_offsets"].reverse()),
    "offsets overlap": with_header(shift),
    "offsets are three": with_header(lambda header: header["model.norm.weight"]["data_offsets"].append(1)),
}


@pytest.mark.parametrize("fault", BAD_FILES)
def test_L07_a_file_that_is_not_whole_is_named(copy: Callable[[Path], Path], tiny: Path, fault: str) -> None:
    folder = copy(tiny)
    (folder / FILE).write_bytes(BAD_FILES[fault]((folder / FILE).read_bytes()))
    text = error_of(folder)
    assert str(folder / FILE) in text and "incomplete or corrupt" in text
    with pytest.raises(UserError, match="incomplete or corrupt"):  # from the header alone, before anything is read
        read_header(folder / FILE)


@pytest.mark.parametrize("fault", ["five bytes", "sixty percent", "ten bytes too many", "pointer"])
@pytest.mark.parametrize("command", [["generate", "hello"], ["info"]], ids=lambda command: command[0])
def test_L07_the_command_line_says_it_in_one_line(
    copy: Callable[[Path], Path], tiny: Path, capsys: pytest.CaptureFixture[str], command: list[str], fault: str
) -> None:
    folder = copy(tiny)
    (folder / FILE).write_bytes(BAD_FILES[fault]((folder / FILE).read_bytes()))
    with pytest.raises(SystemExit) as stop:
        main([*command, "--model", str(folder)])
    captured = capsys.readouterr()
    assert stop.value.code == 2 and captured.out == ""
    said = captured.err.strip().splitlines()
    assert len(said) == 1 and str(folder / FILE) in said[0] and "incomplete or corrupt" in said[0]


@pytest.mark.parametrize("fault", ["five bytes", "sixty percent", "ten bytes too many", "pointer", "empty"])
@pytest.mark.parametrize("shard", [1, 2])
def test_L07_a_shard_that_is_not_whole_is_named(
    copy: Callable[[Path], Path], sharded: Path, fault: str, shard: int
) -> None:
    folder = copy(sharded)
    path = folder / f"model-0000{shard}-of-00002.safetensors"
    path.write_bytes(BAD_FILES[fault](path.read_bytes()))
    text = error_of(folder)
    assert str(path) in text and "incomplete or corrupt" in text


def test_L07_a_cut_names_the_first_tensor_that_is_not_whole(copy: Callable[[Path], Path], tiny: Path) -> None:
    folder = copy(tiny)
    data = (folder / FILE).read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    begin, end = header["model.layers.1.mlp.up_proj.weight"]["data_offsets"]
    (folder / FILE).write_bytes(data[: 8 + length + (begin + end) // 2])
    text = error_of(folder)
    assert "model.layers.1.mlp.up_proj.weight" in text and f"{(end - begin) // 2:,} of {end - begin:,} bytes" in text


def test_L07_a_pointer_says_how_to_get_the_weights(copy: Callable[[Path], Path], tiny: Path) -> None:
    folder = copy(tiny)
    (folder / FILE).write_bytes(LFS_POINTER)
    assert "git lfs pull" in error_of(folder)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"{}", b"\xff\xff", b'{"weight_map": []}', b'{"weight_map": {}}', LFS_POINTER]
)
def test_L07_an_index_that_is_not_whole_is_named(copy: Callable[[Path], Path], sharded: Path, content: bytes) -> None:
    folder = copy(sharded)
    (folder / INDEX).write_bytes(content)
    text = error_of(folder)
    assert str(folder / INDEX) in text and "incomplete or corrupt" in text


def test_L07_trouble_inside_the_library_is_told_with_file_and_tensor(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any, **options: Any) -> Any:
        raise loader.SafetensorError("HeaderTooLarge")

    monkeypatch.setattr(loader, "safe_open", broken)
    text = error_of(tiny)
    assert str(tiny / FILE) in text and "incomplete or corrupt" in text and "model." in text


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
