"""Stop strings by themselves and in an answer's text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mini_infer.text.stop import StopStrings
from mini_infer.text.stream import TextStream
from mini_infer.text.tokenizer import Tokenizer
from tests.support import tokenizers as make


@pytest.fixture(scope="module")
def chatml(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return make.load(make.write_chatml(tmp_path_factory.mktemp("chatml")))


def run(stops: list[str], chunks: list[str]) -> tuple[list[str], str | None]:
    """What each chunk and the end release, and the stop string that was met."""
    finder = StopStrings(stops)
    released = []
    for chunk in chunks:
        text, matched = finder.push(chunk)
        released.append(text)
        if matched:
            return released, matched
    return [*released, finder.flush()], None


def test_T07_a_stop_string_over_two_chunks() -> None:
    assert run(["ta gam"], ["alpha ", "beta ", "gamma ", "delta"]) == (["alpha ", "be", ""], "ta gam")


def test_T07_in_an_answer(chatml: Tokenizer) -> None:
    stream = TextStream(chatml, (), ("ta gam",))
    chunks = [stream.push(id) for id in chatml.encode("alpha beta gamma delta", allow_special=False)]
    assert "".join(text for text, _ in chunks) == stream.text == "alpha be"
    assert next(matched for _, matched in chunks if matched) == "ta gam"
    assert stream.end() == "" and stream.push(5) == ("", "ta gam")


def test_T09_words_flow_at_once() -> None:
    words = [f"word{n} " for n in range(10)]
    assert run(["@" * 24], words) == ([*words, ""], None)


def test_T09_a_possible_beginning_is_held_back_and_released() -> None:
    assert run(["abcd"], ["xab", "c", "x", "abc"]) == (["x", "", "abcx", "", "abc"], None)


@pytest.mark.parametrize("stops", [[""], ["a", ""], ["", "a"]])
def test_T12_an_empty_stop_string_is_refused(chatml: Tokenizer, stops: list[str]) -> None:
    with pytest.raises(ValueError, match="not empty"):
        StopStrings(stops)
    with pytest.raises(ValueError, match="not empty"):
        TextStream(chatml, (), stops)


def test_T12_none_and_five(chatml: Tokenizer) -> None:
    assert run([], ["abc", ""]) == (["abc", "", ""], None)
    assert run(["a", "b", "c", "d", "e"], ["xyzc"]) == (["xyz"], "c")
    with pytest.raises(ValueError):
        StopStrings("a text")


@pytest.mark.parametrize(
    ("stops", "text", "released", "matched"),
    [
        (["aab"], "aaab", "a", "aab"),
        (["abcd", "bc"], "abcd", "a", "bc"),  # the match that ends first
        (["bc", "abc"], "xabc", "x", "abc"),  # of those the longest
        (["ab", "ab"], "cab", "c", "ab"),
        (["aaa"], "aa", "aa", None),
        (["abab"], "ababab", "", "abab"),
        (["she", "he", "hers"], "ushers", "u", "she"),
        (["\n\n"], "a\n b\n\n", "a\n b", "\n\n"),
        (["\ufffd"], "a\ufffd", "a", "\ufffd"),
        (["👩‍👩"], "x👩‍👩‍👧", "x", "👩‍👩"),
    ],
)
def test_overlapping_candidates(stops: list[str], text: str, released: str, matched: str | None) -> None:
    for chunks in ([text], list(text), [text[:2], text[2:]]):
        shown, met = run(stops, chunks)
        assert ("".join(shown), met) == (released, matched)


def expected(stops: list[str], text: str) -> tuple[str, str | None]:
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return text[: end - len(stop)], stop
    return text, None


@settings(max_examples=500, deadline=None)
@given(st.lists(st.text("ab", min_size=1, max_size=5), max_size=4), st.lists(st.text("abc", max_size=4)))
def test_any_stops_in_any_chunks(stops: list[str], chunks: list[str]) -> None:
    shown, matched = run(stops, chunks)
    assert ("".join(shown), matched) == expected(stops, "".join(chunks))
    text = ""
    for n, chunk in enumerate(shown[: len(chunks)]):  # nothing is held back without need
        text += chunk
        so_far = "".join(chunks[: n + 1])
        if matched and so_far.startswith(expected(stops, so_far)[0] + matched):
            break
        held = so_far[len(text) :]
        assert held == "" or any(stop.startswith(held) for stop in stops)


def test_a_stop_string_may_be_forbidden_to_end_the_answer_yet(chatml: Tokenizer) -> None:
    finder = StopStrings(["ab"])
    assert finder.push("xab", may_stop=False)[1] is None
    assert finder.push("y") == ("aby", None)
    assert finder.push("zab") == ("z", "ab")
    stream = TextStream(chatml, (), ("b", "<|im_end|>"))
    a, b = chatml.id_of("a") or 0, chatml.id_of("b") or 0
    assert [stream.push(id, may_stop=False)[1] for id in (a, b, 383)] == [None] * 3
    assert stream.push(a)[1] is None
    assert stream.push(b) == ("", "b")
    assert stream.text == "aba"


def test_a_stop_string_that_names_a_control_token_is_met_by_it(chatml: Tokenizer) -> None:
    stream = TextStream(chatml, (), ("<|endoftext|>", "xyz"))
    ids = [*chatml.encode("ok x", allow_special=False), 381, 5]
    assert [stream.push(id) for id in ids][-2:] == [("x", "<|endoftext|>"), ("", "<|endoftext|>")]
    assert stream.text == "ok x"
    typed = TextStream(chatml, (), ("<|endoftext|>",))
    spelled = [typed.push(id)[1] for id in chatml.encode("a<|endoftext|>b", allow_special=False)]
    assert "<|endoftext|>" in spelled and typed.text == "a"


def test_the_end_releases_what_was_held(chatml: Tokenizer) -> None:
    stream = TextStream(chatml, (), ("lo!",))
    shown = "".join(stream.push(id)[0] for id in chatml.encode("hello", allow_special=False))
    assert shown == "hel" and stream.end() == "lo" and stream.text == "hello"
    assert stream.end() == ""
    half = TextStream(chatml, (), ("\ufffd!",))
    assert half.push(chatml.encode("é", allow_special=False)[0]) == ("", None)
    assert half.end() == "\ufffd" == half.text


def test_no_stops_is_plain_text(chatml: Tokenizer) -> None:
    stream = TextStream(chatml)
    text = "héllo 😀\n"
    assert "".join(stream.push(id)[0] for id in chatml.encode(text, allow_special=False)) == text
    assert stream.end() == "" and stream.text == text
