"""Prometheus metrics: vLLM's names, so that dashboards and load tools find what they know, and our own.

`EngineMetrics` is a sink: it reads the reports on the engine's thread. The figures mean what `observe.metrics` says.
"""

from __future__ import annotations

from collections.abc import Iterable
from time import perf_counter

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from mini_infer.observe.events import StepReport
from mini_infer.observe.metrics import RequestTimes, RequestTiming
from mini_infer.observe.sinks import Sink
from mini_infer.observe.state import EngineState
from mini_infer.results import Chunk
from mini_infer.version import __version__

_SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0, 300.0)
_DELAYS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
_SMALL = (1, 2, 4, 8, 16, 32, 64, 128, 256)

MAX_IGNORED = 50
"""Field names counted apart; clients could otherwise make series without end."""


class _Family:
    """Makes metrics of one registry that carry the labels vLLM's do."""

    def __init__(self, registry: CollectorRegistry, model: str) -> None:
        self._registry = registry
        self._values = {"model_name": model, "engine": "0"}

    def counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, tuple(self._values), registry=self._registry).labels(**self._values)

    def gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, tuple(self._values), registry=self._registry).labels(**self._values)

    def histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        made = Histogram(name, text, tuple(self._values), registry=self._registry, buckets=buckets)
        return made.labels(**self._values)

    def by(self, label: str, values: tuple[str, ...], name: str, text: str) -> dict[str, Counter]:
        """A counter for each value of one more label, all of them there from the start."""
        made = Counter(name, text, (*self._values, label), registry=self._registry)
        return {value: made.labels(**self._values, **{label: value}) for value in values}


