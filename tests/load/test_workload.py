"""What is asked: repeatable, of exact length where that is promised, and readable from files."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest

from mini_infer.errors import UserError
from mini_infer.load.dataset import read_arrivals, read_conversations
from mini_infer.load.records import Conversation
from mini_infer.load.workload import KINDS, TokenSource, WorkloadOptions, make_workload

IDS = TokenSource(tuple(range(300, 400)))


def first(count: int, seed: str = "1", tokens: TokenSource | None = IDS, **options: object) -> list[Conversation]:
    workload = make_workload(WorkloadOptions(**options), tokens)  # type: ignore[arg-type]
    return list(islice(workload.conversations(seed), count))


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "file"])
def test_a_seed_repeats_and_another_differs(kind: str) -> None:
    assert first(50, kind=kind) == first(50, kind=kind)
    assert first(50, kind=kind) != first(50, kind=kind, seed="2")


def test_chat_prompts_differ_and_read_well() -> None:
    said = [c.first.messages[0].content for c in first(200)]
    assert len(set(said)) > 180
    assert all(20 < len(text) < 200 and "{" not in text for text in said)


def test_random_prompts_have_exactly_the_tokens_asked_for() -> None:
    for conversation in first(20, kind="random", input_tokens=17, output_tokens=5):
        ask = conversation.first
        assert isinstance(ask.prompt, tuple)
        assert len(ask.prompt) == ask.prompt_tokens == 17
        assert set(ask.prompt) <= set(IDS.ids)
        assert (ask.max_tokens, ask.ignore_eos, ask.route) == (5, True, "completions")


def test_without_a_servers_tokens_lengths_are_near_and_not_promised() -> None:
    ask = first(1, kind="random", input_tokens=17, tokens=None)[0].first
    assert isinstance(ask.prompt, str)
    assert len(ask.prompt.split()) == 17
    assert ask.prompt_tokens is None


def test_shared_prefixes_are_shared_and_the_rest_is_not() -> None:
    found = first(60, kind="shared-prefix", prefix_tokens=32, prefixes=3, input_tokens=8)
    prompts = [c.first.prompt for c in found]
    assert all(isinstance(p, tuple) and len(p) == 40 for p in prompts)
    assert len({p[:32] for p in prompts if p}) == 3
    assert len({p[32:] for p in prompts if p}) == 60


def test_a_conversation_goes_on_with_the_answers_it_got() -> None:
    conversation = first(1, kind="multi-turn", turns=3)[0]
    assert conversation.turns == 3
    ask = conversation.ask(["one", "two"])
    assert [m.role for m in ask.messages] == ["user", "assistant", "user", "assistant", "user"]
    assert [m.content for m in ask.messages[1::2]] == ["one", "two"]
    assert conversation.ask([]) == conversation.first


@pytest.mark.parametrize("wrong", [{"kind": "nonsense"}, {"input_tokens": 0}, {"turns": 0}])
def test_what_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UserError):
        WorkloadOptions(**wrong)  # type: ignore[arg-type]


# --- files ----------------------------------------------------------------------------------------------------------


def read(path: Path, *lines: object, **options: int) -> list[Conversation]:
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines), encoding="utf-8")
    return read_conversations(path, WorkloadOptions(kind="file", **options))


def test_json_lines_of_every_shape(tmp_path: Path) -> None:
    found = read(
        tmp_path / "f.jsonl",
        {"prompt": "a text with \u2028 in it", "max_tokens": 5},
        {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": [{"text": "u"}]}]},
        "",
        {"prompt": [5, 6, 7]},
        json.dumps("plain"),
    )
    assert [c.first.max_tokens for c in found] == [5, 64, 64, 64]
    assert [m.content for m in found[1].first.messages] == ["s", "u"]
    assert found[2].first.prompt == (5, 6, 7)
    assert found[3].first.messages[0].content == "plain"


def test_sharegpt_asks_the_human_turns(tmp_path: Path) -> None:
    talk = [("human", "one"), ("gpt", "1"), ("human", "two"), ("gpt", "2"), ("human", "three")]
    entry = {"id": "x", "conversations": [{"from": who, "value": said} for who, said in talk]}
    path = tmp_path / "share.json"
    path.write_text(json.dumps([entry, {"conversations": []}]))
    found = read_conversations(path, WorkloadOptions(kind="file", turns=2))
    assert [(c.first.messages[0].content, c.more) for c in found] == [("one", ("two",))]


@pytest.mark.parametrize("text", ["", "{", '{"x": 1}', "5", '{"prompt": [1, "a"]}', '{"messages": [{"role": "user"}]}'])
def test_what_a_file_cannot_mean_is_said_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "f.jsonl"
    path.write_text(text)
    with pytest.raises(UserError, match=r"f\.jsonl") as caught:
        read_conversations(path, WorkloadOptions(kind="file"))
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere"):
        read_conversations(tmp_path / "nowhere", WorkloadOptions(kind="file"))


def test_a_file_is_asked_over_and_over(tmp_path: Path) -> None:
    recorded = read(tmp_path / "f", {"prompt": "a"}, {"prompt": "b"})
    workload = make_workload(WorkloadOptions(kind="file"), None, recorded)
    said = [c.first.messages[0].content for c in islice(workload.conversations("1"), 5)]
    assert said == ["a", "b", "a", "b", "a"]


def test_arrivals_are_seconds_from_the_first(tmp_path: Path) -> None:
    path = tmp_path / "times"
    for text in (
        "3\n1.5\n10\n",
        "[3, 1.5, 10]",
        '{"timestamp": 3}\n{"timestamp": 1.5}\n{"timestamp": 10, "prompt": "x"}',
    ):
        path.write_text(text)
        assert read_arrivals(path) == [0, 1.5, 8.5]
    for text in ("", "x", '{"prompt": "x"}', "true"):
        path.write_text(text)
        with pytest.raises(UserError, match="times"):
            read_arrivals(path)
