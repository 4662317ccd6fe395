"""An OpenAI-compatible server without a model: its text is a function of the prompt, its faults are ordered.

`python -m tests.load.fake_server TTFT GAP` serves with these delays in seconds and prints its port: a process of its
own, for measurements.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.load.support import DONE, Connection, Request, Served, event, role, serving

SYLLABLES = "ba be bi bo bu da de di do du ga ge gi go gu la le li lo lu".split()


@dataclass
class FakeOpenAI:
    """A handler. Every n-th request (of those for text) is failed, corrupted or held, where a number says so."""

    ttft_s: float = 0.0
    gap_s: float = 0.0
    fail_every: int = 0
    fail_with: str = "500 Internal Server Error"
    corrupt_every: int = 0
    corrupt_gap: float = 1.0  # between the tokens of a corrupted answer and its own
    hold_every: int = 0  # never answered
    usage: bool = True
    logprobs: bool = True
    metrics: bool = True
    leak: int = 0  # sequences that stay after a client has hung up
    miscount: int = 0  # tokens that the metrics count too many
    drafted: int = 0
    running: int = 0
    generated: int = 0
    asked: int = 0
    tokenizer: bool = True
    models: list[str] = field(default_factory=lambda: ["fake"])

    async def __call__(self, request: Request, out: Connection) -> None:
        match request.path.rsplit("/v1", 1)[-1]:
            case "/models":
                await out.json({"object": "list", "data": [{"id": name} for name in self.models]})
            case "/metrics" if self.metrics:
                await out.text(
                    f"vllm:generation_tokens_total {self.generated}\n"
                    f"vllm:num_requests_running {self.running}\nvllm:num_requests_waiting 0\n"
                    f'mini_infer_kv_blocks{{state="used"}} {self.running}\n'
                )
            case "/health":
                await out.json({"status": "ok", "engine": "fake", "version": "1"})
            case "/tokenize" if self.tokenizer:
                await out.json({"tokens": list(range(300, 400)), "count": 100})
            case "/chat/completions" | "/completions":
                await self._generate(request, out)
            case _:
                await out.json({"error": {"message": "not here"}}, "404 Not Found")

    def _is(self, every: int) -> bool:
        return every > 0 and self.asked % every == 0

    async def _generate(self, request: Request, out: Connection) -> None:
        self.asked += 1
        if self._is(self.fail_every):
            await out.json({"error": {"message": "as ordered"}}, self.fail_with)
            return
        self.running += 1
        try:
            if self._is(self.hold_every):
                await out.start()
                while True:  # until the client has gone
                    await out.chunk(b": still here\n\n")
                    await asyncio.sleep(0.005)
            await self._answer(request.body, request.at, out)
        finally:
            if self.leak:
                self.leak -= 1
            else:
                self.running -= 1

    async def _answer(self, body: dict[str, Any], begin: float, out: Connection) -> None:
        prompt = str(body.get("messages") or body.get("prompt"))
        digest = hashlib.sha256(prompt.encode()).digest()
        count = body["max_tokens"]
        texts = [SYLLABLES[digest[i % 32] % 20] + " " for i in range(count)]
        wrong = count // 2 if self._is(self.corrupt_every) else None
        await out.start()
        if "messages" in body:
            await out.chunk(role())
        for i, said in enumerate(texts):
            if (wait := begin + self.ttft_s + i * self.gap_s - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            self.generated += 1
            await out.chunk(self._piece(body, said, "zu " if i == wrong else said))
        self.generated += self.miscount
        last: dict[str, Any] = {"choices": [self._choice(body, "", finish_reason="length")]}
        if self.drafted:
            last["timings"] = {"draft_n": self.drafted, "draft_n_accepted": self.drafted // 2}
        size = len(body["prompt"]) if isinstance(body.get("prompt"), list) else 8
        usage = {"prompt_tokens": size, "completion_tokens": count, "prompt_tokens_details": {"cached_tokens": 4}}
        end = event(last) + (event({"choices": [], "usage": usage}) if self.usage else b"") + DONE
        await out.chunk(end)
        await out.end()

    def _piece(self, body: dict[str, Any], own: str, said: str) -> bytes:
        more: dict[str, Any] = {}
        if self.logprobs and body.get("logprobs"):
            top = {own: -0.1, "zu ": -0.1 - self.corrupt_gap}
            if "messages" in body:
                tops = [{"token": token, "logprob": value} for token, value in top.items()]
                entry = {"token": said, "logprob": top[said], "top_logprobs": tops}
                more["logprobs"] = {"content": [entry]}
            else:
                more["logprobs"] = {"tokens": [said], "token_logprobs": [top[said]], "top_logprobs": [top]}
        return event({"choices": [self._choice(body, said, **more)]})

    @staticmethod
    def _choice(body: dict[str, Any], said: str, **more: Any) -> dict[str, Any]:
        if "messages" in body:
            return {"index": 0, "delta": {"content": said} if said else {}, **more}
        return {"index": 0, "text": said, **more}


@contextmanager
def in_thread(handler: FakeOpenAI) -> Iterator[Served]:
    """The server on a thread of its own, for clients that run a loop themselves."""
    ready = threading.Event()
    found: list[Any] = []

    async def main() -> None:
        async with serving(handler) as served:
            stop = asyncio.Event()
            found.extend((served, asyncio.get_running_loop(), stop))
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    thread.start()
    assert ready.wait(60)
    served, loop, stop = found
    try:
        yield served
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(60)


async def _main() -> None:
    async with serving(FakeOpenAI(ttft_s=float(sys.argv[1]), gap_s=float(sys.argv[2]), metrics=False)) as served:
        print(served.url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main())
