"""Around the routes: keys, browsers, request ids, the log, health, and how a server ends."""

from __future__ import annotations

import json
import logging
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import httpx
import pytest

from mini_infer.api.options import ServerOptions
from mini_infer.api.server import bind, running
from mini_infer.api.serving import Serving
from mini_infer.errors import UserError
from tests.api.support import (
    RawStream,
    Server,
    endless,
    error_of,
    scripted_engine,
    server,
    wait,
)

CHAT = "/v1/chat/completions"
GUARDED = [
    ("GET", "/v1/models"), ("GET", "/models"), ("GET", "/v1/models/x"), ("POST", CHAT), ("POST", "/chat/completions"),
    ("POST", "/v1/completions"), ("POST", "/completions"), ("POST", "/tokenize"), ("POST", "/detokenize"),
    ("GET", "/v1/engine/state"), ("GET", "/metrics"), ("GET", "/version"), ("GET", "/schema"),
    ("GET", "/schema/openapi.json"),
]  # fmt: skip


@pytest.fixture(scope="module")
def locked() -> Iterator[Server]:
    with server(scripted_engine([5]), api_key="s3cret", cors_origins=("https://app.example",)) as running:
        yield running


# --- the key --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "path"), GUARDED)
def test_without_the_key_there_is_nothing(locked: Server, method: str, path: str) -> None:
    """Also before a word of the body is read."""
    answer = locked.http.request(method, path, content=b"{" if method == "POST" else None)
    assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer"
    assert error_of(answer)["code"] == "invalid_api_key"


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer s3cre"}, {"authorization": "Bearer s3crets"}, {"authorization": "s3cret"},
        {"authorization": "Basic s3cret"}, {"authorization": "Bearer"},
        {"authorization": "Bearer S3CRET"}, {"x-api-key": ""}, {"x-api-key": "s3cret\u00e9"}, {"api-key": "s3cret"},
    ],
)  # fmt: skip
def test_wrong_keys(locked: Server, headers: dict[str, str]) -> None:
    encoded = {name: value.encode("latin-1") for name, value in headers.items()}
    assert locked.http.get("/v1/models", headers=encoded).status_code == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer s3cret"},
        {"authorization": "bearer s3cret"},
        {"authorization": "Bearer  s3cret"},
        {"x-api-key": "s3cret"},
        {"x-api-key": "s3cret", "authorization": "Bearer none"},
    ],
)
def test_right_keys(locked: Server, headers: dict[str, str]) -> None:
    for method, path in GUARDED:
        assert locked.http.request(method, path, headers=headers).status_code in (200, 400, 404)
    assert locked.http.get("/v1/models", headers=headers).status_code == 200


def test_health_needs_no_key(locked: Server) -> None:
    for path in ("/health", "/health/ready"):
        assert locked.http.get(path).status_code == 200
    assert "model" not in locked.http.get("/health").text


