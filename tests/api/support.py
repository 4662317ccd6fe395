"""Servers on real sockets, in this process: on the tiny checkpoint, and on a model whose answers are written down."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np

from mini_infer.api.options import ServerOptions
from mini_infer.api.server import Server as UvicornServer
from mini_infer.api.server import running
from mini_infer.api.serving import Serving
from mini_infer.config import EngineConfig
from mini_infer.engine import InferenceEngine
from mini_infer.observe.state import EngineState, decode_state
from mini_infer.sampling.rows import SampleRow, Verdict
from mini_infer.text.tokenizer import Tokenizer
from tests.support.checkpoints import IM_END, VOCAB
from tests.support.engines import tiny_engine, tiny_tokenizer
from tests.support.fake import FakeRunner

MODEL = "Org/Tiny-Instruct"


class Server:
    """A running server: its URL, what is behind it, and short ways to ask it."""

    def __init__(self, uvicorn: UvicornServer) -> None:
        self.uvicorn, self.serving, self.url = uvicorn, uvicorn.serving, uvicorn.url
        self.http = httpx.Client(base_url=self.url, timeout=30, trust_env=False)
        self._openai: Any = None

    @property
    def engine(self) -> InferenceEngine:
        return self.serving.service.engine

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def openai(self, **more: Any) -> Any:
        """The `openai` client; without arguments always the same one, closed with the server."""
        import openai

        if not more and self._openai is not None:
            return self._openai
        settings = {"api_key": "none", "max_retries": 0, "timeout": 30, **more}
        client = openai.OpenAI(base_url=f"{self.url}/v1", **settings)
        self._openai = self._openai or (None if more else client)
        return client

    def close(self) -> None:
        self.http.close()
        if self._openai is not None:
            self._openai.close()

    def serving_loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of the server."""
        assert self.uvicorn.loop is not None
        return self.uvicorn.loop

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.http.post(path, json=body)

    def chat(self, text: str = "hello", **more: Any) -> httpx.Response:
        body = {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 8} | more
        return self.post("/v1/chat/completions", **body)

    def complete(self, prompt: Any = "hello", **more: Any) -> httpx.Response:
        return self.post("/v1/completions", **{"prompt": prompt, "temperature": 0, "max_tokens": 8} | more)

    def state(self) -> EngineState:
        """The engine's state over HTTP."""
        return decode_state(self.http.get("/v1/engine/state").content)

    def is_idle(self) -> bool:
        state = self.state()
        return not state.sequences and state.pool.used == 0

    def wait_idle(self, limit_s: float = 60.0) -> None:
        wait(self.is_idle, "the pool idle", limit_s)


def wait(condition: Callable[[], bool], what: str, limit_s: float = 60.0) -> None:
    """Poll until the condition holds."""
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, f"not {what} within {limit_s} s"
        time.sleep(0.005)


@contextmanager
def server(
    build: Callable[[], InferenceEngine] | InferenceEngine | None = None,
    *,
    ready: bool = True,
    model: str = MODEL,
    **options: Any,
) -> Iterator[Server]:
    """A server on this engine, by default the tiny checkpoint in float64; `options` are the server's."""
    engine = build if build is not None else tiny_engine(num_blocks=256, text="chatml")
    make = engine if callable(engine) else lambda: engine
    settings = ServerOptions(**{"port": 0, "observe": True, "drain_seconds": 2.0, **options})
    serving = Serving(make, settings, model)
    with running(serving, ready=ready) as uvicorn:
        asked = Server(uvicorn)
        try:
            yield asked
        finally:
            asked.close()


# --- answers that are written down ----------------------------------------------------------------------------------

Script = Callable[[Sequence[int], int, int], int]
"""(prompt ids, how many tokens were drawn, choice) → the next token"""


class ScriptedSampler:
    """Draws what the script says; a negative number makes the row fail."""

    def __init__(self, script: Script) -> None:
        self.script = script

    def resolve(self, logits: Any, rows: Sequence[SampleRow], *_: Any, **__: Any) -> list[Verdict]:
        return [self._verdict(row) for row in rows]

    def _verdict(self, row: SampleRow) -> Verdict:
        prompt = row.tokens[: row.num_prompt]
        token = self.script(prompt, len(row.tokens) - row.num_prompt, row.choice)
        return Verdict(row.seq_id, (token,)) if token >= 0 else Verdict(row.seq_id, error="made to fail")


class SlowRunner(FakeRunner):
    """Takes `step_s` for every step, in a way that leaves other threads alone; rows carry nothing."""

    step_s = 0.0

    def run(self, batch: Any) -> np.ndarray:
        self.batches += 1
        self.before_run(batch)
        if self.step_s:
            time.sleep(self.step_s)
        return np.zeros(len(batch.logit_rows), dtype=np.int64)


