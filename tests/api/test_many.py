"""Many clients at once, shared prefixes, small pools: what each gets is what it would get alone."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import threading
import time
from typing import Any

import httpx
import pytest

from mini_infer.llm import LLM
from mini_infer.observe.events import StepReport
from mini_infer.observe.sinks import CallbackSink
from mini_infer.sampling.params import SamplingParams
from tests.api.support import (
    RawStream,
    Server,
    at_once,
    endless,
    events,
    ids_of,
    in_loop,
    joined,
    scripted_engine,
    server,
    wait,
)
from tests.support.engines import prompt, tiny_engine

GREEDY = {"temperature": 0, "ignore_eos": True}


async def stream_text(client: httpx.AsyncClient, body: dict[str, Any]) -> str:
    answer = await client.post("/v1/completions", json=body | {"stream": True})
    assert answer.status_code == 200, answer.text
    return joined(events(answer.content))


def test_sixty_four_streams_at_once_none_starved(tiny: Server, llm: LLM) -> None:
    """Every one is right, and every running sequence advances in each step that has room for it."""
    reports: list[StepReport] = []
    sink = CallbackSink(reports.append)
    tiny.serving.service.attach(sink)
    prompts = [f"tale number {i}: " for i in range(64)]
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    right = [r.text for r in llm.generate(prompts, params)]

    async def run() -> list[str]:
        limits = httpx.Limits(max_connections=64)
        async with httpx.AsyncClient(base_url=tiny.url, limits=limits, trust_env=False, timeout=60) as client:
            bodies = [GREEDY | {"prompt": p, "max_tokens": 24} for p in prompts]
            return await asyncio.gather(*[stream_text(client, body) for body in bodies])

    try:
        assert in_loop(run) == right
    finally:
        tiny.serving.service.detach(sink)
    running: set[str] = set()
    for report in reports:
        if report.stepped:
            advanced = {s.seq_id for s in report.sched} | {p.seq_id for p in report.preempted}
            assert running <= advanced, "a running sequence stood still"
        running |= {a.seq_id for a in report.admitted}
        running -= {f.seq_id for f in report.finished} | {p.seq_id for p in report.preempted}
    assert max(len(r.sched) for r in reports) == 16


def test_S11_sixteen_greedy_requests_together_equal_each_alone(tiny: Server, llm: LLM) -> None:
    prompts = [prompt(length, seed=length) for length in (1, 2, 5, 15, 16, 17, 31, 32, 33, 40, 48, 60, 63, 64, 65, 70)]
    bodies = [GREEDY | {"prompt": p, "max_tokens": 20, "return_token_ids": True} for p in prompts]
    alone = [tiny.post("/v1/completions", **body).json()["choices"][0] for body in bodies]
    crowd = [a.json()["choices"][0] for a in at_once(16, lambda i: tiny.post("/v1/completions", **bodies[i]))]
    assert [c["token_ids"] for c in crowd] == [a["token_ids"] for a in alone]
    assert [c["text"] for c in crowd] == [a["text"] for a in alone]
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    assert [tuple(a["token_ids"]) for a in alone] == [r.token_ids for r in llm.generate(prompts, params)]


def test_H31_answers_do_not_cross() -> None:
    """64 clients, each told by its prompt what to say; streams and not, over few connections and many."""

    def script(asked: Any, k: int, choice: int) -> int:
        return asked[k] if k < len(asked) else 383

    with server(scripted_engine(script, max_running=16)) as echo:

        def ask(index: int) -> tuple[str, list[str]]:
            got, seen = [], []
            with httpx.Client(base_url=echo.url, trust_env=False, timeout=60) as client:
                for turn in range(3):
                    text = f"marker {index} {turn} end"
                    seen.append(text)
                    body = {"prompt": text, "max_tokens": 200, "stream": (index + turn) % 2 == 0}
                    answer = client.post("/v1/completions", json=body)
                    assert answer.status_code == 200, answer.text
                    if body["stream"]:
                        stream = events(answer.content)
                        got.append(joined(stream))
                        ids.add(stream[0]["id"])
                    else:
                        got.append(answer.json()["choices"][0]["text"])
                        ids.add(answer.json()["id"])
            assert got == seen
            return str(index), got

        ids: set[str] = set()
        at_once(64, ask)
        assert len(ids) == 192
        echo.wait_idle()


def test_beyond_the_queue_there_is_429_and_nothing_else() -> None:
    with server(scripted_engine(endless(), step_s=0.002, max_running=2), max_waiting=3) as small:
        small.serving.service.pause()
        small.serving.service.resume()

        def ask(index: int) -> int:
            answer = small.complete(max_tokens=40, stream=index % 2 == 0)
            if answer.status_code == 429:
                assert answer.headers["retry-after"] == "1"
                assert answer.json()["error"]["type"] == "rate_limit_error"
            return answer.status_code

        statuses = at_once(20, ask)
        assert set(statuses) == {200, 429} and statuses.count(200) >= 5
        small.wait_idle()
        text = small.http.get("/metrics").text
        assert f'mini_infer_requests_rejected_total{{reason="queue_full"}} {statuses.count(429)}.0' in text


def test_exactly_as_many_wait_as_may() -> None:
    """One runs, two may wait, the next is refused; n answers take n places, and a list of prompts comes in whole."""
    with server(scripted_engine(endless(), step_s=0.002, max_running=1), max_waiting=2) as small:
        results: list[int] = []

        def ask() -> None:
            results.append(small.complete(max_tokens=100).status_code)

        threads = []
        for expected in ((1, 0), (1, 1), (1, 2)):
            threads.append(threading.Thread(target=ask))
            threads[-1].start()
            wait(lambda e=expected: (len(small.state().running), len(small.state().waiting)) == e, str(expected))  # type: ignore[misc]
        assert small.complete(max_tokens=1).status_code == 429
        assert small.complete(["a", "b"], max_tokens=1).status_code == 429
        assert small.complete(["a", "b", "c", "d"], max_tokens=1).status_code == 400, "never: more than may ever wait"
        for thread in threads:
            thread.join()
        assert results == [200] * 3
        assert small.complete(["a", "b", "c"], max_tokens=1).status_code == 200


def test_S19_a_long_prompt_does_not_stop_the_streams() -> None:
    """Between two tokens of a stream at most one step lies, whatever else is read meanwhile."""
    with server(scripted_engine(endless(), step_s=0.001, max_chunk=128)) as served:
        reports: list[StepReport] = []
        served.serving.service.attach(CallbackSink(reports.append))
        texts: list[str] = [""] * 3

        def listen(index: int) -> None:
            answer = served.complete("x", max_tokens=120, stream=True)
            texts[index] = joined(events(answer.content))

        threads = [threading.Thread(target=listen, args=(i,)) for i in range(3)]
        for thread in threads:
            thread.start()
        wait(lambda: len(served.state().running) == 3, "running")
        assert served.complete([7] * 1500, max_tokens=1).status_code == 200
        for thread in threads:
            thread.join()
        ids = ids_of("la ")
        right = served.engine.tokenizer.decode([ids[i % len(ids)] for i in range(120)])  # type: ignore[union-attr]
        assert texts == [right] * 3
        longest = max(sum(s.n_new for s in r.sched) for r in reports)
        assert 128 <= longest <= 256


def test_S08_a_big_request_among_small_ones() -> None:
    with server(scripted_engine(endless(), num_blocks=16, max_running=6)) as small:
        stop, served = threading.Event(), [0] * 6

        def loop(index: int) -> None:
            with httpx.Client(base_url=small.url, trust_env=False, timeout=60) as client:
                while not stop.is_set():
                    body = {"prompt": [index + 1] * 20, "max_tokens": 20, "ignore_eos": True}
                    assert client.post("/v1/completions", json=body).status_code == 200
                    served[index] += 1

        threads = [threading.Thread(target=loop, args=(i,)) for i in range(6)]
        for thread in threads:
            thread.start()
        try:
            time.sleep(0.3)
            before = small.state().step
            assert small.complete([9] * 150, max_tokens=20, ignore_eos=True).status_code == 200
            assert small.state().step - before < 2_000  # its own are about 60; a starved one would wait for ever
            before = list(served)
            wait(lambda: all(a > b for a, b in zip(served, before, strict=True)), "small ones going on")
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        small.wait_idle()


def test_M06_unseeded_answers_differ_over_starts_too() -> None:
    texts = set()
    asked = {"temperature": 1, "max_tokens": 16, "ignore_eos": True}
    for _ in range(2):
        with server() as fresh:
            texts |= {
                a.json()["choices"][0]["text"] for a in at_once(4, lambda i, fresh=fresh: fresh.complete("x", **asked))
            }
    assert len(texts) >= 7


def test_S_random_traffic_leaves_nothing_behind() -> None:
    """Everything at once on a small pool: lengths, n, stops, streams, refusals, leavers."""
    rng = random.Random(5)
    jobs = []
    for _ in range(120):
        jobs.append(
            {
                "prompt": prompt(rng.choice([1, 5, 16, 40, 90, 400]), seed=rng.randrange(6)),
                "max_tokens": rng.choice([1, 3, 17, 40]),
                "n": rng.choice([1, 1, 2, 3]),
                "stream": rng.random() < 0.5,
                "temperature": rng.choice([0, 1]),
                "stop": rng.choice([None, "a", ["zz", "e"]]),
                "ignore_eos": True,
            }
        )
    with server(tiny_engine(num_blocks=20, text="chatml")) as small:
        statuses: list[int] = []

        def ask(index: int) -> None:
            for job in jobs[index::8]:
                try:
                    limit = 0.01 if rng.random() < 0.1 else 60
                    with httpx.Client(base_url=small.url, trust_env=False, timeout=limit) as client:
                        statuses.append(client.post("/v1/completions", json=job).status_code)
                except httpx.TimeoutException:
                    pass

        at_once(8, ask)
        assert set(statuses) == {200, 400}
        small.wait_idle()
        assert small.state().totals.error == 0


HEALTH_PROBE = """
import sys, time, http.client
port, seconds = int(sys.argv[1]), float(sys.argv[2])
took, end = [], time.monotonic() + seconds
while time.monotonic() < end:
    start = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/health")
    assert connection.getresponse().status == 200
    connection.close()
    took.append(time.monotonic() - start)
    time.sleep(0.01)