def test_the_key_is_compared_in_constant_time(locked: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    import secrets

    compared: list[tuple[int, int]] = []
    real = secrets.compare_digest

    def spy(a: bytes, b: bytes) -> bool:
        compared.append((len(a), len(b)))
        return real(a, b)

    monkeypatch.setattr(secrets, "compare_digest", spy)
    for key in ("s", "s3cret", "s3cret" * 50):
        locked.http.get("/v1/models", headers={"authorization": f"Bearer {key}"})
    assert compared and set(compared) == {(32, 32)}


# --- browsers -------------------------------------------------------------------------------------------------------


def test_H18_a_preflight_needs_no_key(locked: Server) -> None:
    origin = {"origin": "https://app.example"}
    for more in ({}, {"access-control-request-method": "POST", "access-control-request-headers": "x-stainless-os"}):
        answer = locked.http.request("OPTIONS", CHAT, headers=origin | more)
        assert answer.status_code in (200, 204)
        assert answer.headers["access-control-allow-origin"] == "https://app.example"
        allowed = answer.headers["access-control-allow-headers"].lower()
        assert "content-type" in allowed and ("authorization" in allowed or more)
        assert "POST" in answer.headers["access-control-allow-methods"]
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type"}
    allowed = locked.http.request("OPTIONS", CHAT, headers=origin | asked).headers["access-control-allow-headers"]
    assert {"authorization", "content-type"} <= {name.strip().lower() for name in allowed.split(",")}
    assert locked.http.post(CHAT, headers=origin, json={}).status_code == 401


def test_pages_may_read_answers_errors_and_streams(locked: Server) -> None:
    headers = {"origin": "https://app.example", "x-api-key": "s3cret"}
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
    for content, status in ((body, 200), (body | {"stream": True}, 200), ({}, 400)):
        answer = locked.http.post(CHAT, headers=headers, json=content)
        assert answer.status_code == status
        assert answer.headers["access-control-allow-origin"] == "https://app.example"
        assert {"x-request-id", "x-mini-infer-ignored-params"} <= set(
            answer.headers["access-control-expose-headers"].split(", ")
        )
    unauthorised = locked.http.post(CHAT, headers={"origin": "https://app.example"}, json=body)
    assert unauthorised.headers["access-control-allow-origin"] == "https://app.example"


def test_other_pages_may_not(locked: Server) -> None:
    origin = {"origin": "https://app.example.evil"}
    answer = locked.http.request("OPTIONS", CHAT, headers=origin | {"access-control-request-method": "POST"})
    assert "access-control-allow-origin" not in answer.headers
    assert "access-control-allow-origin" not in locked.http.get("/health", headers=origin).headers


def test_without_cors_no_page_is_let_in(tiny: Server) -> None:
    answer = tiny.http.get("/v1/models", headers={"origin": "https://app.example"})
    assert not [name for name in answer.headers if name.startswith("access-control")]
    preflight = tiny.http.request("OPTIONS", CHAT, headers={"origin": "https://app.example"})
    assert not [name for name in preflight.headers if name.startswith("access-control")]


# --- ids, log, schema -----------------------------------------------------------------------------------------------


def test_request_ids(tiny: Server) -> None:
    for path in ("/health", "/nothing", "/v1/models"):
        one, other = (tiny.http.get(path).headers["x-request-id"] for _ in range(2))
        assert one != other and re.fullmatch(r"req-[0-9a-f]{32}", one)
    assert tiny.http.get("/health", headers={"x-request-id": "mine-1"}).headers["x-request-id"] == "mine-1"
    for odd in (b"a b", b"x" * 129, b"caf\xe9", b""):
        assert tiny.http.get("/health", headers={"x-request-id": odd}).headers["x-request-id"].startswith("req-")
    assert tiny.chat(stream=True).headers["x-request-id"]


def test_the_access_log(tiny: Server, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "mini_infer.access"):
        tiny.http.get("/v1/models?x=1", headers={"x-request-id": "abc"})
        tiny.http.get("/a%0Ab%1b[31m")
        tiny.http.get("/health")
        tiny.chat(stream=True)
        wait(lambda: CHAT in caplog.text, "logged")
    lines = [r.getMessage() for r in caplog.records if r.name == "mini_infer.access" and "state" not in r.getMessage()]
    assert re.fullmatch(r'127\.0\.0\.1 "GET /v1/models" 200 \d+ ms abc', lines[0])
    assert '"GET /a%0Ab%1b[31m" 404' in lines[1]
    assert len(lines) == 3 and f'"POST {CHAT}" 200' in lines[2], "health is not news"
    assert "hello" not in "".join(lines), "no prompts in the log"


def test_the_schema_describes_the_routes(tiny: Server) -> None:
    schema = tiny.http.get("/schema").json()
    assert tiny.http.get("/schema/openapi.json").json() == schema
    paths = schema["paths"]
    assert {CHAT, "/v1/completions", "/v1/models", "/health", "/metrics", "/tokenize", "/v1/engine/state"} <= set(paths)
    ref = paths[CHAT]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    fields = schema["components"]["schemas"][ref.rpartition("/")[2]]
    assert {"messages", "temperature", "logit_bias", "stream_options", "cache_salt"} <= set(fields["properties"])
    assert fields["required"] == ["messages"]
    assert schema["info"]["title"] == "mini-infer" and schema["openapi"].startswith("3.1")
    assert error_of(tiny.http.get("/v1/nothing"))


def test_the_state_is_there_only_where_asked() -> None:
    with server(scripted_engine([5]), observe=False) as blind:
        assert error_of(blind.http.get("/v1/engine/state"))["code"] == "not_found"
        assert "/v1/engine/state" not in blind.http.get("/schema").json()["paths"]
    with server(scripted_engine(endless(), step_s=0.005)) as seen:
        stream = RawStream(seen, CHAT, {"messages": [{"role": "user", "content": "x"}], "stream": True})
        stream.read_until(b"content")
        (seq,) = seen.state().sequences.values()
        assert seq.running and seq.text.startswith("l") and seq.table
        stream.close()
        seen.wait_idle()


def test_version_and_health(tiny: Server) -> None:
    from mini_infer.version import __version__

    assert tiny.http.get("/version").json() == {"version": __version__}
    health = tiny.http.get("/health").json()
    assert health == {"status": "ok", "engine": "mini-infer", "version": __version__, "paused": False, "faults": 0}
    assert tiny.http.get("/health/ready").json() == {"status": "ready"}


def test_a_stalled_engine_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    engine = scripted_engine(endless("ab"))
    with server(engine) as served:
        engine.runner.before_run = lambda batch: gate.wait(20)  # type: ignore[attr-defined]
        stream = RawStream(served, CHAT, {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2})
        try:
            wait(lambda: engine.has_work, "there")
            monkeypatch.setattr("mini_infer.api.serving.STALLED_S", 0.05)
            wait(lambda: served.http.get("/health/ready").json() == {"status": "stalled"}, "stalled")
            assert served.http.get("/health").status_code == 200, "it lives, and answers about itself"
        finally:
            gate.set()
        stream.read_until(b"usage")
        stream.close()
        monkeypatch.undo()
        assert served.http.get("/health/ready").status_code == 200


def test_a_dead_engine_is_said() -> None:
    engine = scripted_engine(endless(), step_s=0.002)
    with server(engine) as served:
        stream = RawStream(served, CHAT, {"messages": [{"role": "user", "content": "x"}], "stream": True})
        stream.read_until(b"content")

        def fails() -> Any:
            raise SystemError("out of this world")

        engine.step = fails  # type: ignore[method-assign]
        rest = stream.read_until(b"0\r\n\r\n")
        assert b'data: {"error":' in rest and b"data: [DONE]" in rest
        stream.close()
        wait(lambda: served.http.get("/health").status_code == 503, "dead")
        assert served.http.get("/health").json()["status"] == "dead"
        assert served.http.get("/health/ready").json() == {"status": "dead"}
        answer = served.chat()
        assert answer.status_code == 503 and error_of(answer)["code"] == "engine_dead"


def test_an_unexpected_fault_is_one_json_error_and_one_trace(caplog: pytest.LogCaptureFixture) -> None:
    with server(scripted_engine([5])) as served:
        served.serving.names.check = lambda asked: 1 / 0  # type: ignore[method-assign,assignment,return-value]
        answer = served.chat()
        assert answer.status_code == 500 and error_of(answer)["type"] == "server_error"
        assert "division" not in answer.text and "ZeroDivisionError" in answer.text
        assert len([r for r in caplog.records if r.exc_info]) == 1


# --- options --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("port", -1), ("port", 65536), ("api_key", ""), ("api_key", "a b"), ("api_key", "é"), ("max_waiting", -1),
        ("max_n", 0), ("body_limit", 0), ("drain_seconds", -1.0), ("drain_seconds", float("nan")),
        ("sse_keepalive", float("inf")), ("send_timeout", 0.0), ("cors_origins", ("example.org",)),
        ("cors_origins", ("https://example.org/path",)), ("served_model_name", " "),
    ],
)  # fmt: skip
def test_options_that_cannot_work(option: str, value: Any) -> None:
    name = {"cors_origins": "cors-origin"}.get(option, option.replace("_", "-"))
    with pytest.raises(UserError, match=f"--{name}"):
        ServerOptions(**{option: value})


