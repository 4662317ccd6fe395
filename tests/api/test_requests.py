"""Lengths, usage, ends and routes: the field cases of the HTTP section, and others."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mini_infer.build import build_engine
from mini_infer.config import EngineConfig
from mini_infer.llm import LLM
from mini_infer.sampling.params import SamplingParams
from tests.api.support import (
    Server,
    endless,
    error_of,
    events,
    ids_of,
    joined,
    reasons,
    refused,
    scripted_engine,
    server,
)
from tests.support.checkpoints import IM_END, write_checkpoint
from tests.support.engines import tiny_tokenizer

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


# --- lengths ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("value", "status"), [(1, 200), (0, 400), (-5, 400), (None, 200), ("12", 400), (1.5, 400), (True, 400)]
)
def test_H09_max_tokens(tiny: Server, path: str, stream: bool, value: Any, status: int) -> None:
    body = {"messages": [{"role": "user", "content": "x"}]} if path == CHAT else {"prompt": "x"}
    if value is None:
        body["stop"] = [chr(c) for c in range(97, 113)]  # otherwise it goes on for 4,000 tokens
    answer = tiny.post(path, **body, max_tokens=value, stream=stream, temperature=0)
    if status == 400:
        assert "max_tokens" in refused(answer, "max_tokens")
    elif stream:
        assert value is None or reasons(events(answer.content)) == ["length"]
    else:
        assert value is None or answer.json()["usage"]["completion_tokens"] == 1


@pytest.mark.parametrize("ask", [Server.chat, Server.complete])
def test_H11_max_completion_tokens(tiny: Server, ask: Callable[..., Any]) -> None:
    for more in ({}, {"max_tokens": 9}, {"max_tokens": 1}):
        answer = ask(tiny, **{"max_tokens": None} | more, max_completion_tokens=3).json()
        assert answer["usage"]["completion_tokens"] == 3 and answer["choices"][0]["finish_reason"] == "length"
    refused(ask(tiny, max_completion_tokens=0), "max_completion_tokens")
    refused(ask(tiny, max_completion_tokens=-1, max_tokens=5), "max_completion_tokens")


@pytest.mark.parametrize("stream", [False, True])
def test_H13_prompts_around_the_context(stream: bool) -> None:
    with server(scripted_engine(endless(), context=256, max_batch_tokens=256)) as short:
        answer = short.complete([7] * 255, stream=stream, stream_options={"include_usage": True} if stream else None)
        assert answer.status_code == 200
        usage = events(answer.content)[-1]["usage"] if stream else answer.json()["usage"]
        assert usage["prompt_tokens"] == 255 and usage["completion_tokens"] == 1
        for length in (256, 257, 2560, 200_000):
            answer = short.complete([7] * length, stream=stream)
            message = refused(answer, "prompt", "context_length_exceeded")
            assert f"{length} tokens" in message and "256 tokens" in message
        text = refused(short.chat("z y " * 2000, stream=stream), "messages", "context_length_exceeded")
        assert "256 tokens" in text and "messages have" in text
        clamped = short.complete([7] * 250, max_tokens=1000).json()
        assert clamped["usage"]["completion_tokens"] == 6
        assert clamped["choices"][0]["finish_reason"] == "length", "what does not fit is cut, and said"


def test_a_prompt_larger_than_the_cache_is_a_400() -> None:
    with server(scripted_engine([5], num_blocks=4, context=4096)) as small:
        message = refused(small.complete([7] * 64), "prompt", "context_length_exceeded")
        assert "64 tokens" in message and "--kv-blocks" in message
        assert small.complete([7] * 63).status_code == 200


def test_H13_ten_megabytes_are_refused_without_being_encoded(tiny: Server) -> None:
    """And what nobody counts on to be cheap: much text beside the content, and long texts of few tokens."""
    text = refused(tiny.chat("y " * 4_500_000), "messages", "context_length_exceeded")
    assert "at least" in text and "4096 tokens" in text
    refused(tiny.complete("z" * 9_000_000), "prompt", "context_length_exceeded")
    refused(tiny.complete(["a", "z y " * 50_000]), "prompt", "context_length_exceeded")
    parts = [{"type": "text", "text": "z y " * 10_000} for _ in range(20)]
    refused(tiny.post(CHAT, messages=[{"role": "user", "content": parts}]), "messages", "context_length_exceeded")
    beside = [{"role": "assistant", "content": "x", "tool_calls": [{"function": {"arguments": "x" * 2_000_000}}]}]
    refused(tiny.post(CHAT, messages=beside), "messages")
    refused(tiny.post("/tokenize", prompt="x" * 1_000_001), "prompt")
    refused(tiny.post("/detokenize", tokens=[7] * 1_000_001), "tokens")
    long = "the " * 4_050  # more characters than are let through uncounted, and it fits
    fits = tiny.complete(long, max_tokens=1)
    assert fits.status_code == 200 and fits.json()["usage"]["prompt_tokens"] > 4_000


def test_S06_refused_prompts_leave_nothing_behind() -> None:
    with server(scripted_engine(endless(), context=64, num_blocks=32)) as small:
        statuses = [small.complete([7] * (100 if i % 11 else 20), max_tokens=4).status_code for i in range(220)]
        assert statuses.count(400) == 200 and statuses.count(200) == 20
        small.wait_idle()


# --- streams ---------------------------------------------------------------------------------------------------------


def test_H15_usage_comes_only_when_asked(tiny: Server) -> None:
    whole = tiny.chat().json()["usage"]
    for options in (None, {}, {"include_usage": False}, {"include_usage": None}, {"include_obfuscation": True}):
        stream = events(tiny.chat(stream=True, stream_options=options).content)
        assert all("usage" not in event and event["choices"] for event in stream)
    stream = events(tiny.chat(stream=True, stream_options={"include_usage": True}).content)
    assert all(event["usage"] is None and event["choices"] for event in stream[:-1])
    assert stream[-1]["choices"] == [] and "delta" not in json.dumps(stream[-1])
    usage = stream[-1]["usage"]
    assert {k: usage[k] for k in ("prompt_tokens", "completion_tokens", "total_tokens")} == {
        k: whole[k] for k in ("prompt_tokens", "completion_tokens", "total_tokens")
    }
    refused(tiny.chat(stream_options={"include_usage": True}), "stream_options")
    refused(tiny.chat(stream=True, stream_options=5), "stream_options")
    refused(tiny.chat(stream=True, stream_options={"include_usage": "yes"}), "stream_options.include_usage")


def test_usage_so_far_in_every_chunk(tiny: Server) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    stream = events(tiny.complete(stream=True, stream_options=options).content)
    counts = [event["usage"]["completion_tokens"] for event in stream]
    assert counts == sorted(counts) and counts[-1] == counts[-2] == 8 and counts[0] >= 1


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_H17_an_invalid_value_ends_a_stream_before_it_begins(tiny: Server, path: str) -> None:
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}]} if path == CHAT else {"prompt": "x"}
    refused(tiny.post(path, **body, stream=True, n=0), "n")
    refused(tiny.post(path, **body, stream=True, n=17), "n")


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_H22_text_that_comes_with_the_end(path: str) -> None:
    """One token only; and an answer that ends on its very first token."""
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}]} if path == CHAT else {"prompt": "x"}
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    with server(scripted_engine(endless("la"))) as one:
        stream = events(one.post(path, **body, max_tokens=1, **usage).content)
        assert joined(stream) and reasons(stream) == ["length"] and stream[-1]["usage"]["completion_tokens"] == 1
    with server(scripted_engine([])) as ends:
        stream = events(ends.post(path, **body, **usage).content)
        whole = ends.post(path, **body).json()
        assert joined(stream) == "" and reasons(stream) == ["stop"]
        assert stream[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"] == 1
        choice = whole["choices"][0]
        assert (choice["message"]["content"] if path == CHAT else choice["text"]) == ""
        assert choice["finish_reason"] == "stop" and choice["stop_reason"] is None


# --- ends ------------------------------------------------------------------------------------------------------------


def test_L17_every_end_token_of_the_checkpoint_ends_the_answer(tmp_path: Path, llm: LLM) -> None:
    ids = llm.chat("hello", SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)).token_ids
    path = write_checkpoint(
        tmp_path / "m", dtype=torch.float64, eos_token_id=IM_END, generation={"eos_token_id": [IM_END, ids[3]]}
    )
    with server(lambda: build_engine(EngineConfig(model=str(path), kv_blocks=64))) as ends:
        end = ids.index(ids[3])
        answer = ends.chat(return_token_ids=True).json()["choices"][0]
        assert answer["finish_reason"] == "stop" and answer["token_ids"] == list(ids[: end + 1])
        assert answer["message"]["content"] == tiny_tokenizer("chatml").decode(ids[:end])
        on = ends.chat(ignore_eos=True, return_token_ids=True).json()["choices"][0]
        assert on["finish_reason"] == "length" and on["token_ids"] == list(ids)


@pytest.mark.parametrize("end", [IM_END, 9])
def test_L19_ignore_eos_ignores_all_of_them(end: int) -> None:
    with server(scripted_engine(lambda prompt, k, choice: end, eos=(IM_END, 9))) as ends:
        for stream in (False, True):
            answer = ends.chat(ignore_eos=True, max_tokens=20, stream=stream)
            if stream:
                assert reasons(events(answer.content)) == ["length"]
            else:
                assert answer.json()["usage"]["completion_tokens"] == 20
        assert ends.chat(max_tokens=20).json()["usage"]["completion_tokens"] == 1


def test_stop_token_ids_and_min_tokens() -> None:
    with server(scripted_engine(ids_of("la la la la"), max_running=4)) as sung:
        stop = ids_of("la la")[1]
        choice = sung.chat(stop_token_ids=[stop], return_token_ids=True).json()["choices"][0]
        assert choice["finish_reason"] == "stop" and choice["stop_reason"] == stop
        assert choice["token_ids"][-1] == stop


# --- routes ----------------------------------------------------------------------------------------------------------


def test_H26_models(tiny: Server) -> None:
    card = tiny.http.get("/v1/models").json()["data"][0]
    assert set(card) == {"id", "object", "created", "owned_by", "root", "parent", "max_model_len"}
    assert "/" not in card["root"]  # where the folder lies on the server is nobody's affair
    assert card["max_model_len"] == 4096 and card["object"] == "model"
    for path in ("/v1/models/", "/models", "/models/"):
        assert tiny.http.get(path).json() == {"object": "list", "data": [card]}
    for name in ("Tiny-Instruct", "tiny-instruct", "tiny"):
        assert tiny.http.get(f"/v1/models/{name}").json() == card
    assert "nope" in refused(tiny.http.get("/v1/models/no/nope"), "model", "model_not_found", 404)
    for path in ("/v1/models", "/v1/models/tiny", "/health", "/models/"):
        head = tiny.http.head(path)
        assert head.status_code == 200 and head.content == b""
    assert tiny.http.head("/v1/nothing").status_code == 404
    assert tiny.http.get(f"{tiny.url}//v1/models").status_code in (200, 404)
    for path in ("/", "/v1", "/v1/embeddings", "/api/version", "/v1/responses", "/x" * 500, "/%00", "/v1/../etc"):
        assert error_of(tiny.http.get(path))["code"] == "not_found"


def test_wrong_methods(tiny: Server) -> None:
    answer = tiny.http.get(CHAT)
    refused(answer, code="method_not_allowed", status=405)
    assert "POST" in answer.headers["allow"]
    for method in ("PUT", "DELETE", "PATCH"):
        refused(tiny.http.request(method, "/v1/models"), code="method_not_allowed", status=405)
    assert tiny.http.request("OPTIONS", CHAT).status_code == 204


def test_paths_without_v1_answer_alike(tiny: Server) -> None:
    body = {"messages": [{"role": "user", "content": "hello"}], "temperature": 0, "max_tokens": 8}
    assert tiny.post("/chat/completions", **body).json()["choices"] == tiny.chat().json()["choices"]
    assert tiny.post("/completions", prompt="a", temperature=0).json()["object"] == "text_completion"


@pytest.mark.parametrize(
    ("name", "status"),
    [("Tiny-Instruct", 200), ("tiny-instruct", 200), ("tiny", 200), (None, 200), ("", 200), ("TINY", 404), ("x", 404)],
)
def test_model_names(tiny: Server, name: str | None, status: int) -> None:
    answer = tiny.chat(model=name, max_tokens=1)
    assert answer.status_code == status
    if status == 200:
        assert answer.json()["model"] == "Tiny-Instruct"


def test_any_model_and_served_names() -> None:
    with server(scripted_engine([5]), any_model=True, served_model_name="house") as open_:
        assert open_.chat(model="gpt-3.5-turbo").json()["model"] == "house"
        assert [c["id"] for c in open_.http.get("/v1/models").json()["data"]] == ["house"]
    with server(scripted_engine([5]), served_model_name="house", model="Qwen/Qwen2.5-0.5B-Instruct") as named:
        names = [
            "house",
            "Qwen/Qwen2.5-0.5B-Instruct",
            "Qwen2.5-0.5B-Instruct",
            "qwen2.5-0.5b-instruct",
            "qwen2.5-0.5b",
        ]
        assert [named.chat(model=name).status_code for name in names] == [200] * 5
        assert named.chat(model="Qwen").status_code == 404


def test_tokenize_and_detokenize(tiny: Server, llm: LLM) -> None:
    ids = llm.encode("hello there <|im_end|>")
    for name in ("prompt", "content"):
        answer = tiny.post("/tokenize", **{name: "hello there <|im_end|>"}).json()
        assert answer == {"tokens": ids, "count": len(ids), "max_model_len": 4096}
    messages = [{"role": "user", "content": "hello"}]
    assert tiny.post("/tokenize", messages=messages).json()["tokens"] == llm.encode_chat("hello")
    shorter = tiny.post("/tokenize", messages=messages, add_generation_prompt=False).json()["tokens"]
    assert len(shorter) < len(llm.encode_chat("hello"))
    text = {"prompt": "hello there <|im_end|>", "content": "hello there <|im_end|>"}
    assert tiny.post("/detokenize", tokens=ids).json() == text
    assert tiny.post("/tokenize", prompt="").json()["tokens"] == []
    refused(tiny.post("/tokenize"))
    refused(tiny.post("/tokenize", prompt="a", messages=messages))
    refused(tiny.post("/detokenize", tokens=[384]), "tokens")
    refused(tiny.post("/detokenize", tokens=[-1]), "tokens")
    refused(tiny.post("/detokenize", tokens=["a"]), "tokens.0")
    refused(tiny.post("/tokenize", prompt="a", model="x"), "model", status=404)


@pytest.mark.parametrize(
    "prompt", [[], [[]], "", [""], ["a", ""], ["a", 1], [[1], "a"], [1, [2]], [[1], []], 5, None, {}, [None], [1.5]]
)
def test_prompts_of_the_wrong_shape(tiny: Server, prompt: Any) -> None:
    answer = tiny.complete(prompt)
    assert answer.status_code == 400 and (error_of(answer)["param"] or "").startswith("prompt")


def test_lists_too_long_to_be_looked_at(tiny: Server) -> None:
    limit = tiny.engine.max_model_len
    message = refused(tiny.complete([7] * 1_000_000), "prompt", "context_length_exceeded")
    assert "1000000" in message and str(limit) in message
    refused(tiny.complete(["a"] * 10_000), "prompt", "invalid_value")
    refused(tiny.complete([[7]] * 10_000), "prompt", "invalid_value")
    refused(tiny.complete([7] * limit), "prompt", "context_length_exceeded")
    refused(tiny.post("/detokenize", tokens=[7, -1]), "tokens")
    refused(tiny.post("/detokenize", tokens=[10**30]), "tokens")


@pytest.mark.parametrize("wrong", [-1, 384, 10**30])
def test_ids_that_are_none_are_the_prompts_fault(tiny: Server, wrong: int) -> None:
    for ids in ([7, wrong], [[7], [wrong]], [7] * 300 + [wrong]):
        assert "0 to 383" in refused(tiny.complete(ids), "prompt", "invalid_value")


def test_prompts_of_every_shape(tiny: Server) -> None:
    ids = tiny.post("/tokenize", prompt="hello").json()["tokens"]
    texts = [tiny.complete(p).json()["choices"][0]["text"] for p in ("hello", ["hello"], ids, [ids])]
    assert len(set(texts)) == 1
    two = tiny.complete([ids, ids[:1]]).json()
    assert [c["index"] for c in two["choices"]] == [0, 1] and two["choices"][0]["text"] == texts[0]
    assert two["usage"]["prompt_tokens"] == len(ids) + 1 and two["usage"]["completion_tokens"] == 16
    refused(tiny.complete([384]))
    refused(tiny.complete([-1]))
    refused(tiny.complete(["a"] * 1000), "prompt")


def test_token_ids(tiny: Server, llm: LLM) -> None:
    right = llm.chat("hello", SamplingParams(temperature=0, max_tokens=8))
    whole = tiny.chat(return_token_ids=True).json()
    assert whole["prompt_token_ids"] == llm.encode_chat("hello")
    assert whole["choices"][0]["token_ids"] == list(right.token_ids)
    assert "prompt_token_ids" not in tiny.chat().json() and "token_ids" not in tiny.chat().json()["choices"][0]
    for ask in (tiny.chat, tiny.complete):
        stream = events(ask(return_token_ids=True, stream=True).content)
        ids = [i for e in stream for i in e["choices"][0].get("token_ids", [])]
        whole = ask(return_token_ids=True).json()
        assert ids == whole["choices"][0]["token_ids"]
        firsts = [e for e in stream if "prompt_token_ids" in json.dumps(e)]
        assert len(firsts) == 1


def test_timings(tiny: Server) -> None:
    for stream in (False, True):
        answer = tiny.chat(stream=stream)
        timings = events(answer.content)[-1]["timings"] if stream else answer.json()["timings"]
        assert timings["predicted_n"] == 8 and timings["prompt_ms"] > 0 and timings["predicted_ms"] > 0
        assert timings["queued_ms"] >= 0 and timings["prompt_n"] + timings["cache_n"] == 21
