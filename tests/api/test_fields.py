"""Fields of requests: which have an effect, which are ignored, which are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mini_infer.api.logprobs import characters
from mini_infer.build import build_engine
from mini_infer.config import EngineConfig
from tests.api.support import (
    Server,
    error_of,
    events,
    ids_of,
    refused,
    scripted_engine,
    server,
)
from tests.support.checkpoints import IM_END, write_checkpoint
from tests.support.engines import tiny_tokenizer

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


HARMLESS: dict[str, Any] = {
    "user": "u",
    "metadata": {"a": 1},
    "store": True,
    "service_tier": "auto",
    "parallel_tool_calls": False,
    "reasoning_effort": "low",
    "prompt_cache_key": "k",
    "safety_identifier": "s",
    "verbosity": "low",
    "modalities": ["text"],
    "response_format": {"type": "text"},
    "tool_choice": "none",
    "tools": [],
    "skip_special_tokens": True,
    "audio": None,
    "functions": None,
    "best_of": 1,
    "suffix": None,
    "echo": False,
}


def test_H23_harmless_fields_are_accepted(tiny: Server) -> None:
    answer = tiny.chat(**HARMLESS)
    assert answer.status_code == 200 and "x-mini-infer-ignored-params" not in answer.headers
    for name, value in HARMLESS.items():
        assert tiny.chat(**{name: value}).status_code == 200, name


def test_H23_unknown_fields_are_ignored_named_and_counted(tiny: Server) -> None:
    answer = tiny.chat(foo={}, bar=[1], **{"x y\r\nset-cookie: a": 1})
    assert answer.status_code == 200 and answer.headers["x-mini-infer-ignored-params"] == "bar, foo"
    stream = tiny.chat(foo={}, stream=True)
    assert stream.headers["x-mini-infer-ignored-params"] == "foo"
    assert 'mini_infer_ignored_params_total{param="foo"}' in tiny.http.get("/metrics").text


NESTED: dict[str, Any] = {
    "messages": [{"role": "user", "content": "a", "refusal": None}, {"role": "user", "content": "x", "nmae": "y"}],
    "stream": True,
    "stream_options": {"inclde_usage": True, "include_obfuscation": False},
}


def test_H23_what_nobody_knows_within_a_field_is_named_too(tiny: Server) -> None:
    answer = tiny.chat(**NESTED)
    assert answer.status_code == 200
    assert set(answer.headers["x-mini-infer-ignored-params"].split(", ")) == {
        "messages.1.nmae", "stream_options.inclde_usage",
    }  # fmt: skip
    kept = {"role": "assistant", "content": "b", "refusal": None, "annotations": [], "audio": None, "odd": None}
    answer = tiny.chat(messages=[{"role": "user", "content": "a"}, kept, {"role": "user", "content": "c"}])
    assert answer.status_code == 200 and "x-mini-infer-ignored-params" not in answer.headers


def test_H23_strict_servers_refuse_unknown_fields_alone() -> None:
    with server(scripted_engine([5]), strict_params=True) as strict:
        refused(strict.chat(foo={}), "foo", "unknown_parameter")
        said = refused(strict.chat(foo={}, bar=1), "bar", "unknown_parameter")
        assert "bar, foo" in said and "--strict-params" in said
        said = refused(strict.chat(**NESTED), code="unknown_parameter")
        assert "messages.1.nmae" in said and "stream_options.inclde_usage" in said
        assert strict.chat(**HARMLESS).status_code == 200


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("response_format", {"type": "json_object"}),
        ("response_format", {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}}),
        ("response_format", "json"),
        ("tools", [{"type": "function", "function": {"name": "f"}}]),
        ("tool_choice", "required"),
        ("tool_choice", {"type": "function", "function": {"name": "f"}}),
        ("functions", [{"name": "f"}]),
        ("function_call", {"name": "f"}),
        ("modalities", ["text", "audio"]),
        ("audio", {"voice": "x"}),
        ("prediction", {"type": "content"}),
        ("web_search_options", {}),
        ("chat_template", "{{ 1 }}"),
        ("prompt_logprobs", 1),
        ("use_beam_search", True),
        ("best_of", 2),
        ("skip_special_tokens", False),
        ("guided_json", {}),
        ("echo", True),
        ("suffix", "x"),
        ("typical_p", 0.9),
        ("repeat_penalty", 1.1),
        ("mirostat", 2),
        ("regex", "a+"),
        ("return_tokens_as_token_ids", True),
    ],
)
def test_H23_fields_that_change_the_answer_are_refused(tiny: Server, name: str, value: Any) -> None:
    for stream in (False, True):
        message = refused(tiny.chat(**{name: value}, stream=stream), name, "unsupported_parameter")
        assert name in message
    refused(tiny.complete(**{name: value}), name, "unsupported_parameter")


def test_tools_are_accepted_where_none_may_be_called(tiny: Server) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    assert tiny.chat(tools=tools, tool_choice="none").status_code == 200
    refused(tiny.chat(tools=tools, tool_choice="auto"), "tools", "unsupported_parameter")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1), ("temperature", 2.1), ("temperature", "1"), ("temperature", True), ("top_p", "NaN"),
        ("top_p", 1.0001), ("top_p", -0.1), ("top_k", -2), ("top_k", 1.5), ("min_p", 1.1), ("min_p", -1),
        ("repetition_penalty", 0), ("repetition_penalty", -1), ("presence_penalty", 2.1), ("frequency_penalty", -2.1),
        ("logit_bias", {"5": 101}), ("logit_bias", {"x": 1}), ("logit_bias", {"384": 1}), ("logit_bias", {"-1": 1}),
        ("logit_bias", [5]), ("logit_bias", {"5": "1"}), ("logit_bias", {"1.5": 1}), ("seed", 1.5), ("seed", "1"),
        ("n", 0), ("n", -1), ("n", 1.0), ("n", 17), ("stop", ""), ("stop", [""]), ("stop", 5), ("stop", [5]),
        ("stop", ["a"] * 17), ("stop", "x" * 5000), ("stop_token_ids", [384]), ("stop_token_ids", [-1]),
        ("stop_token_ids", 5), ("min_tokens", -1), ("min_tokens", 9), ("ignore_eos", 1), ("stream", "true"),
        ("cache_salt", 5), ("cache_salt", "x" * 2000), ("model", 5), ("return_token_ids", "yes"),
        ("include_stop_str_in_output", 1), ("stream_options", []), ("priority", -1), ("priority", 1.5),
        ("priority", 10**7),
    ],
)  # fmt: skip
@pytest.mark.parametrize("ask", [Server.chat, Server.complete])
def test_values_out_of_range_are_named(tiny: Server, ask: Callable[..., Any], name: str, value: Any) -> None:
    answer = ask(tiny, **{name: value})
    error = error_of(answer)
    assert answer.status_code == 400 and name in error["message"]
    assert error["param"] is not None and error["param"].startswith(name)


@pytest.mark.parametrize("name", ["temperature", "top_p", "stop", "n", "seed", "logprobs", "max_tokens", "stream"])
def test_null_counts_as_left_out(tiny: Server, name: str) -> None:
    more = {"max_tokens": 3, name: None} if name != "max_tokens" else {name: None, "max_completion_tokens": 3}
    assert tiny.chat(**more).status_code == 200


def test_T12_stop_texts(tiny: Server) -> None:
    whole = tiny.chat().json()["choices"][0]["message"]["content"]
    for stop in ([], None, ["never", "ever"]):
        assert tiny.chat(stop=stop).json()["choices"][0]["message"]["content"] == whole
    assert tiny.chat(stop=["1q", "2q", "3q", "4q", "5q"]).status_code == 200
    for stop in ("", [""], 5):
        refused(tiny.chat(stop=stop), "stop")


def test_M01_tiny_temperatures_are_greedy(tiny: Server) -> None:
    greedy = tiny.chat(temperature=0).json()["choices"][0]["message"]["content"]
    for value in (1e-5, 1e-8, 1e-30, 5e-324):
        assert tiny.chat(temperature=value).json()["choices"][0]["message"]["content"] == greedy
    for value in (1e-3, 1e-4, 2.0):
        assert tiny.chat(temperature=value, seed=1).status_code == 200


def test_M02_top_p_of_zero_is_not_one(tiny: Server) -> None:
    greedy = tiny.chat(temperature=0).json()["choices"][0]["message"]["content"]
    for value in (0, 0.0, 1e-9):
        assert tiny.chat(temperature=1, top_p=value).json()["choices"][0]["message"]["content"] == greedy
    assert tiny.chat(temperature=1, top_p=1).status_code == 200


def test_M02_an_explicit_zero_is_not_the_default(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "m", dtype=torch.float64, generation={"temperature": 1.5, "do_sample": True})
    with server(lambda: build_engine(EngineConfig(model=str(path), kv_blocks=64))) as hot:
        texts = {hot.chat(temperature=0).json()["choices"][0]["message"]["content"] for _ in range(4)}
        assert len(texts) == 1
        assert len({hot.chat(temperature=None).json()["choices"][0]["message"]["content"] for _ in range(4)}) > 1


def test_M06_without_a_seed_answers_differ(tiny: Server) -> None:
    texts = [tiny.chat(temperature=1).json()["choices"][0]["message"]["content"] for _ in range(8)]
    assert len(set(texts)) >= 7


def test_M09_logit_bias(tiny: Server) -> None:
    first = tiny.complete(return_token_ids=True).json()["choices"][0]["token_ids"][0]
    banned = tiny.complete(return_token_ids=True, logit_bias={str(first): -100}).json()["choices"][0]["token_ids"]
    assert first not in banned
    forced = tiny.complete(return_token_ids=True, logit_bias={"70": 100}).json()["choices"][0]["token_ids"]
    assert forced == [70] * 8


@pytest.mark.parametrize("value", [1e-9, 1e-300, 1.0, 2.0, 1e9, 1e300])
def test_M11_penalties_stay_finite(tiny: Server, value: float) -> None:
    answer = tiny.chat(repetition_penalty=value)
    assert answer.status_code == 200, answer.text
    if value == 1.0:
        assert answer.json()["choices"] == tiny.chat().json()["choices"]


@pytest.mark.parametrize(
    ("more", "entries", "top"),
    [
        ({"logprobs": False}, None, 0),
        ({"logprobs": True}, 8, 0),
        ({"logprobs": True, "top_logprobs": 0}, 8, 0),
        ({"logprobs": True, "top_logprobs": 3}, 8, 3),
        ({"logprobs": True, "top_logprobs": 20}, 8, 20),
    ],
)
def test_M17_chat_logprobs(tiny: Server, more: Any, entries: int | None, top: int) -> None:
    choice = tiny.chat(**more, ignore_eos=True).json()["choices"][0]
    if entries is None:
        assert choice["logprobs"] is None
        return
    content = choice["logprobs"]["content"]
    assert len(content) == entries and choice["logprobs"]["refusal"] is None
    for entry in content:
        assert set(entry) == {"token", "logprob", "bytes", "top_logprobs"}
        values = [t["logprob"] for t in entry["top_logprobs"]]
        assert len(values) == top and values == sorted(values, reverse=True)
        assert -9999 <= entry["logprob"] <= 0


def test_M17_logprobs_that_make_no_sense(tiny: Server) -> None:
    for more in ({"top_logprobs": 3}, {"top_logprobs": 3, "logprobs": False}):
        refused(tiny.chat(**more), "top_logprobs")
    refused(tiny.chat(logprobs=True, top_logprobs=21), "top_logprobs")
    refused(tiny.chat(logprobs=True, top_logprobs=-1), "top_logprobs")
    refused(tiny.chat(logprobs=5), "logprobs")
    refused(tiny.complete(logprobs=21), "logprobs")
    refused(tiny.complete(logprobs=-1), "logprobs")
    refused(tiny.complete(logprobs=True), "logprobs")


@pytest.mark.parametrize("count", [0, 1, 5, 6])
def test_M17_completion_logprobs(tiny: Server, count: int) -> None:
    choice = tiny.complete(logprobs=count, ignore_eos=True).json()["choices"][0]
    shown = choice["logprobs"]
    assert {k: len(v) for k, v in shown.items()} == dict.fromkeys(
        ("tokens", "token_logprobs", "top_logprobs", "text_offset"), 8
    )
    for token, logprob, table in zip(shown["tokens"], shown["token_logprobs"], shown["top_logprobs"], strict=True):
        assert table[token] == logprob and max(count, 1) <= len(table) <= count + 1
        assert list(table.values())[:count] == sorted(table.values(), reverse=True)[:count]
    assert shown["text_offset"][0] == 0 and shown["text_offset"] == sorted(shown["text_offset"])
    streamed = [e["choices"][0] for e in events(tiny.complete(logprobs=count, ignore_eos=True, stream=True).content)]
    for name, values in shown.items():
        assert [v for c in streamed for v in c["logprobs"][name]] == values
    assert tiny.complete(logprobs=None).json()["choices"][0]["logprobs"] is None


def test_offsets_count_characters() -> None:
    text = "ab é 日本 x"
    assert sum(characters(i, tiny_tokenizer("chatml")) for i in ids_of(text)) == len(text)
    assert characters(IM_END, tiny_tokenizer("chatml")) == 0
