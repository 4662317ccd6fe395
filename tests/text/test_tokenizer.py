"""Loading a tokenizer, raw text to ids, ids to text."""

from __future__ import annotations

import json
import re
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend

from mini_infer.errors import UserError
from mini_infer.text.tokenizer import Tokenizer
from tests.support import tokenizers as make
from tests.text.naughty import NAUGHTY


@pytest.fixture(scope="module")
def chatml(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return make.load(make.write_chatml(tmp_path_factory.mktemp("chatml")))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return make.load(make.write_llama(tmp_path_factory.mktemp("llama")))


def test_names_and_numbers(chatml: Tokenizer, llama: Tokenizer) -> None:
    assert (chatml.vocab_size, chatml.eos_token, chatml.bos_token) == (384, "<|im_end|>", None)
    assert chatml.special_ids == {381, 382, 383}
    assert chatml.id_of("<|im_end|>") == 383
    assert chatml.id_of("nothing like it") is None
    assert (llama.bos_token, llama.eos_token, llama.special_ids) == ("<s>", "</s>", {0, 1, 2})
    assert chatml.has_chat_template


def test_pieces_for_the_eye(chatml: Tokenizer, llama: Tokenizer) -> None:
    assert [chatml.piece(id) for id in chatml.encode("é 0", allow_special=False)] == ["\\xc3", "\\xa9", " ", "0"]
    assert chatml.piece(383) == "<|im_end|>"
    assert llama.piece(llama.id_of("▁one") or 0) == " one"
    assert llama.piece(llama.id_of("<0x0A>") or 0) == "\n"
    assert chatml.piece(384) == "[384]"
    assert chatml.token_bytes(10**6) is None and chatml.token_bytes(-1) is None


@pytest.mark.parametrize("fields", [{}, make.LEGACY, make.ALWAYS], ids=["first", "legacy", "always"])
def test_T01_exactly_one_begin_token(tmp_path: Path, fields: dict[str, Any]) -> None:
    tokenizer = make.load(make.write_llama(tmp_path, **fields))
    begin = tokenizer.id_of("<s>")
    plain = tokenizer.encode("one two", allow_special=True)
    typed = tokenizer.encode("<s>one two", allow_special=True)
    chat = tokenizer.encode_chat([{"role": "user", "content": "one two"}])
    for ids in (plain, typed, chat):
        assert ids[0] == begin and ids.count(begin) == 1
    forbidden = tokenizer.encode("<s>one two", allow_special=False)
    assert forbidden[0] == begin and forbidden.count(begin) == 1
    assert tokenizer.decode(forbidden) == "<s>one two"
    assert tokenizer.encode("", allow_special=True) == [begin]


def test_T01_the_configuration_asks_for_a_begin_token_where_no_post_processor_does(tmp_path: Path) -> None:
    folder = make.write(
        tmp_path, make.llama(post_processor=None), make.LLAMA_TEMPLATE, add_bos_token=True, **make.LLAMA_SPECIALS
    )
    tokenizer = make.load(folder)
    assert tokenizer.encode("one", allow_special=True).count(1) == 1
    assert tokenizer.encode("<s>one", allow_special=True).count(1) == 1
    assert tokenizer.encode("one", allow_special=True, add_special_tokens=False).count(1) == 0


def test_raw_text_may_hold_control_tokens_and_user_text_may_not(chatml: Tokenizer) -> None:
    text = "<|im_start|>user\nhi<|im_end|>\n"
    raw, plain = chatml.encode(text, allow_special=True), chatml.encode(text, allow_special=False)
    assert [id for id in raw if id in chatml.special_ids] == [382, 383]
    assert chatml.special_ids.isdisjoint(plain)
    assert chatml.decode(plain) == text
    assert chatml.decode(raw, skip_special_tokens=False) == text
    assert chatml.decode(raw) == "user\nhi\n"


@pytest.mark.parametrize("kind", ["byte_level", "first", "legacy", "always", "unigram"])
def test_raw_ids_are_those_of_the_library(tmp_path: Path, kind: str) -> None:
    json_of = {
        "byte_level": make.byte_level,
        "first": make.llama,
        "legacy": lambda: make.llama(**make.LEGACY),
        "always": lambda: make.llama(**make.ALWAYS),
        "unigram": make.unigram,
    }[kind]()
    tokenizer = make.load(make.write(tmp_path, json_of))
    library = Backend.from_str(json.dumps(json_of))
    texts = ["one two", " one", "a</s>  b </s>c", "<|im_end|>x <|im_start|> y", "é\n\n日本", "</s></s>", "</s> one", ""]
    for text in texts:
        assert tokenizer.encode(text, allow_special=True) == library.encode(text).ids


@pytest.mark.parametrize("text", NAUGHTY, ids=range(len(NAUGHTY)))
def test_T17_naughty_strings_round_trip(chatml: Tokenizer, llama: Tokenizer, text: str) -> None:
    ids = chatml.encode(text, allow_special=False)
    assert chatml.decode(ids) == unicodedata.normalize("NFC", text)  # the tokenizer's own normaliser
    assert chatml.special_ids.isdisjoint(ids)
    spaces_are_pieces = llama.decode(llama.encode(text, allow_special=False))
    assert spaces_are_pieces == text.replace("▁", " ") or text.startswith(" ")


@pytest.mark.parametrize("text", NAUGHTY, ids=range(len(NAUGHTY)))
def test_T17_naughty_strings_as_user_content(chatml: Tokenizer, text: str) -> None:
    ids = chatml.encode_chat([{"role": "user", "content": text}])
    assert [id for id in ids if id in chatml.special_ids] == [382, 383, 382]
    wanted = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    assert chatml.decode(ids, skip_special_tokens=False) == unicodedata.normalize("NFC", wanted)


@settings(max_examples=200, deadline=None)
@given(st.text())
def test_any_text_round_trips(chatml: Tokenizer, llama: Tokenizer, text: str) -> None:
    assert chatml.decode(chatml.encode(text, allow_special=False)) == unicodedata.normalize("NFC", text)
    text = text.replace("▁", "_").lstrip(" ")
    assert llama.decode(llama.encode(text, allow_special=False)) == text


def test_half_a_character_is_refused_readably(chatml: Tokenizer) -> None:
    for call in (
        lambda: chatml.encode("ab\ud83d", allow_special=True),
        lambda: chatml.encode_chat([{"role": "user", "content": "ab\ud83d"}]),
    ):
        with pytest.raises(UserError, match=r"half a character \(U\+D83D"):
            call()


def test_ids_without_a_token_have_no_text(chatml: Tokenizer) -> None:
    """A model's vocabulary may be padded beyond the tokenizer's; nothing internal may show through there."""
    assert chatml.decode([*range(384, 600), 0]) == chatml.decode([0])


def test_settings_for_training_do_not_cut_or_pad_prompts(tmp_path: Path) -> None:
    truncation = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    padding = {
        "strategy": {"Fixed": 64},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "<unk>",
    }
    tokenizer = make.load(make.write(tmp_path, make.llama(truncation=truncation, padding=padding)))
    assert tokenizer.decode(tokenizer.encode("one two three four one two", allow_special=False)).endswith("one two")
    assert 0 not in tokenizer.encode("one", allow_special=False)


def test_spaces_beside_a_control_token_go_where_its_flags_say(tmp_path: Path) -> None:
    value = make.byte_level()
    for token in value["added_tokens"]:
        token |= {"lstrip": token["content"] == "<|im_start|>", "rstrip": token["content"] == "<|im_end|>"}
    tokenizer = make.load(make.write(tmp_path, value))
    library = Backend.from_str(json.dumps(value))
    for text in ("a  <|im_start|> b", "a <|im_end|> \n b", "<|im_end|> <|im_start|>"):
        assert tokenizer.encode(text, allow_special=True) == library.encode(text).ids


def test_added_tokens_that_only_the_configuration_lists(tmp_path: Path) -> None:
    listed = {"384": make.added_token(384, "<|extra|>"), "385": make.added_token(385, "<mark>", special=False)}
    folder = make.write_chatml(tmp_path / "a", added_tokens_decoder=listed)
    tokenizer = make.load(folder)
    assert tokenizer.vocab_size == 386
    assert tokenizer.encode("<|extra|><mark>", allow_special=True) == [384, 385]
    assert 384 in tokenizer.special_ids and 385 not in tokenizer.special_ids
    assert tokenizer.decode([384, 385]) == "<mark>"
    broken = {"400": make.added_token(400, "<|extra|>")}
    with pytest.raises(UserError, match=r"'<\|extra\|>' the id 400"):
        make.load(make.write_chatml(tmp_path / "b", added_tokens_decoder=broken))


def test_special_tokens_may_be_objects_and_stand_in_a_file_of_their_own(tmp_path: Path) -> None:
    folder = make.write(tmp_path, make.llama(), make.LLAMA_TEMPLATE, eos_token={"content": "</s>", "lstrip": False})
    (folder / "special_tokens_map.json").write_text('{"bos_token": {"content": "<s>"}, "eos_token": "<unk>"}')
    tokenizer = make.load(folder)
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<s>", "</s>")
    assert tokenizer.encode_chat([{"role": "user", "content": "one"}])[0] == 1


BAD_FILES = {
    "tokenizer.json": ["", "{", "null", "{}", '{"model": {"type": "?"}}', "version https://git-lfs\noid sha256:0\n"],
    "tokenizer_config.json": ["{", "[]", '{"chat_template": 5}', '{"added_tokens_decoder": {"x": 1}}'],
    "special_tokens_map.json": ["{"],
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in BAD_FILES.items() for text in texts])
def test_a_corrupt_file_is_named(tmp_path: Path, name: str, text: str) -> None:
    folder = make.write_chatml(tmp_path)
    (folder / name).write_text(text)
    with pytest.raises(UserError, match=re.escape(name)) as caught:
        make.load(folder)
    assert "\n" not in str(caught.value)


