"""A client that goes away costs nothing: in every phase its request ends and its blocks are free within two steps."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from mini_infer.observe.events import StepReport
from mini_infer.observe.sinks import CallbackSink
from tests.api.support import RawStream, Server, at_once, endless, events, ids_of, joined, scripted_engine, server, wait

CHAT = "/v1/chat/completions"


def body(text: str = "x", **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 3000, "stream": True, **more}


class Steps:
    """Steps of the fake model that a test lets happen one by one, and what each reported."""

    def __init__(self, served: Server) -> None:
        self.served = served
        self.reports: list[StepReport] = []
        served.serving.service.attach(CallbackSink(self.reports.append))
        served.serving.service.pause()

    def step(self, count: int = 1) -> None:
        before = self.served.state().step
        self.served.serving.service.step(count)
        wait(lambda: self.served.state().step == before + count, f"{count} steps taken")


def small_send_buffers(served: Server) -> None:
    """The kernel would otherwise take megabytes for a client that reads nothing."""
    for listener in served.uvicorn.servers:
        for listening in listener.sockets:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)


def phases() -> dict[str, Callable[[Steps], None]]:
    """How far a request is when its client goes: what must have happened before."""
    return {
        "queued": lambda steps: None,
        "prefill": lambda steps: steps.step(2),
        "decode": lambda steps: steps.step(8),
    }


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("phase", ["queued", "prefill", "decode"])
@pytest.mark.parametrize("how", [RawStream.close, RawStream.reset])
def test_gone_within_two_steps(phase: str, stream: bool, how: Callable[[RawStream], None]) -> None:
    """Stepping by hand: whatever the phase, the request is gone before the second step after the disconnect ends."""
    with server(scripted_engine(endless(), max_chunk=16, max_batch_tokens=16, max_running=4)) as served:
        steps = Steps(served)
        prompt = "la " * 20  # four chunks of sixteen
        client = RawStream(served, CHAT, body(prompt, stream=stream))
        wait(lambda: len(served.state().sequences) == 1, "queued")
        phases()[phase](steps)
        (seq,) = served.state().sequences.values()
        computed, wanted = seq.num_computed, len(seq.prompt)
        assert {"queued": computed == 0, "prefill": 0 < computed < wanted, "decode": computed > wanted}[phase]
        how(client)
        wait(served.is_idle, "gone although no step is taken at all")
        assert served.state().totals.abort == 1
        served.serving.service.resume()
        right = joined(events(served.http.post(CHAT, json=body(max_tokens=5)).content))
        assert right == "la la la la la "[: len(right)] and right


@pytest.mark.timing
def test_gone_within_two_running_steps() -> None:
    """The same at speed: a step is 20 ms here, and no third one begins with the request in it."""
    engine = scripted_engine(endless(), step_s=0.02)
    with server(engine) as served:
        reports: list[StepReport] = []
        served.serving.service.attach(CallbackSink(reports.append))
        for stream in (True, False):
            client = RawStream(served, CHAT, body(stream=stream))
            wait(lambda: len(served.state().running) == 1, "running")
            time.sleep(0.1)
            closed = engine.runner.batches  # type: ignore[attr-defined]
            client.close()
            wait(served.is_idle, "idle")
            assert engine.runner.batches <= closed + 2  # type: ignore[attr-defined]


def test_a_queued_client_that_goes_hurts_nobody() -> None:
    with server(scripted_engine(endless(), step_s=0.002, max_running=1)) as served:
        running = RawStream(served, CHAT, body(max_tokens=150))
        running.read_until(b"content")
        queued = [RawStream(served, CHAT, body("y", stream=i % 2 == 0)) for i in range(6)]
        wait(lambda: len(served.state().waiting) == 6, "queued")
        for client in queued:
            client.reset()
        wait(lambda: not served.state().waiting, "gone")
        assert b"data: [DONE]" in running.read_until(b"0\r\n\r\n")
        assert served.state().totals.length == 1 and served.state().totals.abort == 6
        running.close()


def test_one_choice_of_many_goes_with_all() -> None:
    with server(scripted_engine(endless(), step_s=0.002)) as served:
        client = RawStream(served, CHAT, body(n=4))
        wait(lambda: len(served.state().running) == 4, "forked")
        client.close()
        wait(served.is_idle, "idle")
        many = RawStream(served, "/v1/completions", {"prompt": ["a", "b", "c"], "n": 2, "max_tokens": 3000})
        wait(lambda: len(served.state().running) == 6, "running")
        many.reset()
        wait(served.is_idle, "idle")


def test_a_client_that_goes_while_it_sends_its_body() -> None:
    with server(scripted_engine(endless())) as served:
        client = RawStream.__new__(RawStream)
        client.socket = socket.create_connection(("127.0.0.1", served.port))
        client.socket.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: 5000\r\n\r\n{"
        )
        time.sleep(0.05)
        client.reset()
        line = 'mini_infer_requests_total{endpoint="/v1/chat/completions",status="499",stream="false"} 1.0'
        wait(lambda: line in served.http.get("/metrics").text, "counted as 499")
        assert served.is_idle()


def test_S04_two_hundred_in_a_row_leave_the_pool_idle() -> None:
    """Closed or reset, in whatever phase they happen to be; and the server answers as before."""
    with server() as served:
        right = served.chat().json()["choices"][0]["message"]
        for number in range(200):
            client = RawStream(
                served, CHAT, body(f"tale {number % 7}", stream=number % 4 != 3, ignore_eos=True, n=1 + number % 2)
            )
            if number % 4 == 1:
                client.read_until(b"content")
            elif number % 4 == 2:
                client.read_until(b"200 OK")
            (client.reset if number % 3 else client.close)()
        served.wait_idle()
        state = served.state()
        assert state.totals.abort > 100 and state.totals.error == 0
        assert state.pool.cached + state.pool.free == 256
        assert served.chat().json()["choices"][0]["message"] == right
        text = served.http.get("/metrics").text
        assert "vllm:num_requests_running" in text and 'vllm:num_requests_running{engine="0",model_name' in text
        for line in text.splitlines():
            if line.startswith(("vllm:num_requests", "vllm:kv_cache_usage")):
                assert line.endswith(" 0.0")


def test_a_client_that_stops_reading_delays_nobody() -> None:
    """Its socket stays full for good, and the others are answered all the same."""
    with server(scripted_engine(endless("word " * 40), context=60_000, num_blocks=8000), send_timeout=3600) as served:
        small_send_buffers(served)
        deaf = RawStream(served, CHAT, body(max_tokens=50_000), receive_buffer=2048)
        deaf.read_until(b"content")
        for _ in range(10):
            assert served.complete(max_tokens=20).json()["usage"]["completion_tokens"] == 20
        assert served.state().totals.abort == 0
        deaf.reset()
        served.wait_idle()


def test_a_client_that_stops_reading_is_cut_off(caplog: pytest.LogCaptureFixture) -> None:
    """Its memory is bounded, and after the send timeout it is gone."""
    engine = scripted_engine(endless("word " * 40), step_s=0.002, context=60_000, num_blocks=8000)
    with server(engine, send_timeout=1.0) as served:
        small_send_buffers(served)
        deaf = RawStream(served, CHAT, body(max_tokens=50_000), receive_buffer=2048)
        deaf.read_until(b"content")
        wait(served.is_idle, "the deaf client cut off")
        assert served.state().totals.abort == 1
        line = 'mini_infer_requests_aborted_total{reason="timeout"} 1.0'
        wait(lambda: line in served.http.get("/metrics").text, "counted")
        wait(lambda: len(served.uvicorn.server_state.connections) <= 1, "its connection gone")
        deaf.close()
    assert not [r for r in caplog.records if r.levelname == "ERROR"]


def test_a_client_that_never_reads_its_answers_is_cut_off_too(caplog: pytest.LogCaptureFixture) -> None:
    """Request after request over one connection, and no answer is ever read."""
    with server(scripted_engine(ids_of("word " * 300)), send_timeout=0.5) as served:
        small_send_buffers(served)
        deaf = RawStream(served, CHAT, body(stream=False), receive_buffer=2048)
        data = json.dumps(body(stream=False)).encode()
        head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode()
        try:
            for _ in range(300):
                deaf.socket.sendall(head + data)
        except (OSError, TimeoutError):
            pass
        wait(lambda: len(served.uvicorn.server_state.connections) <= 1, "its connection gone")
        served.wait_idle()
        deaf.close()
    assert not [r for r in caplog.records if r.levelname == "ERROR"]


def test_a_slow_reader_loses_nothing() -> None:
    with server(scripted_engine(endless("word " * 40), context=20_000, num_blocks=3000)) as served:
        small_send_buffers(served)
        slow = RawStream(served, CHAT, body(max_tokens=5_000), receive_buffer=2048)
        time.sleep(0.5)
        got = b""
        while b"[DONE]" not in got:
            got += slow.socket.recv(4096)
            if len(got) < 100_000:
                time.sleep(0.002)
        text, data = "", got.partition(b"\r\n\r\n")[2]
        while data:  # chunked
            size, _, data = data.partition(b"\r\n")
            part, data = data[: int(size, 16)], data[int(size, 16) + 2 :]
            if part.startswith(b"data: {"):
                text += json.loads(part[6:])["choices"][0]["delta"].get("content", "")
        slow.close()
        ids = ids_of("word " * 40)
        assert text == served.engine.tokenizer.decode([ids[i % len(ids)] for i in range(5_000)])  # type: ignore[union-attr]


def test_S08_a_crowd_that_comes_and_goes() -> None:
    """Eight clients at once, half of them leaving early, on a pool that holds three: the rest get their answers."""
    with server(scripted_engine(endless(), num_blocks=24, step_s=0.0005)) as served:
        right = joined(events(served.http.post(CHAT, json=body(max_tokens=60)).content))

        def visit(index: int) -> None:
            for turn in range(6):
                client = RawStream(served, CHAT, body(max_tokens=60))
                if (index + turn) % 2:
                    client.read_until(b"200 OK")
                    client.reset()
                else:
                    assert client.read_until(b"0\r\n\r\n").count(b"[DONE]") == 1
                    client.close()

        at_once(8, visit)
        served.wait_idle()
        assert joined(events(served.http.post(CHAT, json=body(max_tokens=60)).content)) == right


def test_leaving_while_paused_frees_at_once() -> None:
    with server(scripted_engine(endless())) as served:
        served.serving.service.pause()
        client = RawStream(served, CHAT, body())
        wait(lambda: len(served.state().waiting) == 1, "queued")
        assert served.http.get("/health").json()["paused"] is True
        assert served.http.get("/health").status_code == 200
        ready = served.http.get("/health/ready")
        assert ready.status_code == 503 and ready.json() == {"status": "paused"}
        client.close()
        wait(served.is_idle, "idle")
        served.serving.service.resume()
        assert served.http.get("/health/ready").status_code == 200


def test_a_disconnect_is_not_an_error_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with server(scripted_engine(endless(), step_s=0.002)) as served:
        for stream in (True, False):
            client = RawStream(served, CHAT, body(stream=stream))
            wait(lambda: len(served.state().running) == 1, "running")
            client.reset()
            wait(served.is_idle, "idle")
        wait(lambda: sum("499" in r.getMessage() for r in caplog.records) == 0, "nothing", 0.1)
    assert not [r for r in caplog.records if r.levelname in ("ERROR", "WARNING")]
    assert threading.active_count() < 50