def scripted_engine(
    script: Script | Sequence[int],
    *,
    step_s: float = 0.0,
    num_blocks: int = 256,
    block_size: int = 16,
    context: int = 4096,
    eos: Sequence[int] = (IM_END,),
    tokenizer: Tokenizer | None = None,
    **options: Any,
) -> InferenceEngine:
    """An engine that says what the script says; a list of ids is said to everybody, and then the end token."""
    if not callable(script):
        ids = list(script)
        script = lambda prompt, k, choice: ids[k] if k < len(ids) else eos[0]  # noqa: E731
    tokenizer = tokenizer or tiny_tokenizer("chatml")
    config: Any = SimpleNamespace(
        vocab_size=max(VOCAB, tokenizer.vocab_size),
        max_position_embeddings=context,
        identity="scripted",
        eos_token_ids=tuple(eos),
        generation={},
    )
    runner = SlowRunner(num_blocks, block_size)
    runner.step_s = step_s
    return InferenceEngine(
        None,
        config,
        num_blocks=num_blocks,
        block_size=block_size,
        options=EngineConfig(**options),
        runner=runner,
        sampler=ScriptedSampler(script),  # type: ignore[arg-type]
        tokenizer=tokenizer,
    )


def ids_of(text: str) -> list[int]:
    """A text as ids of the tiny tokenizer, without anything around."""
    return tiny_tokenizer("chatml").encode(text, allow_special=False, add_special_tokens=False)


def endless(text: str = "la ") -> Script:
    """The same words for ever."""
    ids = ids_of(text)
    return lambda prompt, k, choice: ids[k % len(ids)]


# --- streams --------------------------------------------------------------------------------------------------------


def events(body: str | bytes) -> list[Any]:
    """The JSON of each event of a whole stream, which must be framed strictly and end with [DONE]."""
    text = body.decode() if isinstance(body, bytes) else body
    parts = text.split("\n\n")
    assert parts[-1] == "" and parts[-2] == "data: [DONE]", text[-200:]
    found = []
    for part in parts[:-2]:
        if part.startswith(":"):
            continue
        assert part.startswith("data: ") and "\n" not in part and "\r" not in part
        found.append(json.loads(part[6:]))
    return found


def joined(stream: Sequence[Any], index: int = 0) -> str:
    """The text of one choice of a stream, of either route."""
    text = ""
    for event in stream:
        for choice in event.get("choices", []):
            if choice["index"] == index:
                text += choice["text"] if "text" in choice else choice["delta"].get("content", "")
    return text


def reasons(stream: Sequence[Any]) -> list[Any]:
    """All finish reasons of a stream."""
    return [c["finish_reason"] for e in stream for c in e.get("choices", []) if c["finish_reason"] is not None]


class RawStream:
    """A request over a bare socket, so that a test can stop reading, or go without a goodbye."""

    def __init__(self, server: Server, path: str, body: dict[str, Any], *, receive_buffer: int = 0) -> None:
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(20)
        self.socket.connect(("127.0.0.1", server.port))
        data = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        self.socket.sendall(head.encode() + data)

    def read_until(self, mark: bytes) -> bytes:
        got = b""
        while mark not in got:
            part = self.socket.recv(65536)
            assert part, f"ended without {mark!r}: {got[-300:]!r}"
            got += part
        return got

    def rest(self) -> bytes:
        got = b""
        while part := self.socket.recv(65536):
            got += part
        return got

    def reset(self) -> None:
        """Close with RST."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def close(self) -> None:
        self.socket.close()


def at_once(count: int, ask: Callable[[int], Any]) -> list[Any]:
    """The results of `ask(0) … ask(count - 1)`, each on a thread of its own, all at once."""
    results: list[Any] = [None] * count
    barrier = threading.Barrier(count)

    def run(index: int) -> None:
        barrier.wait()
        try:
            results[index] = ask(index)
        except Exception as error:
            results[index] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


def in_loop(main: Callable[[], Any], limit_s: float = 60.0) -> Any:
    async def limited() -> Any:
        return await asyncio.wait_for(main(), limit_s)

    return asyncio.run(limited())


def error_of(response: httpx.Response) -> dict[str, Any]:
    """The error object, which must have OpenAI's shape."""
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    assert response.content.startswith(b'{"error":')
    body = response.json()
    assert set(body) == {"error"} and set(body["error"]) == {"message", "type", "param", "code"}
    error = body["error"]
    assert isinstance(error["message"], str) and 0 < len(error["message"]) <= 1000
    assert isinstance(error["code"], str) and (error["param"] is None or isinstance(error["param"], str))
    return dict(error)


def refused(response: httpx.Response, param: str | None = None, code: str | None = None, status: int = 400) -> str:
    """The message of an error object with this status."""
    assert response.status_code == status, response.text[:300]
    error = error_of(response)
    assert param is None or error["param"] == param
    assert code is None or error["code"] == code
    return str(error["message"])
