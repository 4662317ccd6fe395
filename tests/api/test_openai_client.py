"""The real `openai` client against a real socket."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import openai
import pytest

from mini_infer.llm import LLM
from mini_infer.sampling.params import SamplingParams
from tests.api.support import MODEL, Server, endless, scripted_engine, server
from tests.support.engines import tiny_tokenizer

HELLO: Any = [{"role": "user", "content": "hello"}]


def ask(tiny: Server, **more: Any) -> Any:
    return tiny.openai().chat.completions.create(
        **{"model": "tiny-instruct", "messages": HELLO, "temperature": 0, "max_tokens": 12} | more
    )


def expected(llm: LLM, **more: Any) -> Any:
    return llm.chat("hello", SamplingParams(**{"temperature": 0, "max_tokens": 12} | more))


def test_chat(tiny: Server, llm: LLM) -> None:
    answer, right = ask(tiny), expected(llm)
    choice = answer.choices[0]
    assert (choice.message.role, choice.message.content) == ("assistant", right.text)
    assert choice.finish_reason == right.finish_reason
    assert answer.id.startswith("chatcmpl-") and answer.object == "chat.completion"
    assert answer.model == "Tiny-Instruct" and answer.system_fingerprint.startswith("fp_")
    assert answer.usage.prompt_tokens == right.usage.prompt_tokens
    assert answer.usage.completion_tokens == len(right.token_ids)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer._request_id.startswith("req-")


def test_chat_stream_says_the_same(tiny: Server, llm: LLM) -> None:
    with ask(tiny, stream=True, stream_options={"include_usage": True}) as stream:
        chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == expected(llm).text
    assert chunks[0].choices[0].delta.role == "assistant" and chunks[0].choices[0].delta.content == ""
    assert all(c.choices[0].delta.role is None for c in chunks[1:-1])
    assert len({c.id for c in chunks}) == len({c.created for c in chunks}) == 1
    assert chunks[-2].choices[0].finish_reason == expected(llm).finish_reason
    assert chunks[-1].choices == [] and chunks[-1].usage == ask(tiny).usage.model_copy(
        update={"prompt_tokens_details": chunks[-1].usage.prompt_tokens_details}
    )


def test_chat_stream_helper(tiny: Server, llm: LLM) -> None:
    """The client's own accumulator, which is stricter than its plain stream: an end by length is an error to it."""
    stop = expected(llm).text[6:8]
    right = expected(llm, stop=stop)
    asked: Any = {"model": "tiny-instruct", "messages": HELLO, "temperature": 0, "max_tokens": 12, "logprobs": True}
    with tiny.openai().chat.completions.stream(**asked, stop=stop) as stream:
        assert "".join(e.delta for e in stream if e.type == "content.delta") == right.text
        final = stream.get_final_completion()
    assert final.choices[0].message.content == right.text and final.choices[0].finish_reason == "stop"
    assert len(final.choices[0].logprobs.content) == len(right.token_ids)


@pytest.mark.parametrize("n", [2, 3])
def test_n_seeded_choices(tiny: Server, llm: LLM, n: int) -> None:
    more = {"n": n, "seed": 7, "temperature": 1.0}
    right = expected(llm, **more)
    assert len({c.text for c in right.choices}) == n
    answer = ask(tiny, **more)
    assert [c.index for c in answer.choices] == list(range(n))
    assert [c.message.content for c in answer.choices] == [c.text for c in right.choices]
    assert answer.usage.completion_tokens == right.usage.completion_tokens
    assert answer.usage.prompt_tokens == right.usage.prompt_tokens

    texts, ends, roles = [""] * n, [0] * n, [0] * n
    with ask(tiny, stream=True, **more) as stream:
        for chunk in stream:
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
                ends[choice.index] += choice.finish_reason is not None
                roles[choice.index] += choice.delta.role is not None
    assert texts == [c.text for c in right.choices] and ends == roles == [1] * n


def test_logprobs(tiny: Server) -> None:
    answer = ask(tiny, logprobs=True, top_logprobs=3)
    content = answer.choices[0].logprobs.content
    assert len(content) == answer.usage.completion_tokens
    data = b"".join(bytes(entry.bytes) for entry in content if entry.bytes is not None)
    assert data.decode(errors="replace") == answer.choices[0].message.content
    for entry in content:
        values = [top.logprob for top in entry.top_logprobs]
        assert len(values) == 3 and values == sorted(values, reverse=True)
        assert entry.logprob == values[0], "greedy takes the likeliest"

    streamed = []
    with ask(tiny, logprobs=True, top_logprobs=3, stream=True) as stream:
        for chunk in stream:
            if chunk.choices and chunk.choices[0].logprobs:
                streamed += chunk.choices[0].logprobs.content
    assert streamed == content


