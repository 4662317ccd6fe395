"""The same texts under load: equal, a tie, or wrong, and where."""

from __future__ import annotations

from typing import Any

import pytest

from mini_infer.load.check import TIE, check_level, compare, flatten, is_reconciled, shuffled
from mini_infer.load.records import Ask, Conversation, Message, Record, Token


def said(*tokens: str, gaps: dict[int, dict[str, float]] | None = None, **more: Any) -> Record:
    """An answer of these tokens; `gaps` gives other candidates at a place, by how much less likely they were."""
    shown = []
    for i, token in enumerate(tokens):
        others = {text: -0.5 - gap for text, gap in (gaps or {}).get(i, {}).items()}
        shown.append(Token(token, -0.5, {token: -0.5} | others))
    values: dict[str, Any] = {"text": "".join(tokens), "tokens": len(tokens), "logprobs": tuple(shown)} | more
    return Record(number=0, scheduled=0.0, sent=0.0, end=1.0, **values)


def test_equal_texts_are_equal() -> None:
    assert compare("4", 0, said("a", "b"), said("a", "b")) is None
    assert compare("4", 0, said("a", "b"), said("ab")) is None


@pytest.mark.parametrize(("gap", "kind"), [(0.0, "tie"), (0.1, "tie"), (TIE, "tie"), (0.26, "wrong"), (3.0, "wrong")])
def test_a_divergence_between_close_tokens_is_a_tie(gap: float, kind: str) -> None:
    alone = said("the ", "cat ", "sat", gaps={1: {"dog ": gap}})
    found = compare("16", 7, alone, said("the ", "dog ", "ran"))
    assert found is not None
    assert (found.kind, found.token, found.character, found.prompt, found.level) == (kind, 1, 4, 7, "16")
    assert found.gap == pytest.approx(gap)
    assert (found.alone, found.found) == ("the cat sat", "the dog ran")


def test_the_other_answer_tells_the_gap_where_the_first_does_not() -> None:
    found = compare("4", 0, said("a", "b"), said("a", "c", gaps={1: {"b": 0.2}}))
    assert found is not None and found.kind == "tie"


def test_a_token_that_was_no_candidate_at_all_is_wrong() -> None:
    found = compare("4", 0, said("a", "b", gaps={1: {"x": 0.1}}), said("a", "c", gaps={1: {"y": 0.1}}))
    assert found is not None and (found.kind, found.gap) == ("wrong", None)


def test_without_logprobs_every_divergence_is_wrong_and_located_by_character() -> None:
    bare = {"logprobs": ()}
    found = compare("4", 0, said("abc", **bare), said("abd", **bare))
    assert found is not None and (found.kind, found.token, found.character) == ("wrong", None, 2)


@pytest.mark.parametrize(("gap", "kind"), [(0.1, "tie"), (2.0, "wrong")])
def test_an_answer_that_ended_early_is_judged_by_the_runner_up(gap: float, kind: str) -> None:
    alone = said("a", "b", gaps={1: {"<end>": gap}})
    for pair in ((alone, said("a")), (said("a"), alone)):
        found = compare("4", 0, *pair)
        assert found is not None and (found.kind, found.token) == (kind, 1)


def test_a_text_that_is_not_its_tokens_is_wrong() -> None:
    found = compare("4", 0, said("a", "b"), said("a", "b", text="ax"))
    assert found is not None and found.kind == "wrong"


def test_a_level_counts_what_it_compared() -> None:
    tie = said("a", "c")
    wrong = said("z", "b")
    failed = said("a", outcome="failed", cause="HTTP 500")
    alone = [said("a", "b", gaps={1: {"c": 0.2}})] * 4
    level, found = check_level("4", alone, dict(enumerate([alone[0], tie, wrong, failed])))
    assert (level.compared, level.equal, level.ties, level.wrong) == (3, 1, 1, 1)
    assert level.failed == {"HTTP 500": 1}
    assert [d.prompt for d in found] == [1, 2]


def test_usage_is_held_against_the_stream() -> None:
    assert is_reconciled(said("a", "b"))
    assert is_reconciled(said("a", "b", tokens=3))  # the end token has no text
    assert not is_reconciled(said("a", "b", tokens=5))
    assert not is_reconciled(said("a", "b", tokens=1))
    assert is_reconciled(said("a", "b", tokens=9, counted_by="pieces"))
    assert not is_reconciled(said("a", tokens=1, logprobs=(), pieces=(1.0, 2.0)))


def test_later_turns_are_asked_again_with_the_answers_they_followed() -> None:
    first = Ask(messages=(Message("user", "1"),))
    talks = [Conversation(first, ("2", "3")), Conversation(first)]
    pairs = flatten(talks, [said("x"), said("y"), said("z"), said("w")])
    assert [[m.content for m in ask.messages] for ask, _ in pairs] == [
        ["1"],
        ["1", "x", "2"],
        ["1", "x", "2", "y", "3"],
        ["1"],
    ]
    failed = said(outcome="failed")
    assert len(flatten(talks, [said("x"), failed, said("w")])) == 3


def test_the_order_is_another_for_every_prompt_and_the_same_for_the_same_seed() -> None:
    for count in (0, 1, 2, 3, 50):
        order = shuffled(count, "1 4")
        assert sorted(order) == list(range(count))
        assert count < 2 or all(i != j for i, j in enumerate(order))
        assert order == shuffled(count, "1 4")
