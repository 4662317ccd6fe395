"""What a server says of itself: its /metrics before and after a level, and whether it is idle again."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

import httpx
from msgspec import Struct
from prometheus_client.parser import text_string_to_metric_families

from mini_infer.load.client import Target

Names = tuple[str, ...]

GENERATED: Names = (
    "vllm:generation_tokens_total",
    "sglang:generation_tokens_total",
    "llamacpp:tokens_predicted_total",
)
PROMPT: Names = ("vllm:prompt_tokens_total", "sglang:prompt_tokens_total", "llamacpp:prompt_tokens_total")
DRAFTED: Names = ("vllm:spec_decode_num_draft_tokens_total", "llamacpp:spec_decode_num_draft_tokens_total")
ACCEPTED: Names = ("vllm:spec_decode_num_accepted_tokens_total", "llamacpp:spec_decode_num_accepted_tokens_total")
BUSY: Mapping[str, Names] = {
    "running": ("vllm:num_requests_running", "sglang:num_running_reqs", "llamacpp:requests_processing"),
    "waiting": ("vllm:num_requests_waiting", "sglang:num_queue_reqs", "llamacpp:requests_deferred"),
    "kv in use": ("mini_infer_kv_blocks{used}", "vllm:kv_cache_usage_perc", "sglang:token_usage"),
}

SETTLE_S = 10.0
"""How long a server has after a level to become idle."""


@dataclass(frozen=True, slots=True)
class Scrape:
    """One reading: samples by name, summed over labels; `name{state}` for those with a state."""

    samples: Mapping[str, float]

    @classmethod
    def parse(cls, text: str) -> Scrape:
        """Raises ValueError for what is no exposition format."""
        samples: dict[str, float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                state = sample.labels.get("state")
                name = f"{sample.name}{{{state}}}" if state is not None else sample.name
                samples[name] = samples.get(name, 0.0) + sample.value
        return cls(samples)

    def first(self, names: Names) -> float | None:
        """The first of these that the server has."""
        return next((self.samples[name] for name in names if name in self.samples), None)

    @property
    def busy(self) -> dict[str, float]:
        """What is not at rest; empty when idle, or where the server does not say."""
        found = {what: self.first(names) for what, names in BUSY.items()}
        return {what: value for what, value in found.items() if value}


class ServerSide(Struct, frozen=True, kw_only=True):
    """A level as the server counted it. None is what it does not say, or what cannot be compared."""

    generated_tokens: int | None = None
    prompt_tokens: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    agrees: bool | None = None
    """Whether its count of generated tokens equals the sum of the answers' usage."""
    leaked: dict[str, float] = {}
    """What was still held when all requests had ended and time had been given; None where it has no metrics."""
    idle_checked: bool = False


class Metrics:
    """Reads a server's /metrics. Once it was not there, it is not asked again."""

    def __init__(self, target: Target, http: httpx.AsyncClient) -> None:
        self._url = f"{target.root}/metrics"
        self._http = http
        self._is_there = True

    async def read(self) -> Scrape | None:
        if not self._is_there:
            return None
        try:
            answer = await self._http.get(self._url)
            answer.raise_for_status()
            return Scrape.parse(answer.text)
        except (httpx.HTTPError, ValueError):
            self._is_there = False
            return None

    async def settled(self) -> Scrape | None:
        """A reading once the server is idle, or the last one when time is up."""
        try:
            async with asyncio.timeout(SETTLE_S):
                while (found := await self.read()) is not None and found.busy:
                    await asyncio.sleep(0.05)
        except TimeoutError:
            found = await self.read()
        return found


def server_side(before: Scrape | None, after: Scrape | None, tokens: int | None) -> ServerSide:
    """What happened between two readings. `tokens` is what the answers say, None where that is not all of them."""
    if before is None or after is None:
        return ServerSide()

    def grown(names: Names) -> int | None:
        old, new = before.first(names), after.first(names)
        return None if old is None or new is None else round(new - old)

    generated = grown(GENERATED)
    return ServerSide(
        generated_tokens=generated,
        prompt_tokens=grown(PROMPT),
        drafted=grown(DRAFTED),
        accepted=grown(ACCEPTED),
        agrees=None if generated is None or tokens is None else generated == tokens,
        leaked=after.busy,
        idle_checked=any(after.first(names) is not None for names in BUSY.values()),
    )
