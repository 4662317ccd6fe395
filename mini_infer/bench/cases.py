"""What is measured, and against what. Each function gives the figures of one subject."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from statistics import median
from typing import TypeVar

from mini_infer.bench.drive import GREEDY, Driver, Steps, model_of
from mini_infer.bench.figures import Figure, Kind, Ratio
from mini_infer.bench.limits import Limits
from mini_infer.engine import InferenceEngine
from mini_infer.observe.sinks import CallbackSink

T = TypeVar("T")
Limit = Callable[[], float]

PROMPT = 1000
CONTEXTS = (200, 2000)
BATCHES = (1, 4, 16)
MIXED = (2000, *[50] * 15)
SAMPLED = {
    "greedy": GREEDY,
    "temperature": replace(GREEDY, temperature=0.8),
    "temperature, top-p, top-k": replace(GREEDY, temperature=0.8, top_p=0.95, top_k=50),
    "temperature, top-p": replace(GREEDY, temperature=0.8, top_p=0.95),
    "temperature, penalties": replace(GREEDY, temperature=0.8, repetition_penalty=1.1, frequency_penalty=0.2),
}


def beside(measure: Callable[[], T], *limits: Limit) -> tuple[T, list[tuple[float, float]]]:
    """What `measure` gives, and each limit as it was right before and right after."""
    before = [limit() for limit in limits]
    found = measure()
    return found, list(zip(before, [limit() for limit in limits], strict=True))


def prefill(driver: Driver, limits: Limits, repeats: int = 3) -> Iterator[Figure]:
    """Reading a prompt of 1,000 tokens that nothing of is cached."""
    chunk = driver.engine.options.max_chunk or PROMPT
    whole, rest = divmod(PROMPT, chunk)

    def products() -> float:
        last = limits.products(rest, 1) if rest else 0.0
        return whole * limits.products(chunk, 0) + last

    def measure() -> list[float]:
        return [driver.first_token(driver.prompt(PROMPT, "prefill", i)) for i in range(repeats)]

    if driver.fits([PROMPT], 1):
        driver.first_token(driver.prompt(PROMPT, "first"))
        times, (limit,) = beside(measure, products)
        ms = median(times)
        name = f"prefill of {PROMPT:,} tokens"
        yield Figure(name, 1000 * PROMPT / ms, "tok/s", repeats, (_ratio("bare products", "time", ms, limit, "ms"),))


def decode(driver: Driver, limits: Limits, steps: int = 24) -> Iterator[Figure]:
    """Decoding at several batch sizes and contexts."""
    alone: dict[int, float] = {}
    shapes = [(f"context {context:,}", context, [context] * batch) for context in CONTEXTS for batch in BATCHES]
    for name, context, lengths in (*shapes, ("one of 2,000, the others of 50", 0, list(MIXED))):
        batch = len(lengths)
        if not driver.fits(lengths, steps + 8):
            continue
        found, (bandwidth, products) = _decode(driver, limits, lengths, steps)
        gigabytes = limits.weight_bytes / found.total / 1e6
        ratios = [_ratio("bare products", "time", found.total, products, "ms")]
        ratios.append(_ratio("read bandwidth", "rate", gigabytes, bandwidth, "GB/s of weights"))
        if batch == 1:
            alone[context] = found.tokens_per_s
        elif context in alone:
            one = (alone[context],) * 2
            ratios.append(_ratio("batch 1", "rate", found.tokens_per_s, one, "tok/s"))
        yield Figure(f"decode, batch {batch}, {name}", found.tokens_per_s, "tok/s", steps, tuple(ratios))


def _decode(driver: Driver, limits: Limits, lengths: list[int], steps: int) -> tuple[Steps, list[tuple[float, float]]]:
    prompts = [driver.prompt(length, "decode", i) for i, length in enumerate(lengths)]
    for prompt in prompts:  # so that little lies between the limits and the figure where prefixes are cached
        driver.first_token(prompt)
    batch = len(prompts)
    return beside(lambda: driver.decode(prompts, steps), limits.read_bandwidth, lambda: limits.products(batch, batch))


def first_token(driver: Driver, limits: Limits, repeats: int = 5) -> Iterator[Figure]:
    """TTFT of a short prompt, of the same behind a long cached prefix, and of both computed."""
    size = driver.engine.scheduler.size
    long, short = -(-PROMPT // size) * size, 16
    if not driver.fits([long + short], 1):
        return
    prefix = driver.prompt(long, "prefix")

    def alone() -> float:
        return median(driver.first_token(driver.prompt(short, "short", i)) for i in range(repeats))

    def cached() -> float:
        return median(driver.first_token(prefix + driver.prompt(short, "cached", i)) for i in range(repeats))

    alone()
    whole = driver.first_token(prefix + driver.prompt(short, "whole"))
    cached()
    ms, (limit,) = beside(cached, alone)
    if not driver.engine.options.prefix_cache:
        return
    yield Figure(f"TTFT, {short} tokens", sum(limit) / 2, "ms", 2 * repeats)
    yield Figure(f"TTFT, {long + short:,} tokens, none cached", whole, "ms")
    ratios = (
        _ratio(f"{short} tokens alone", "time", ms, limit, "ms"),
        _ratio("none cached", "part", ms, (whole, whole), "ms"),
    )
    yield Figure(f"TTFT, {short} tokens behind {long:,} cached", ms, "ms", repeats, ratios)


def own_work(driver: Driver, limits: Limits, steps: int = 24) -> Iterator[Figure]:
    """Sampling, the engine's own bookkeeping and its recording, at 16 sequences of 200 tokens."""
    batch, context = BATCHES[-1], CONTEXTS[0]
    prompts = [driver.prompt(context, "decode", i) for i in range(batch)]
    if not driver.fits([context] * batch, steps + 8):
        return
    quiet = driver.decode(prompts, steps)
    for name, params in SAMPLED.items():
        found = driver.decode(prompts, steps, params)
        part = _ratio("the step", "part", found.sample, (found.total, found.total), "ms")
        yield Figure(f"sampling, {batch} rows, {name}", found.sample, "ms", steps, (part,))
    part = _ratio("the step", "part", quiet.own, (quiet.total, quiet.total), "ms")
    yield Figure("plan, commit and metadata", quiet.own, "ms", steps, (part,))
    sink = CallbackSink(lambda report: None)
    driver.engine.attach(sink)
    try:
        heard = driver.decode(prompts, steps)
    finally:
        driver.engine.detach(sink)
    cost = max(heard.recording - quiet.recording, 0.0)
    part = _ratio("the step", "part", cost, (heard.total, heard.total), "ms")
    yield Figure("recording for a sink", cost, "ms", steps, (part,), "by its own clock, beyond what is kept anyway")