def test_stop(tiny: Server, llm: LLM) -> None:
    whole = expected(llm).text
    stop = whole[3:5]
    for stops in (stop, [stop, "never"]):
        answer = ask(tiny, stop=stops)
        assert answer.choices[0].message.content == whole[: whole.index(stop)]
        assert answer.choices[0].finish_reason == "stop"
        assert answer.choices[0].stop_reason == stop
    kept = ask(tiny, stop=stop, extra_body={"include_stop_str_in_output": True})
    assert kept.choices[0].message.content == whole[: whole.index(stop)] + stop


def test_seed_repeats_and_differs(tiny: Server) -> None:
    def text(seed: int) -> str:
        return str(ask(tiny, temperature=1.5, seed=seed).choices[0].message.content)

    assert text(1) == text(1) == text(1 + 2**64)
    assert len({text(seed) for seed in range(6)}) > 3


def test_penalties_and_bias_reach_the_engine(tiny: Server, llm: LLM) -> None:
    for more in ({"presence_penalty": 2.0}, {"frequency_penalty": -2.0}, {"logit_bias": {"70": 5}}):
        right = expected(llm, **{k: {70: 5.0} if k == "logit_bias" else v for k, v in more.items()})
        assert ask(tiny, **more).choices[0].message.content == right.text
    for more in ({"repetition_penalty": 1.7, "seed": 5}, {"top_k": 3, "seed": 5}, {"min_p": 0.2, "seed": 5}):
        right = expected(llm, temperature=1.0, **more)
        assert ask(tiny, temperature=1.0, extra_body=more).choices[0].message.content == right.text


def test_completions(tiny: Server, llm: LLM) -> None:
    with nullcontext(tiny.openai()) as client:
        params = SamplingParams(temperature=0, max_tokens=9)
        answer = client.completions.create(model="tiny", prompt="hello", temperature=0, max_tokens=9)
        assert answer.choices[0].text == llm.generate("hello", params).text
        assert answer.object == "text_completion" and answer.id.startswith("cmpl-")
        assert client.completions.create(model="tiny", prompt="hello", temperature=0).usage.completion_tokens == 16
        many = client.completions.create(
            model="tiny", prompt=["hello", "other"], temperature=1, seed=3, n=2, max_tokens=9
        )
        seeded = SamplingParams(temperature=1, max_tokens=9, seed=3, n=2)
        right = [c.text for r in llm.generate(["hello", "other"], seeded) for c in r.choices]
        assert [c.text for c in many.choices] == right
        assert [c.index for c in many.choices] == [0, 1, 2, 3]
        stream = client.completions.create(
            model="tiny", prompt=["hello", "other"], temperature=1, seed=3, n=2, max_tokens=9, stream=True
        )
        texts = [""] * 4
        for chunk in stream:
            for choice in chunk.choices:
                texts[choice.index] += choice.text
        assert texts == right


def test_models(tiny: Server) -> None:
    with nullcontext(tiny.openai()) as client:
        cards = list(client.models.list())
        assert [c.id for c in cards] == ["Tiny-Instruct"] and cards[0].owned_by == "mini-infer"
        assert isinstance(cards[0].created, int) and client.models.retrieve("tiny").created == cards[0].created
    with server(scripted_engine([])) as slashed, nullcontext(slashed.openai()) as client:
        assert client.models.retrieve(MODEL).id == MODEL, "the client writes the slash as %2F"


# --- errors: serving.md §1.5, and the exception the client documents for each ---------------------------------------