took.sort()
print(len(took), took[int(0.99 * len(took))], took[-1])
"""


@pytest.mark.timing
def test_H28_health_is_quick_under_load() -> None:
    """p99 of /health from another process, while 64 streams run and a prompt of 1,500 ids is read."""
    with server(tiny_engine(num_blocks=1024, text="chatml")) as served:
        probe = subprocess.Popen(
            [sys.executable, "-c", HEALTH_PROBE, str(served.port), "8"], stdout=subprocess.PIPE, text=True
        )

        async def run() -> None:
            limits = httpx.Limits(max_connections=70)
            async with httpx.AsyncClient(base_url=served.url, limits=limits, trust_env=False, timeout=60) as client:
                while probe.poll() is None:
                    bodies = [GREEDY | {"prompt": f"tale {i}", "max_tokens": 100} for i in range(64)]
                    bodies.append(GREEDY | {"prompt": prompt(1500), "max_tokens": 1})
                    await asyncio.gather(*[stream_text(client, body) for body in bodies])

        in_loop(run)
        assert probe.stdout is not None
        count, p99, worst = map(float, probe.stdout.read().split())
        print(f"/health: {count:.0f} calls, p99 {1e3 * p99:.1f} ms, worst {1e3 * worst:.1f} ms")
        assert p99 < 0.1


def test_a_larger_priority_gives_way() -> None:
    order: list[str] = []

    def note(report: StepReport) -> None:
        order.extend(a.seq_id for a in report.admitted)

    with server(scripted_engine(endless(), max_running=1)) as served:
        served.serving.service.attach(CallbackSink(note))
        served.serving.service.pause()
        clients = []
        for priority in (5, 9, 0, None, 5):
            body = {"prompt": [7], "max_tokens": 3, "priority": priority}
            clients.append(RawStream(served, "/v1/completions", body))
            wait(lambda: len(served.state().sequences) == len(clients), "queued")
        assert [s.priority for s in served.state().sequences.values()] == [5, 9, 0, 0, 5]
        served.serving.service.resume()
        for client in clients:
            client.read_until(b'"usage"')
            client.close()
        assert order == ["r3", "r4", "r1", "r5", "r2"]