@pytest.mark.parametrize(
    ("host", "key", "exposed"),
    [
        ("127.0.0.1", None, False), ("127.8.8.8", None, False), ("::1", None, False), ("localhost", None, False),
        ("0.0.0.0", None, True), ("::", None, True), ("192.168.1.2", None, True), ("box.example", None, True),
        ("0.0.0.0", "k", False), ("", None, True),
    ],
)  # fmt: skip
def test_who_can_be_reached_by_others(host: str, key: str | None, exposed: bool) -> None:
    assert ServerOptions(host=host, api_key=key).is_exposed is exposed


def test_a_taken_port_is_one_line() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(UserError, match=r"cannot listen on 127\.0\.0\.1 port"):
            bind("127.0.0.1", other.getsockname()[1])
    with pytest.raises(UserError, match="cannot listen on"):
        bind("203.0.113.7", 0)
    with pytest.raises(UserError, match=r"cannot listen on no\.such\.host\.invalid"):
        bind("no.such.host.invalid", 0)


def test_a_name_of_both_kinds_is_bound_where_every_client_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.getaddrinfo
    both = [*real("::1", 0, 0, socket.SOCK_STREAM), *real("127.0.0.1", 0, 0, socket.SOCK_STREAM)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: both)
    with closing(bind("localhost", 0)) as sock:
        assert sock.family == socket.AF_INET


