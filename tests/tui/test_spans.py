"""Text is told apart by the tokens that gave it, however it comes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tui.model.spans import Aligner

PIECES = {1: "Hello", 2: " world", 3: "\\xe3\\x81", 4: "\\x82", 5: "!", 6: "<|end|>", 7: " wor"}


def spans(*reports):
    aligner = Aligner()
    return [(s.text, s.token) for ids, text in reports for s in aligner.add(ids, text, 0, PIECES)]


def test_each_token_has_its_text() -> None:
    assert spans(((1,), "Hello"), ((2, 5), " world!")) == [("Hello", 0), (" world", 1), ("!", 2)]


def test_a_character_of_several_tokens_belongs_to_the_first() -> None:
    assert spans(((1,), "Hello"), ((3,), ""), ((4,), "あ"), ((5,), "!")) == [("Hello", 0), ("あ", 1), ("!", 3)]
    assert spans(((3, 4, 5), "あ!")) == [("あ", 0), ("!", 2)]


def test_held_text_finds_its_tokens_later_and_control_tokens_have_none() -> None:
    assert spans(((1,), ""), ((2,), ""), ((5, 6), "Hello world!")) == [("Hello", 0), (" world", 1), ("!", 2)]
    assert spans(((6, 1), "Hello")) == [("Hello", 1)]


@given(st.lists(st.tuples(st.lists(st.integers(1, 7), max_size=4), st.text(max_size=8)), max_size=12))
def test_no_text_is_ever_lost_or_doubled(reports) -> None:
    aligner, text, count = Aligner(), "", 0
    for ids, delta in reports:
        count += len(ids)
        made = aligner.add(ids, delta, 0, PIECES)
        text += "".join(s.text for s in made)
        assert all(s.text and 0 <= s.token <= max(0, count - 1) for s in made)
    assert text == "".join(delta for _, delta in reports)