class EngineMetrics(Sink):
    """What the engine does, from its reports."""

    def __init__(self, registry: CollectorRegistry, model: str) -> None:
        self.last_report = perf_counter()
        self.waiting = 0
        self.running: set[str] = set()
        self.faults = 0
        self._registry = registry
        self._model = model
        self._times = RequestTimes()
        self._prompts: dict[str, int] = {}  # tokens of each prompt that waits for its first admission
        make = _Family(registry, model)
        self._num_running = make.gauge("vllm:num_requests_running", "Sequences with a seat.")
        self._num_waiting = make.gauge("vllm:num_requests_waiting", "Sequences in the queue.")
        self._kv_usage = make.gauge("vllm:kv_cache_usage_perc", "Share of the KV blocks in use, 0 to 1.")
        self._queries = make.counter("vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache.")
        self._hits = make.counter("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache.")
        self._preemptions = make.counter("vllm:num_preemptions", "Sequences that lost their blocks to another.")
        self._prompt_tokens = make.counter("vllm:prompt_tokens", "Prompt tokens of admitted requests.")
        self._output_tokens = make.counter("vllm:generation_tokens", "Generated tokens.")
        reasons = ("stop", "length", "abort", "error")
        name = "vllm:request_success"
        self._ends = make.by("finished_reason", reasons, name, "Sequences that ended, by reason.")
        self._ttft = make.histogram("vllm:time_to_first_token_seconds", "Arrival to first token.", _SECONDS)
        self._itl = make.histogram("vllm:inter_token_latency_seconds", "Between steps that gave tokens.", _SECONDS)
        self._e2e = make.histogram("vllm:e2e_request_latency_seconds", "Arrival to end.", _SECONDS)
        self._queue_time = make.histogram("vllm:request_queue_time_seconds", "Arrival to admission.", _SECONDS)
        self._inference = make.histogram("vllm:request_inference_time_seconds", "Admission to end.", _SECONDS)
        self._prefill = make.histogram("vllm:request_prefill_time_seconds", "Admission to first token.", _SECONDS)
        self._decode = make.histogram("vllm:request_decode_time_seconds", "First token to end.", _SECONDS)
        self._prompt_size = make.histogram("vllm:request_prompt_tokens", "Tokens of each prompt.", _TOKENS)
        self._answer_size = make.histogram("vllm:request_generation_tokens", "Tokens of each answer.", _TOKENS)
        self._n = make.histogram("vllm:request_params_n", "Answers asked for.", _SMALL)
        self._max_tokens = make.histogram("vllm:request_params_max_tokens", "Longest answer allowed.", _TOKENS)
        self._step_tokens = make.histogram("vllm:iteration_tokens_total", "Tokens computed in each step.", _TOKENS)
        self._drafts = make.counter("vllm:spec_decode_num_drafts", "Rounds of speculation.")
        self._drafted = make.counter("vllm:spec_decode_num_draft_tokens", "Drafted tokens.")
        self._accepted = make.counter("vllm:spec_decode_num_accepted_tokens", "Drafted tokens that were accepted.")
        name = "vllm:spec_decode_num_accepted_tokens_per_pos"
        self._by_position = make.by("position", tuple(map(str, range(16))), name, "Accepted, by place in the draft.")
        self._up = Gauge("mini_infer_engine_up", "1 once the engine serves.", registry=registry)
        self._faults = Counter("mini_infer_engine_faults", "Rebuilds after a fault.", registry=registry)
        self._last_step = Gauge("mini_infer_engine_last_step_timestamp_seconds", "When.", registry=registry)
        blocks = Gauge("mini_infer_kv_blocks", "KV blocks by state.", ("state",), registry=registry)
        self._blocks = {state: blocks.labels(state) for state in ("used", "cached", "free")}
        self._evictions = Counter("mini_infer_kv_block_evictions", "Cached blocks given away.", registry=registry)
        text = "Prompt tokens by where their KV came from."
        prefill = Counter("mini_infer_prefill_tokens", text, ("source",), registry=registry)
        self._computed, self._cached = prefill.labels("computed"), prefill.labels("cached")
        text = "Time of each step, by what it computed."
        steps = Histogram("mini_infer_step_duration_seconds", text, ("kind",), registry=registry, buckets=_SECONDS)
        self._steps = {kind: steps.labels(kind) for kind in ("prefill", "decode", "mixed")}
        text = "Sequences in each step."
        self._batch = Histogram("mini_infer_batch_sequences", text, registry=registry, buckets=_SMALL)
        text = "Tokens that each round of speculation gave."
        self._round = Histogram("mini_infer_spec_acceptance_length", text, registry=registry, buckets=range(1, 17))

    # --- the sink ---------------------------------------------------------------------------------------------------

    def start(self, snapshot: EngineState) -> None:
        info = snapshot.info
        text = "What is served, and the size of its KV cache."
        values = {"version": __version__, "model": self._model, "draft": info.draft}
        Gauge("mini_infer_build_info", text, tuple(values), registry=self._registry).labels(**values).set(1)
        text = "How the KV cache is laid out."
        values = {
            "block_size": str(info.block_size),
            "num_gpu_blocks": str(info.num_blocks),
            "enable_prefix_caching": str(info.prefix_cache),
        }
        Gauge("vllm:cache_config_info", text, tuple(values), registry=self._registry).labels(**values).set(1)
        self._up.set(1)
        self._blocks["free"].set(info.num_blocks)

    def emit(self, report: StepReport) -> None:
        self.last_report = perf_counter()
        for a in report.arrived:
            self._prompts[a.seq_id] = len(a.prompt)
            self._prompt_size.observe(len(a.prompt))
            self._n.observe(a.n)
            self._max_tokens.observe(a.max_tokens)
        self._seats(report)
        for output in report.outputs:
            self._output_tokens.inc(len(output.token_ids))
        for timing in self._times.add(report):
            self._ended(timing)
        for finished in report.finished:
            self._ends[finished.reason].inc()
            self._answer_size.observe(finished.usage.completion_tokens)
            self.running.discard(finished.seq_id)
            self._prompts.pop(finished.seq_id, None)
        self._faults.inc(sum(c.action == "fault" for c in report.control))
        self.faults += sum(c.action == "fault" for c in report.control)
        self._evictions.inc(sum(move.op == "evict" for move in report.blocks))
        for r in report.spec:
            self._drafts.inc()
            self._drafted.inc(r.drafted)
            self._accepted.inc(r.kept)
            self._round.observe(r.kept + (r.token is not None))
            for position in range(min(r.kept, len(self._by_position))):
                self._by_position[str(position)].inc()
        self.waiting = report.num_waiting
        self._num_waiting.set(report.num_waiting)
        self._num_running.set(len(self.running))
        if report.pool is not None:
            pool = report.pool
            for state, count in (("used", pool.used), ("cached", pool.cached), ("free", pool.free)):
                self._blocks[state].set(count)
            self._kv_usage.set(pool.used / (pool.used + pool.cached + pool.free))
        if report.stepped:
            self._step(report)

    def _seats(self, report: StepReport) -> None:
        for p in report.preempted:
            self._preemptions.inc()
            self.running.discard(p.seq_id)
        for let in report.admitted:
            self.running.add(let.seq_id)
            if let.first:
                tokens = self._prompts.pop(let.seq_id, 0)
                self._prompt_tokens.inc(tokens)
                self._queries.inc(tokens)
                self._hits.inc(let.cached)
                self._cached.inc(let.cached)
                self._computed.inc(tokens - let.cached)
        self.running.update(f.child for f in report.forked)

    def _ended(self, timing: RequestTiming) -> None:
        if timing.ttft is not None:
            self._ttft.observe(timing.ttft)
        for gap in timing.itl:
            self._itl.observe(gap)
        end = timing.end or timing.arrival
        self._e2e.observe(end - timing.arrival)
        if timing.admitted is not None:
            self._queue_time.observe(timing.admitted - timing.arrival)
            self._inference.observe(end - timing.admitted)
            if timing.first is not None:
                self._prefill.observe(timing.first - timing.admitted)
                self._decode.observe(end - timing.first)

    def _step(self, report: StepReport) -> None:
        self._last_step.set_to_current_time()
        self._step_tokens.observe(sum(s.n_new + s.n_draft for s in report.sched))
        self._batch.observe(len(report.sched))
        if report.durations is not None and report.sched:
            d = report.durations
            kinds = {"prefill" if s.kind == "prefill" else "decode" for s in report.sched}
            kind = kinds.pop() if len(kinds) == 1 else "mixed"
            self._steps[kind].observe((d.schedule + d.draft + d.forward + d.sample + d.commit) / 1e3)

    def close(self) -> None:
        self._up.set(0)