def speculation(driver: Driver, limits: Limits, steps: int = 24) -> Iterator[Figure]:
    """Decoding with and without drafts, one sequence whose text repeats itself."""
    engine = driver.engine
    if engine.proposer is None:
        pool = engine.scheduler.pool
        options = replace(engine.options, draft="ngram", kv_blocks=None, kv_memory=None)
        engine = InferenceEngine(
            model_of(engine),
            engine.config,
            pool.num_blocks,
            pool.block_size,
            options=options,
        )
        driver = Driver(engine)
    prompt = driver.prompt(20, "phrase") * 10
    if engine.proposer is None or not driver.fits([len(prompt)], 10 * steps):
        return
    name = engine.proposer.name

    def at(k: int | None) -> float:
        engine.set_draft_tokens(k)
        try:
            return driver.decode([prompt], steps).tokens_per_s
        finally:
            engine.set_draft_tokens(0)

    speed, (plain,) = beside(lambda: at(None), lambda: at(0))
    yield Figure(f"speculation by {name}", speed, "tok/s", steps, (_ratio("no drafts", "rate", speed, plain, "tok/s"),))


BY_NAME: dict[str, Callable[[Driver, Limits], Iterator[Figure]]] = {
    "prefill": prefill,
    "decode": decode,
    "ttft": first_token,
    "work": own_work,
    "speculation": speculation,
}


def _ratio(what: str, kind: Kind, ours: float, limit: tuple[float, float], unit: str) -> Ratio:
    return Ratio(what, kind, ours, *limit, unit)
