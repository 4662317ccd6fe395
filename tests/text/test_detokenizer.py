"""Streamed text: whole characters, kept spaces, and the same text as decoding everything at once."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import pre_tokenizers

from mini_infer.text.detokenizer import Detokenizer
from mini_infer.text.token_bytes import TokenBytes
from mini_infer.text.tokenizer import Tokenizer
from tests.support import tokenizers as make

TEXTS = ["héllo 😀 日本 👩‍👩‍👧 🇨🇭", "one two  three\n four", "  leading", "tab\tend ", "", "é", "\u200d\ufe0f", "ﬁ ﷽ 𝕏"]


@pytest.fixture(scope="module")
def chatml(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return make.load(make.write_chatml(tmp_path_factory.mktemp("chatml")))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return make.load(make.write_llama(tmp_path_factory.mktemp("llama")))


@pytest.fixture(scope="module")
def metaspace(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A Metaspace decoder after byte fallback."""
    decoder = {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, make.METASPACE[0]]}
    folder = make.write(tmp_path_factory.mktemp("metaspace"), make.llama(decoder=decoder), **make.LLAMA_SPECIALS)
    return make.load(folder)


def stream(tokenizer: Tokenizer, ids: list[int], prompt: list[int] | None = None) -> list[str]:
    detokenizer = Detokenizer(tokenizer, prompt or [])
    return [*map(detokenizer.push, ids), detokenizer.flush()]


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_T03_characters_over_several_tokens_come_whole(
    chatml: Tokenizer, llama: Tokenizer, metaspace: Tokenizer, text: str
) -> None:
    for tokenizer in (chatml, llama, metaspace):
        ids = tokenizer.encode(text, allow_special=False, add_special_tokens=False)
        chunks = stream(tokenizer, ids)
        assert "".join(chunks) == tokenizer.decode(ids)
        assert not any("\ufffd" in chunk for chunk in chunks)
        # a `▁` tokenizer does not tell its own space at the start from one that was there
        assert "".join(chunks) == text or (text.startswith(" ") and tokenizer is not chatml)


def test_T03_one_byte_per_token(chatml: Tokenizer, llama: Tokenizer) -> None:
    text = TEXTS[0]
    alphabet = {byte: char for char, byte in _alphabet().items()}
    byte_level = [chatml.id_of(alphabet[byte]) or 0 for byte in text.encode()]
    fallback = [llama.id_of(f"<0x{byte:02X}>") or 0 for byte in text.encode()]
    for tokenizer, ids in ((chatml, byte_level), (llama, fallback)):
        chunks = stream(tokenizer, ids)
        assert [chunk for chunk in chunks if chunk] == list(text)


@pytest.mark.parametrize("kind", ["llama", "metaspace"])
def test_T06_spaces_are_kept(kind: str, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(kind)
    text = "one two  three\n four"
    ids = tokenizer.encode(text, allow_special=False)
    assert "".join(stream(tokenizer, ids)) == text
    prompt = tokenizer.encode("one", allow_special=False)
    answer = tokenizer.encode("two  three", allow_special=False, add_special_tokens=False)
    assert tokenizer.piece(answer[0]) == " two"
    assert stream(tokenizer, answer, prompt)[0] == " two"
    assert "".join(stream(tokenizer, answer, prompt)) == " two  three"
    assert stream(tokenizer, answer, [1])[0] == "two"  # nothing visible before


@pytest.mark.parametrize("kind", ["chatml", "llama", "metaspace"])
def test_the_library_decodes_the_same(kind: str, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(kind)
    fields = {"chatml": make.byte_level, "llama": make.llama, "metaspace": make.llama}[kind]()
    if kind == "metaspace":
        fields["decoder"] = {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, make.METASPACE[0]]}
    library = Backend.from_str(json.dumps(fields))
    draw = random.Random(0)
    whole_characters = [id for id in range(tokenizer.vocab_size) if not _is_part_of_a_character(tokenizer, id)]
    for _ in range(300):
        ids = draw.choices(whole_characters, k=draw.randrange(12))
        assert tokenizer.decode(ids) == library.decode(ids)
        assert "".join(stream(tokenizer, ids)) == library.decode(ids)
        if kind != "chatml":
            broken = [*ids, library.token_to_id("<0xE3>"), library.token_to_id("<0x81>")]
            visible = [id for id in ids if id not in tokenizer.special_ids]
            if not any(library.id_to_token(id).startswith("<0x") for id in visible[-1:]):
                assert tokenizer.decode(broken) == library.decode(broken)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 400)))