class HttpMetrics:
    """What the server does."""

    def __init__(self, registry: CollectorRegistry) -> None:
        labels = ("endpoint", "stream", "status")
        self._requests = Counter("mini_infer_requests", "HTTP requests answered.", labels, registry=registry)
        text = "Answers that were given up."
        self._aborted = Counter("mini_infer_requests_aborted", text, ("reason",), registry=registry)
        text = "Requests that were refused."
        self._rejected = Counter("mini_infer_requests_rejected", text, ("reason",), registry=registry)
        text = "Fields that nobody knows."
        self._ignored = Counter("mini_infer_ignored_params", text, ("param",), registry=registry)
        self._names: set[str] = set()
        text = "How late the server's event loop comes to what is due, looked at ten times a second."
        name = "mini_infer_event_loop_lag_seconds"
        self._lag = Histogram(name, text, registry=registry, buckets=_DELAYS)
        text = "From the engine's news of an answer to the task that sends them; a slow client's own delay included."
        name = "mini_infer_token_delivery_delay_seconds"
        self._delivery = Histogram(name, text, registry=registry, buckets=_DELAYS)
        ProcessCollector(registry=registry)

    def lagged(self, seconds: float) -> None:
        self._lag.observe(max(seconds, 0.0))

    def delivered(self, chunks: Iterable[Chunk]) -> None:
        now = perf_counter()
        for chunk in chunks:
            self._delivery.observe(max(now - chunk.made, 0.0))

    def answered(self, endpoint: str, status: int, *, stream: bool) -> None:
        self._requests.labels(endpoint, str(stream).lower(), status).inc()

    def aborted(self, reason: str) -> None:
        self._aborted.labels(reason).inc()

    def rejected(self, reason: str) -> None:
        self._rejected.labels(reason).inc()

    def ignored(self, name: str) -> bool:
        """Count a field; True the first time it is seen."""
        is_new = name not in self._names and len(self._names) < MAX_IGNORED
        if is_new:
            self._names.add(name)
        self._ignored.labels(name if name in self._names else "other").inc()
        return is_new


def exposition(registry: CollectorRegistry) -> bytes:
    """The text format, version 0.0.4."""
    return generate_latest(registry)
