"""LangChain, curl, plain urllib and httpx, as people use them."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.error
import urllib.request
from typing import Any

import httpx
import pytest

from mini_infer.llm import LLM
from mini_infer.sampling.params import SamplingParams
from tests.api.support import Server, events, ids_of, joined, scripted_engine, server


def right(llm: LLM, text: str = "hello", count: int = 10) -> str:
    return llm.chat(text, SamplingParams(temperature=0, max_tokens=count)).text


@pytest.fixture(scope="module")
def _langchain() -> Any:
    return pytest.importorskip("langchain_openai", reason='pip install -e ".[dev]"').ChatOpenAI


@pytest.fixture
def chat(tiny: Server, _langchain: Any) -> Any:
    return _langchain(
        model="tiny", base_url=f"{tiny.url}/v1", api_key="none", temperature=0, max_tokens=10, max_retries=0
    )


def test_langchain_invoke(chat: Any, llm: LLM) -> None:
    answer = chat.invoke("hello")
    assert answer.content == right(llm)
    assert answer.usage_metadata["output_tokens"] == 10 and answer.usage_metadata["input_tokens"] > 5
    assert answer.response_metadata["finish_reason"] == "length"


def test_langchain_stream(chat: Any, llm: LLM) -> None:
    chunks = list(chat.stream("hello", stream_usage=True))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    assert whole.content == right(llm)
    assert whole.usage_metadata["output_tokens"] == 10, "it sums what it gets"


def test_langchain_batch(chat: Any, llm: LLM) -> None:
    texts = ["hello", "other words", "a third"]
    assert [a.content for a in chat.batch(texts)] == [right(llm, text) for text in texts]


def test_langchain_async(tiny: Server, _langchain: Any, llm: LLM) -> None:
    import asyncio

    async def run() -> tuple[str, str]:
        model = _langchain(
            model="tiny", base_url=f"{tiny.url}/v1", api_key="none", temperature=0, max_tokens=10, max_retries=0
        )
        streamed = "".join([c.content async for c in model.astream("hello")])
        return (await model.ainvoke("hello")).content, streamed

    assert asyncio.run(run()) == (right(llm), right(llm))


def test_langchain_knows_a_context_that_is_full(chat: Any) -> None:
    with pytest.raises(Exception) as raised:
        chat.invoke("z y " * 4000)
    said = str(raised.value).lower()
    assert "context_length_exceeded" in said and "prompt is too long" in said
    assert "this model's maximum context length is 4096 tokens" in said
    assert type(raised.value).__name__ == "OpenAIContextOverflowError"


def test_langchain_hears_that_schemas_are_not_supported(chat: Any) -> None:
    schema = {"title": "a", "description": "b", "type": "object", "properties": {"x": {"type": "integer"}}}
    with pytest.raises(Exception, match="is not supported with this model") as raised:
        chat.with_structured_output(schema, method="json_schema").invoke("hello")
    assert getattr(raised.value, "status_code", None) == 400


def test_curl(tiny: Server, llm: LLM) -> None:
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("curl is not installed")
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 10, "temperature": 0}

    def run(*args: str) -> str:
        command = [curl, "-sS", "--noproxy", "*", "--max-time", "20", *args]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout

    url, kind = f"{tiny.url}/v1/chat/completions", ("-H", "Content-Type: application/json")
    answer = json.loads(run(url, *kind, "-d", json.dumps(body)))
    assert answer["choices"][0]["message"]["content"] == right(llm)
    streamed = run("-N", url, *kind, "-d", json.dumps(body | {"stream": True}))
    assert joined(events(streamed)) == right(llm)
    forgot = json.loads(run(url, "-d", json.dumps(body)))
    assert forgot["error"]["code"] == "unsupported_media_type" and "Content-Type" in forgot["error"]["message"]


def test_urllib(tiny: Server, llm: LLM) -> None:
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 10, "temperature": 0}
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def ask(**more: Any) -> Any:
        request = urllib.request.Request(
            f"{tiny.url}/v1/chat/completions",
            data=json.dumps(body | more).encode(),
            headers={"Content-Type": "application/json"},
        )
        return opener.open(request, timeout=20)

    with ask() as answer:
        assert json.load(answer)["choices"][0]["message"]["content"] == right(llm)
    text = ""
    with ask(stream=True) as answer:
        for line in answer:
            if line.startswith(b"data: {"):
                text += json.loads(line[6:])["choices"][0]["delta"].get("content", "")
    assert text == right(llm)
    with pytest.raises(urllib.error.HTTPError) as raised:
        ask(max_tokens=0)
    assert json.load(raised.value)["error"]["param"] == "max_tokens"


def test_httpx_lines_survive_odd_line_ends() -> None:
    """Some clients take U+2028, U+2029 and U+0085 for the end of a line."""
    text = "a\u2028b\u2029c\u0085d\r\ne\x0bf\x1cg"
    with server(scripted_engine(ids_of(text))) as odd:
        body = {"messages": [{"role": "user", "content": "x"}], "stream": True}
        got = ""
        with odd.http.stream("POST", "/v1/chat/completions", json=body) as response:
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    got += json.loads(line[6:])["choices"][0]["delta"].get("content", "")
        assert got == text
        assert odd.chat(max_tokens=100).json()["choices"][0]["message"]["content"] == text


def test_one_connection_serves_many_requests(tiny: Server) -> None:
    with httpx.Client(base_url=tiny.url, limits=httpx.Limits(max_connections=1), trust_env=False) as client:
        ports = set()
        for number in range(6):
            body = {"prompt": "x", "max_tokens": 2, "stream": number % 2 == 0}
            with client.stream("POST", "/v1/completions", json=body) as response:
                ports.add(response.extensions["network_stream"].get_extra_info("client_addr"))
                response.read()
                assert response.status_code == 200
        assert len(ports) == 1
