"""Whatever JSON comes, no answer is a 5xx, the server lives, and nothing stays behind."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mini_infer.api.schemas import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest
from tests.api.support import Server, error_of, server
from tests.support.engines import tiny_engine

ROUTES: dict[str, Any] = {
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
}

numbers = st.one_of(
    st.integers(-3, 25),
    st.integers(),
    st.integers(10**18, 10**40),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([0, -0.0, 1e-320, 1e308, -1e308, 2**31, 2**63, 2**64, -(2**63), 0.1, 1.5, 2.0]),
)
texts = st.one_of(
    st.text(max_size=20), st.sampled_from(["", "user", "system", "text", "a", "\x00", "<|im_end|>", "😀"])
)
scalars = st.one_of(st.none(), st.booleans(), numbers, texts)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=8,
)
messages = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "role": st.one_of(st.sampled_from(["user", "system", "assistant", "tool", "developer"]), values),
            "content": st.one_of(texts, st.lists(st.fixed_dictionaries({"type": texts, "text": texts})), values),
            "tool_calls": st.one_of(st.none(), st.lists(st.dictionaries(texts, values, max_size=2), max_size=2)),
            "name": values,
        },
    ),
    max_size=3,
)
plausible: dict[str, st.SearchStrategy[Any]] = {
    "messages": messages,
    "prompt": st.one_of(texts, st.lists(texts, max_size=3), st.lists(st.integers(-2, 400), max_size=5)),
    "tokens": st.lists(st.integers(-2, 400), max_size=5),
    "temperature": st.floats(0, 2),
    "top_p": st.floats(0, 1),
    "top_k": st.integers(-1, 500),
    "min_p": st.floats(0, 1),
    "repetition_penalty": st.one_of(st.floats(0.01, 10), st.sampled_from([1e-300, 1e300, 5e-324, 1.7e308])),
    "presence_penalty": st.floats(-2, 2),
    "frequency_penalty": st.floats(-2, 2),
    "logit_bias": st.dictionaries(st.integers(0, 383).map(str), st.floats(-100, 100), max_size=4),
    "n": st.integers(1, 4),
    "stop": st.one_of(st.text(min_size=1, max_size=3), st.lists(st.text(min_size=1, max_size=3), max_size=4)),
    "stop_token_ids": st.lists(st.integers(0, 383), max_size=3),
    "min_tokens": st.integers(0, 6),
    "seed": numbers,
    "logprobs": st.one_of(st.booleans(), st.integers(0, 20)),
    "top_logprobs": st.integers(0, 20),
    "stream": st.booleans(),
    "stream_options": st.fixed_dictionaries({"include_usage": st.booleans(), "continuous_usage_stats": st.booleans()}),
    "model": st.none(),
    "chat_template_kwargs": st.dictionaries(st.sampled_from(["a", "add_generation_prompt", "tools", "x y"]), values),
}
limit = {"max_tokens": st.integers(1, 6), "max_completion_tokens": st.integers(1, 6)}


def bodies(kind: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with this schema's fields, most values plausible, some not, and a few fields nobody knows."""

    def field(name: str) -> st.SearchStrategy[Any]:
        usual = plausible.get(name, values)
        if name in limit:
            usual = limit[name]
        return st.one_of(usual, usual, usual, values) if name not in limit else usual

    known = st.fixed_dictionaries({}, optional={name: field(name) for name in kind.__struct_fields__})
    extra = st.dictionaries(
        st.one_of(texts, st.sampled_from(["tools", "tool_choice", "response_format", "echo", "best_of", "user"])),
        values,
        max_size=2,
    )
    small = st.fixed_dictionaries({"max_tokens": st.integers(1, 6)} if "max_tokens" in kind.__struct_fields__ else {})
    required = st.fixed_dictionaries(
        {n: field(n) for n in ("messages", "prompt", "tokens") if n in kind.__struct_fields__}
    )
    return st.builds(lambda a, b, c, d: {**a, **b, **c, **d}, extra, known, st.one_of(required, st.just({})), small)


@pytest.fixture(scope="module")
def served() -> Iterator[Server]:
    with server(lambda: tiny_engine(text="chatml", num_blocks=64), strict_params=False) as running:
        yield running


def check(served: Server, path: str, content: bytes) -> None:
    answer = served.http.post(path, content=content, headers={"content-type": "application/json"})
    assert answer.status_code in (200, 400, 404, 413, 415, 429, 503), (answer.text[:300], content[:500])
    if answer.status_code != 200:
        error_of(answer)
    elif answer.headers["content-type"].startswith("text/event-stream"):
        assert answer.content.endswith(b"data: [DONE]\n\n") and b'{"error"' not in answer.content, content
    else:
        json.loads(answer.content)


calm = settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)


@pytest.mark.parametrize("path", ROUTES)
def test_random_objects_of_the_schema(served: Server, path: str) -> None:
    @calm
    @given(bodies(ROUTES[path]))
    def run(body: dict[str, Any]) -> None:
        check(served, path, json.dumps(body).encode())

    run()
    served.wait_idle()


@pytest.mark.parametrize("path", ROUTES)
def test_random_json(served: Server, path: str) -> None:
    @settings(calm, max_examples=40)
    @given(st.one_of(values, st.dictionaries(texts, values, max_size=5)))
    def run(value: Any) -> None:
        check(served, path, json.dumps(value).encode())

    run()


@settings(calm, max_examples=40)
@given(st.one_of(st.binary(max_size=60), st.text('{}[]":,\\u0123e.-ntf \n', max_size=40).map(str.encode)))
def test_random_bytes(served: Server, content: bytes) -> None:
    check(served, "/v1/completions", content)


@pytest.mark.parametrize(
    "make",
    [
        lambda: b'{"prompt": "' + b"x" * 20_000_000 + b'"}',
        lambda: b'{"messages": [{"role": "user", "content": "' + b"y " * 4_500_000 + b'"}]}',
        lambda: b'{"prompt": [' + b"7," * 4_000_000 + b'7], "tokens": [' + b"7," * 500_000 + b"7]}",
        lambda: b'{"stop": [' + b'"a",' * 2_000_000 + b'"a"], "prompt": "a", "messages": []}',
        lambda: json.dumps({"prompt": "a", "stop_token_ids": [7] * 1_000_000}).encode(),
        lambda: json.dumps({"prompt": "a", "logit_bias": {str(i): 1 for i in range(100_000)}}).encode(),
        lambda: json.dumps({"prompt": "a", **{f"field{i}": i for i in range(100_000)}}).encode(),
        lambda: b'{"prompt": "a", "seed": 1' + b"0" * 5_000 + b"}",
        lambda: b'{"prompt": "a", "x": ' + b"[" * 4_000_000 + b"}",
        lambda: b" " * 9_000_000,
    ],
)
def test_huge_bodies(served: Server, make: Any) -> None:
    body = make()
    for path in ROUTES:
        check(served, path, body)
    assert served.http.get("/health").status_code == 200


def test_the_server_is_as_it_was(served: Server) -> None:
    served.wait_idle()
    assert served.state().totals.error == 0 and served.state().totals.faults == 0
    assert served.chat().json()["usage"]["completion_tokens"] == 8
