"""Shared prefixes, small pools and drafts over HTTP: they change the time an answer takes, and nothing else."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from mini_infer.build import build_engine
from mini_infer.config import EngineConfig
from mini_infer.llm import LLM
from mini_infer.sampling.params import SamplingParams
from tests.api.support import (
    Server,
    at_once,
    events,
    joined,
    server,
)
from tests.support.engines import prompt, tiny_engine

GREEDY = {"temperature": 0, "ignore_eos": True}


def test_cache_salts_never_share() -> None:
    with server() as served:
        long = "a prefix of some length that fills blocks, more than two of them, to be sure"

        def cached(salt: str | None) -> int:
            usage = served.complete(long, max_tokens=1, cache_salt=salt).json()["usage"]
            return int(usage["prompt_tokens_details"]["cached_tokens"])

        assert cached(None) == 0
        first = cached(None)
        assert first >= 32
        assert [cached("a"), cached("b")] == [0, 0]
        assert cached("a") == cached("b") == cached(None) == cached("") == first
        texts = {served.complete(long, cache_salt=salt).json()["choices"][0]["text"] for salt in (None, "a", "b")}
        assert len(texts) == 1


def test_S01_an_all_hit_prompt(tiny: Server) -> None:
    ids = prompt(32, seed=101)
    first, again = (tiny.complete(ids, logprobs=3, **GREEDY).json() for _ in range(2))
    assert first["choices"] == again["choices"]
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 16


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("caching", "right"), [(True, [0, 48, 48, 0]), (False, [0, 0, 0, 0])])
def test_S15_cached_tokens(stream: bool, caching: bool, right: list[int]) -> None:
    ids = prompt(50, seed=7)
    tries = [ids, ids, [*ids[:-1], (ids[-1] + 1) % 300], [(ids[0] + 1) % 300, *ids[1:]]]
    with server(tiny_engine(text="chatml", prefix_cache=caching)) as served:
        found = []
        for one in tries:
            options = {"include_usage": True} if stream else None
            answer = served.complete(one, stream=stream, stream_options=options)
            usage = events(answer.content)[-1]["usage"] if stream else answer.json()["usage"]
            found.append(usage["prompt_tokens_details"]["cached_tokens"])
    assert found == right


def test_S13_many_different_prompts_through_a_small_pool() -> None:
    with server(tiny_engine(num_blocks=12, text="chatml")) as small:
        for seed in range(30):
            assert small.complete(prompt(100, seed=seed), max_tokens=2).status_code == 200
        state = small.state()
        assert state.totals.evictions > 0 and small.is_idle()
        assert "mini_infer_kv_block_evictions_total 0.0" not in small.http.get("/metrics").text


def test_S18_lengths_around_the_block_size(tiny: Server, llm: LLM) -> None:
    lengths, counts = (1, 15, 16, 17, 31, 32, 33), (1, 15, 16, 17)
    for length, count in itertools.product(lengths, counts):
        ids = prompt(length, seed=1000 + length)
        right = llm.generate(ids, SamplingParams(temperature=0, max_tokens=count, ignore_eos=True))
        for _ in range(2):
            choice = tiny.complete(ids, max_tokens=count, ignore_eos=True, return_token_ids=True).json()["choices"][0]
            assert choice["token_ids"] == list(right.token_ids) and choice["text"] == right.text


def test_S21_tails_do_not_push_prefixes_out() -> None:
    with server(tiny_engine(num_blocks=12, text="chatml")) as small:
        prompts = [prompt(65, seed=1), prompt(65, seed=2)]
        found = [
            small.complete(prompts[i % 2], max_tokens=1).json()["usage"]["prompt_tokens_details"]["cached_tokens"]
            for i in range(20)
        ]
        assert found[:2] == [0, 0] and set(found[2:]) == {64}


@pytest.mark.parametrize("draft", ["same", "ngram"])
def test_P_speculation_changes_nothing_a_client_sees(folder: Path, draft: str) -> None:
    """With drafts and without: the same text, usage and log-probabilities; the drafts are told in `timings`."""
    options = EngineConfig(
        model=str(folder), kv_blocks=256, draft=str(folder) if draft == "same" else draft, draft_tokens=4, threads=1
    )
    asked: list[dict[str, Any]] = [
        {"max_tokens": 60, "logprobs": 2},
        {"max_tokens": 60, "temperature": 1, "seed": 4, "n": 2},
        {"max_tokens": 60, "stop": "t"},
    ]
    text = " ".join(["one two three four"] * 12)
    with server() as plain:
        right = [plain.complete(text, ignore_eos=True, **more).json() for more in asked]
    with server(lambda: build_engine(options)) as quick:
        found = [quick.complete(text, ignore_eos=True, **more).json() for more in asked]
        streamed = [events(quick.complete(text, ignore_eos=True, stream=True, **more).content) for more in asked]
    for one, other, stream in zip(right, found, streamed, strict=True):
        for a, b in zip(one["choices"], other["choices"], strict=True):
            assert a["text"] == b["text"] == joined(stream, a["index"]) and a["finish_reason"] == b["finish_reason"]
            if a["logprobs"]:
                assert a["logprobs"]["tokens"] == b["logprobs"]["tokens"]
                pairs = zip(a["logprobs"]["token_logprobs"], b["logprobs"]["token_logprobs"], strict=True)
                assert all(abs(x - y) < 1e-9 for x, y in pairs)
        assert one["usage"]["completion_tokens"] == other["usage"]["completion_tokens"]
        assert "draft_n" not in one["timings"]
    if draft == "same":
        assert all(other["timings"]["draft_n_accepted"] > 10 for other in found)


def test_P03_greedy_and_sampled_requests_in_one_batch_with_drafts(folder: Path) -> None:
    options = EngineConfig(model=str(folder), kv_blocks=256, draft=str(folder), draft_tokens=4, threads=1)
    temperatures = [0, 0.7, 1e-6, 0, 2.0, 1e-6]
    with server(lambda: build_engine(options)) as quick:
        mixed = at_once(
            6, lambda i: quick.complete("one two", temperature=temperatures[i], max_tokens=30, ignore_eos=True)
        )
        assert [a.status_code for a in mixed] == [200] * 6
        for answer in mixed:
            timings = answer.json()["timings"]
            assert 0 <= timings["draft_n_accepted"] <= timings["draft_n"]
    with server() as plain:
        greedy = plain.complete("one two", max_tokens=30, ignore_eos=True).json()["choices"]
    assert [mixed[i].json()["choices"] == greedy for i in (0, 2, 3, 5)] == [True] * 4


def test_P13_drafts_stop_at_the_end_of_the_context(folder: Path) -> None:
    asked = {"max_tokens": 1000, "ignore_eos": True, "return_token_ids": True}
    found = []
    for drafts in ({}, {"draft": str(folder), "draft_tokens": 8}):
        options = EngineConfig(model=str(folder), kv_blocks=64, max_model_len=128, threads=1, **drafts)
        with server(lambda options=options: build_engine(options)) as short:  # type: ignore[misc]
            answers = [short.complete(prompt(length), **asked).json() for length in range(120, 128)]
            found.append([a["choices"][0]["token_ids"] for a in answers])
            assert all(a["choices"][0]["finish_reason"] == "length" for a in answers)
            assert [a["usage"]["total_tokens"] for a in answers] == [128] * 8
    assert found[0] == found[1]
