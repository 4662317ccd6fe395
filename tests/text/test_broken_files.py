"""Text files of a checkpoint with something in them that does not belong there: one short line naming the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mini_infer.errors import UserError
from mini_infer.text.tokenizer import Tokenizer
from tests.support import tokenizers as make


def line(folder: Path) -> str:
    with pytest.raises(UserError) as caught:
        Tokenizer.from_folder(folder)
    text = str(caught.value)
    assert "\n" not in text and len(text) < 500, text
    return text


def edit(folder: Path, name: str, keys: tuple[str, ...], value: Any) -> Path:
    path = make.write_chatml(folder) / name
    whole = part = json.loads(path.read_text(encoding="utf-8"))
    for key in keys[:-1]:
        part = part[key]
    part[keys[-1]] = value
    path.write_text(json.dumps(whole))  # escapes, so that half a character can be written
    return path


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("model", "vocab"), "x" * 10_000),  # which the library quotes whole
        (("model", "continuing_subword_prefix"), "x" * 10_000),  # on which the library panics
        (("decoder",), ["x"]),
        (("decoder",), {"type": "Replace"}),
        (("model", "vocab", "half \udce4"), 999),
        (("added_tokens",), [5]),
    ],
)
def test_a_broken_tokenizer_is_one_short_line(tmp_path: Path, keys: tuple[str, ...], value: Any) -> None:
    path = edit(tmp_path, "tokenizer.json", keys, value)
    assert f"{path} is incomplete or corrupt" in line(tmp_path)


@pytest.mark.parametrize("name", ["pad_token", "eos_token", "chat_template"])
def test_half_a_character_in_the_configuration_is_named_with_its_file(tmp_path: Path, name: str) -> None:
    path = edit(tmp_path, "tokenizer_config.json", (name,), "a\udce4b")
    assert f"{path} is incomplete or corrupt (half a character" in line(tmp_path)


def test_whole_characters_may_be_written_as_escapes(tmp_path: Path) -> None:
    edit(tmp_path, "tokenizer_config.json", ("chat_template",), "😀{{ messages[0].content }}")
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.decode(tokenizer.encode_chat([{"role": "user", "content": "a"}])) == "😀a"
