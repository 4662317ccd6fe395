"""/metrics: vLLM's names, and figures that add up."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mini_infer.api.gpu import Nvml
from mini_infer.api.metrics import MAX_IGNORED
from tests.api.support import RawStream, Server, at_once, endless, scripted_engine, server, wait
from tests.support.engines import prompt, tiny_engine

NAMES = {
    "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc", "vllm:prefix_cache_queries",
    "vllm:prefix_cache_hits", "vllm:num_preemptions", "vllm:prompt_tokens", "vllm:generation_tokens",
    "vllm:request_success", "vllm:cache_config_info", "vllm:time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds", "vllm:e2e_request_latency_seconds", "vllm:request_queue_time_seconds",
    "vllm:request_inference_time_seconds", "vllm:request_prefill_time_seconds", "vllm:request_decode_time_seconds",
    "vllm:request_prompt_tokens", "vllm:request_generation_tokens", "vllm:request_params_n",
    "vllm:request_params_max_tokens", "vllm:iteration_tokens_total", "vllm:spec_decode_num_drafts",
    "vllm:spec_decode_num_draft_tokens", "vllm:spec_decode_num_accepted_tokens",
    "vllm:spec_decode_num_accepted_tokens_per_pos", "mini_infer_engine_up", "mini_infer_kv_blocks",
    "mini_infer_prefill_tokens", "mini_infer_step_duration_seconds", "mini_infer_requests", "mini_infer_build_info",
    "mini_infer_event_loop_lag_seconds", "mini_infer_token_delivery_delay_seconds",
}  # fmt: skip


def read(served: Server) -> dict[str, float]:
    """The sum of each sample over its labels."""
    found: dict[str, float] = defaultdict(float)
    for family in text_string_to_metric_families(served.http.get("/metrics").text):
        for sample in family.samples:
            found[sample.name] += sample.value
    return found


def test_the_names_are_vllms() -> None:
    with server(tiny_engine(text="chatml")) as served:
        answer = served.http.get("/metrics")
        # Prometheus refuses a type that names one parameter twice
        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        families = {f.name: f for f in text_string_to_metric_families(answer.text)}
        assert set(families) >= NAMES, NAMES - set(families)
        labels = families["vllm:num_requests_running"].samples[0].labels
        assert labels == {"model_name": "Org/Tiny-Instruct", "engine": "0"}


def test_the_figures_add_up() -> None:
    with server(tiny_engine(text="chatml", num_blocks=128)) as served:
        counts = [5, 9, 1, 12]
        asked = [(prompt(40, seed=i % 2), count) for i, count in enumerate(counts)]
        for ids, count in asked:
            assert served.complete(ids, max_tokens=count, ignore_eos=True).status_code == 200
        served.complete("two", max_tokens=4, n=2, ignore_eos=True)
        found = read(served)
        state = served.state()
        assert found["vllm:generation_tokens_total"] == sum(counts) + 8 == state.totals.output_tokens
        assert found["vllm:prompt_tokens_total"] == state.totals.prompt_tokens
        assert found["vllm:prefix_cache_hits_total"] == state.totals.cached_tokens == 64
        assert found["mini_infer_prefill_tokens_total"] == found["vllm:prompt_tokens_total"]
        assert found["vllm:time_to_first_token_seconds_count"] == 6 == found["vllm:request_success_total"]
        assert found["vllm:inter_token_latency_seconds_count"] == sum(c - 1 for c in counts) + 2 * 3
        assert found["vllm:e2e_request_latency_seconds_count"] == 6
        assert found["vllm:request_params_max_tokens_sum"] == sum(counts) + 4
        assert found["vllm:iteration_tokens_total_sum"] == state.totals.computed_tokens
        assert found["mini_infer_kv_blocks"] == 128
        assert found["vllm:num_requests_running"] == found["vllm:num_requests_waiting"] == 0
        again = read(served)
        assert all(again[name] >= value for name, value in found.items() if name.endswith(("_total", "_count")))


@pytest.mark.parametrize("stream", [False, True])
def test_what_serving_itself_costs_is_seen(stream: bool) -> None:
    with server(scripted_engine(endless())) as served:
        served.complete(max_tokens=20, stream=stream)
        found = read(served)
        assert found["mini_infer_token_delivery_delay_seconds_count"] == 20
        assert found["mini_infer_token_delivery_delay_seconds_sum"] > 0
        wait(lambda: read(served)["mini_infer_event_loop_lag_seconds_count"] > 3, "some ticks")
        before = read(served)["mini_infer_event_loop_lag_seconds_sum"]
        served.serving_loop().call_soon_threadsafe(time.sleep, 0.5)
        wait(lambda: read(served)["mini_infer_event_loop_lag_seconds_sum"] >= before + 0.3, "the lag")


class FakeNvml:
    """Answers what a driver with an H200 would; `missing` functions are not there, `failing` ones say so."""

    def __init__(self, missing: tuple[str, ...] = (), failing: tuple[str, ...] = ()) -> None:
        self.missing, self.failing, self.asked = missing, failing, b""

    def __getattr__(self, name: str) -> Any:
        if name in self.missing:
            raise AttributeError(name)
        if name in self.failing:
            return lambda *_: 3  # NVML_ERROR_NOT_SUPPORTED
        return getattr(self, f"_{name}")

    def _nvmlInit_v2(self) -> int:
        return 0

    def _nvmlDeviceGetHandleByUUID(self, uuid: bytes, handle: Any) -> int:
        self.asked = uuid
        handle._obj.value = 1
        return 0

    def _nvmlDeviceGetPowerUsage(self, _: Any, result: Any) -> int:
        result._obj.value = 123_400
        return 0

    def _nvmlDeviceGetTotalEnergyConsumption(self, _: Any, result: Any) -> int:
        result._obj.value = 5_600_000
        return 0

    def _nvmlDeviceGetMemoryInfo(self, _: Any, result: Any) -> int:
        result._obj.used = 7_000_000_000
        return 0


def gpu_figures(library: FakeNvml) -> dict[str, float]:
    nvml = Nvml.open("GPU-1", lambda _: library)
    return {} if nvml is None else {sample.name: sample.value for family in nvml.read() for sample in family.samples}


def test_gpu_figures_in_watts_joules_and_bytes() -> None:
    library = FakeNvml()
    assert gpu_figures(library) == {
        "mini_infer_gpu_power_watts": 123.4,
        "mini_infer_gpu_energy_joules_total": 5600.0,
        "mini_infer_gpu_memory_used_bytes": 7e9,
    }
    assert library.asked == b"GPU-1"


def test_gpu_figures_are_absent_where_nobody_answers() -> None:
    old = FakeNvml(missing=("nvmlDeviceGetTotalEnergyConsumption",), failing=("nvmlDeviceGetPowerUsage",))
    assert set(gpu_figures(old)) == {"mini_infer_gpu_memory_used_bytes"}
    assert (
        gpu_figures(FakeNvml(failing=("nvmlInit_v2",)))
        == gpu_figures(FakeNvml(failing=("nvmlDeviceGetHandleByUUID",)))
        == {}
    )

    def no_driver(_: str) -> Any:
        raise OSError

    assert Nvml.open("GPU-1", no_driver) is None
    with server(tiny_engine(text="chatml")) as served:
        assert "mini_infer_gpu" not in served.http.get("/metrics").text


def test_gauges_while_busy_and_after() -> None:
    with server(scripted_engine(endless(), step_s=0.002, max_running=2, num_blocks=64)) as served:
        body = {"prompt": [7] * 40, "max_tokens": 3000, "stream": True}
        clients = [RawStream(served, "/v1/completions", body) for _ in range(5)]
        wait(lambda: read(served)["vllm:num_requests_waiting"] == 3, "three waiting")
        found = read(served)
        assert found["vllm:num_requests_running"] == 2 and 0 < found["vllm:kv_cache_usage_perc"] <= 1
        for client in clients:
            client.reset()
        served.wait_idle()
        found = read(served)
        for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"):
            assert found[name] == 0
        assert found["vllm:request_success_total"] == 5


def test_preemptions_and_faults_are_counted() -> None:
    with server(scripted_engine(endless(), num_blocks=8)) as served:
        at_once(4, lambda i: served.complete([7 + i] * 20, max_tokens=60))
        found = read(served)
        assert found["vllm:num_preemptions_total"] == served.state().totals.preemptions > 0
        assert found["vllm:num_requests_running"] == 0
    with server(scripted_engine(lambda *_: -1)) as failing:
        assert failing.complete().status_code == 500
        text = failing.http.get("/metrics").text
        assert 'finished_reason="error",model_name="Org/Tiny-Instruct"} 1.0' in text


def test_labels_are_bounded() -> None:
    with server(scripted_engine([5])) as served:
        for number in range(MAX_IGNORED + 20):
            served.complete(max_tokens=1, **{f"field{number}": 1})
            served.http.get(f"/scan/{number}")
        text = served.http.get("/metrics").text
        assert text.count("mini_infer_ignored_params_total{") == MAX_IGNORED + 1
        assert 'mini_infer_ignored_params_total{param="other"} 20.0' in text
        assert "scan" not in text and 'endpoint="unmatched",status="404"' in text.replace(',stream="false"', "")


def test_two_servers_in_one_process_count_apart() -> None:
    with server(scripted_engine([5])) as one, server(scripted_engine([5])) as other:
        one.complete(max_tokens=1)
        assert read(one)["vllm:request_success_total"] == 1 and read(other)["vllm:request_success_total"] == 0