def test_a_truncated_tokenizer_file_is_named(tmp_path: Path) -> None:
    path = make.write_chatml(tmp_path) / "tokenizer.json"
    whole = path.read_bytes()
    for size in (5, len(whole) * 6 // 10, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(UserError, match=r"tokenizer\.json is incomplete or corrupt"):
            make.load(tmp_path)
    path.write_bytes(b"\xff\xfe" + whole)
    with pytest.raises(UserError, match="not UTF-8"):
        make.load(tmp_path)


def test_a_missing_tokenizer_is_named_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no tokenizer\.json in .*; give a checkpoint folder"):
        make.load(tmp_path)


def test_only_tokenizer_json_is_needed(tmp_path: Path) -> None:
    folder = make.write_chatml(tmp_path)
    (folder / "tokenizer_config.json").unlink()
    tokenizer = make.load(folder)
    assert tokenizer.decode(tokenizer.encode("The x", allow_special=False)) == "The x"
    assert not tokenizer.has_chat_template


def test_an_unknown_decoder_is_refused_by_name(tmp_path: Path) -> None:
    for decoder, name in [({"type": "WordPiece", "prefix": "##", "cleanup": True}, "WordPiece")]:
        with pytest.raises(UserError, match=f"the decoder {name}"):
            make.load(make.write(tmp_path, make.byte_level() | {"decoder": decoder}))