def test_any_ids_stream_to_the_whole_decode(chatml: Tokenizer, llama: Tokenizer, ids: list[int]) -> None:
    for tokenizer in (chatml, llama):
        assert "".join(stream(tokenizer, ids)) == tokenizer.decode(ids)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 383), max_size=30))
def test_any_ids_of_a_byte_level_vocabulary_decode_as_in_the_library(chatml: Tokenizer, ids: list[int]) -> None:
    library = Backend.from_str(json.dumps(make.byte_level()))
    assert chatml.decode(ids) == library.decode(ids)
    assert chatml.decode(ids, skip_special_tokens=False) == library.decode(ids, skip_special_tokens=False)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 400)), st.lists(st.integers(0, 400)))
def test_an_answer_continues_its_prompt(chatml: Tokenizer, llama: Tokenizer, prompt: list[int], ids: list[int]) -> None:
    for tokenizer in (chatml, llama):
        whole = tokenizer.decode(prompt + ids)
        before = _without_flush(tokenizer, prompt)
        assert before + "".join(stream(tokenizer, ids, prompt)) == whole


def test_a_character_that_the_prompt_left_unfinished_comes_whole(chatml: Tokenizer) -> None:
    ids = chatml.encode("a😀b", allow_special=False)
    assert len(ids) == 6
    for cut in (2, 3, 4):
        assert "".join(stream(chatml, ids[cut:], ids[:cut])) == "😀b"
    assert "".join(stream(chatml, ids[2:])) == "\ufffd\ufffd\ufffdb"


def test_special_tokens_show_no_text_even_inside_a_character(chatml: Tokenizer) -> None:
    first, second = chatml.encode("é", allow_special=False)
    assert stream(chatml, [383, first, 382, second, 381]) == ["", "", "", "é", "", ""]


@pytest.mark.parametrize("byte", [0xFF, 0x80, 0xE3, 0xF0])
def test_long_runs_of_broken_bytes_flow(chatml: Tokenizer, llama: Tokenizer, byte: int) -> None:
    """At most three bytes can wait, however long the run is; so nothing is held for ever or decoded again and again."""
    alphabet = {value: char for char, value in _alphabet().items()}
    for tokenizer, id in ((chatml, chatml.id_of(alphabet[byte])), (llama, llama.id_of(f"<0x{byte:02X}>"))):
        detokenizer = Detokenizer(tokenizer)
        released = 0
        for count in range(1, 20_001):
            released += len(detokenizer.push(id or 0))
            assert released >= count - 3
        assert released + len(detokenizer.flush()) == 20_000


def test_a_whole_character_in_a_broken_run_survives(llama: Tokenizer) -> None:
    """The library would replace every byte of the run; a stream has shown the character by then, so it stays."""
    ids = [llama.id_of(f"<0x{byte:02X}>") or 0 for byte in "あ".encode() + b"\xff"]
    assert stream(llama, ids) == ["", "", "あ", "\ufffd", ""]
    assert llama.decode(ids) == "あ\ufffd"


def test_the_byte_alphabet_is_the_librarys() -> None:
    assert set(_alphabet()) == set(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(_alphabet().values()) == list(range(256))


def test_without_a_decoder_tokens_are_joined_with_spaces() -> None:
    read = TokenBytes(None)
    assert (read("one", first=True), read("two")) == (b"one", b" two")


def _alphabet() -> dict[str, int]:
    read = TokenBytes({"type": "ByteLevel"})
    return {char: read(char)[0] for char in pre_tokenizers.ByteLevel.alphabet()}


def _is_part_of_a_character(tokenizer: Tokenizer, id: int) -> bool:
    data = tokenizer.token_bytes(id) or b""
    return data.decode(errors="ignore").encode() != data


def _without_flush(tokenizer: Tokenizer, ids: list[int]) -> str:
    detokenizer = Detokenizer(tokenizer)
    return "".join(map(detokenizer.push, ids))