def test_ipv6() -> None:
    try:
        with running(Serving(lambda: scripted_engine([5]), ServerOptions(host="::1", port=0), "m")) as served:
            assert served.url.startswith("http://[::1]:")
            assert httpx.get(f"{served.url}/health", trust_env=False).status_code == 200
    except UserError:
        pytest.skip("this machine has no IPv6 loopback")


def test_what_loading_raises_comes_out() -> None:
    def build() -> Any:
        raise UserError("no such model")

    with pytest.raises(UserError, match="no such model"), running(Serving(build, ServerOptions(port=0), "m")):
        pass


# --- the end --------------------------------------------------------------------------------------------------------


def test_a_drain_lets_answers_finish_and_refuses_new_ones() -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "stream": True, "max_tokens": 100}
    with server(scripted_engine(endless(), step_s=0.005), drain_seconds=20.0) as served:
        stream = RawStream(served, CHAT, body)
        stream.read_until(b"content")
        served.uvicorn.end()
        wait(lambda: served.http.get("/health/ready").json() == {"status": "draining"}, "draining")
        assert served.http.get("/health").status_code == 200
        refused = served.chat()
        assert refused.status_code == 503 and error_of(refused)["code"] == "shutting_down"
        assert refused.headers["retry-after"] == "1"
        rest = stream.read_until(b"0\r\n\r\n")
        assert b'"finish_reason":"length"' in rest and b"data: [DONE]" in rest and b'"error"' not in rest
        assert stream.rest() == b""


@pytest.mark.parametrize("stream", [True, False])
def test_what_does_not_finish_in_time_is_told_so(stream: bool) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "stream": stream, "max_tokens": 4000}
    with server(scripted_engine(endless(), step_s=0.005), drain_seconds=0.3) as served:
        client = RawStream(served, CHAT, body)
        wait(lambda: len(served.state().running) == 1, "running")
        served.uvicorn.end()
        rest = client.rest()
        assert b"shutting_down" in rest
        assert (b"data: [DONE]\n\n" in rest and b'data: {"error":{' in rest) if stream else b" 503 " in rest[:40]
        client.close()


def test_a_second_signal_ends_at_once() -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "stream": True, "max_tokens": 4000}
    with server(scripted_engine(endless(), step_s=0.005), drain_seconds=60.0) as served:
        client = RawStream(served, CHAT, body)
        client.read_until(b"content")
        served.uvicorn.end()
        time.sleep(0.1)
        start = time.monotonic()
        served.uvicorn.end()
        client.rest()
        assert time.monotonic() - start < 50
        client.close()


def test_a_paused_server_drains_too() -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "stream": True, "max_tokens": 20}
    with server(scripted_engine(endless()), drain_seconds=20.0) as served:
        served.serving.service.pause()
        client = RawStream(served, CHAT, body)
        wait(lambda: len(served.state().waiting) == 1, "queued")
        served.uvicorn.end()
        assert b'"finish_reason":"length"' in client.read_until(b"0\r\n\r\n")
        client.close()


def test_json_of_every_answer_is_json(tiny: Server) -> None:
    for path in ("/health", "/health/ready", "/version", "/v1/models", "/v1/engine/state", "/nothing"):
        answer = tiny.http.get(path)
        assert answer.headers["content-type"] == "application/json" and json.loads(answer.content)