@pytest.mark.parametrize(
    ("more", "kind", "code", "param"),
    [
        ({"temperature": 3}, openai.BadRequestError, "invalid_value", "temperature"),
        ({"max_tokens": "12"}, openai.BadRequestError, "invalid_type", "max_tokens"),
        ({"messages": [{"content": "x"}]}, openai.BadRequestError, "missing_required_parameter", "messages.0.role"),
        ({"tools": [{"type": "function"}]}, openai.BadRequestError, "unsupported_parameter", "tools"),
        ({"response_format": {"type": "json_object"}}, openai.BadRequestError, "unsupported_parameter", None),
        ({"model": "gpt-4o"}, openai.NotFoundError, "model_not_found", "model"),
        (
            {"messages": [{"role": "user", "content": "z y " * 4000}]},
            openai.BadRequestError,
            "context_length_exceeded",
            "messages",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_bad_request_is_raised_as_documented(
    tiny: Server, more: Any, kind: Any, code: str, param: str | None, stream: bool
) -> None:
    with pytest.raises(kind) as raised:
        ask(tiny, stream=stream, **more)
    assert raised.value.code == code
    assert raised.value.type == "invalid_request_error"
    assert param is None or raised.value.param == param
    assert raised.value.request_id.startswith("req-")


def test_a_wrong_key_is_an_authentication_error() -> None:
    with server(scripted_engine([5]), api_key="right") as locked:
        with locked.openai(api_key="wrong") as client, pytest.raises(openai.AuthenticationError) as raised:
            client.models.list()
        assert raised.value.code == "invalid_api_key" and raised.value.status_code == 401
        with locked.openai(api_key="right") as client:
            assert client.models.list().data[0].id == MODEL


def test_a_full_queue_is_a_rate_limit_error_and_the_client_tries_again() -> None:
    engine = scripted_engine(endless(), step_s=0.005, max_running=1)
    with server(engine, max_waiting=0) as busy, nullcontext(busy.openai()) as client:
        stream = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=150, stream=True)
        next(iter(stream))
        with pytest.raises(openai.RateLimitError) as raised:
            client.chat.completions.create(model=MODEL, messages=HELLO)
        assert raised.value.code == "queue_full" and raised.value.response.headers["retry-after"] == "1"
        patient = client.with_options(max_retries=4)
        answer = patient.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=2)
        assert answer.usage.completion_tokens == 2
        stream.close()


def test_a_loading_model_is_an_internal_server_error_with_503() -> None:
    import threading

    gate = threading.Event()

    def build() -> Any:
        assert gate.wait(20)
        return scripted_engine([5])

    with server(build, ready=False) as loading:
        try:
            with nullcontext(loading.openai()) as client, pytest.raises(openai.InternalServerError) as raised:
                client.models.list()
            assert raised.value.status_code == 503 and raised.value.code == "model_loading"
            assert raised.value.response.headers["retry-after"] == "1"
            assert loading.http.get("/health").status_code == 503
            assert loading.http.get("/health/ready").json() == {"status": "loading"}
        finally:
            gate.set()


def test_a_failed_generation_is_not_tried_again() -> None:
    calls = []

    def script(prompt: Any, k: int, choice: int) -> int:
        calls.append(k)
        return -1

    with server(scripted_engine(script)) as failing, failing.openai(max_retries=3) as client:
        with pytest.raises(openai.InternalServerError) as raised:
            client.chat.completions.create(model=MODEL, messages=HELLO)
        assert raised.value.code == "internal_error" and raised.value.type == "server_error"
        assert len(calls) == 1


def test_an_error_within_a_stream_is_an_api_error() -> None:
    ids = tiny_tokenizer("chatml").encode("well then", allow_special=False)
    with server(scripted_engine(lambda prompt, k, choice: ids[k] if k < 2 else -1)) as failing:
        got = ""
        with nullcontext(failing.openai()) as client, pytest.raises(openai.APIError) as raised:
            for chunk in client.chat.completions.create(model=MODEL, messages=HELLO, stream=True):
                got += chunk.choices[0].delta.content or ""
        assert got and "made to fail" in str(raised.value)
        assert raised.value.code == "internal_error"


def test_other_statuses(tiny: Server) -> None:
    with nullcontext(tiny.openai()) as client:
        with pytest.raises(openai.NotFoundError) as missing:
            client.embeddings.create(model="tiny", input="x")
        assert missing.value.code == "not_found"
        with pytest.raises(openai.APIStatusError) as wrong:
            client.models.delete("tiny")
        assert wrong.value.status_code == 405 and wrong.value.code == "method_not_allowed"


def test_responses_are_a_404_for_now(tiny: Server) -> None:
    with nullcontext(tiny.openai()) as client, pytest.raises(openai.NotFoundError):
        client.responses.create(model="tiny", input="x")
