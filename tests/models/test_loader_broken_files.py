"""Files that are no weights, or not all of them: which are not read, and in which words the others are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from mini_infer.cli import main
from mini_infer.errors import UserError
from mini_infer.models import loader
from mini_infer.models.loader import load_model_from_safetensors
from mini_infer.safetensors_header import read_header
from tests.models.loading import (
    FILE,
    INDEX,
    LFS_POINTER,
    PROMPT,
    assert_as_reference,
    edit_weights,
    error_of,
    logits_of,
    with_header,
)

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
