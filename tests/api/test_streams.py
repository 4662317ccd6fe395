"""Streams byte for byte: framing, what is held back, what is merged, how they end."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from typing import Any

import pytest

from mini_infer.api.sse import closed_when_gone, frame
from mini_infer.response_stream import Request, ResponseStream
from mini_infer.results import Collector
from tests.api.support import (
    RawStream,
    Server,
    at_once,
    endless,
    events,
    ids_of,
    in_loop,
    joined,
    reasons,
    scripted_engine,
    server,
    wait,
)
from tests.support.engines import tiny_engine, tiny_tokenizer

ROUTES = ["/v1/chat/completions", "/v1/completions"]


def body_of(path: str, **more: Any) -> dict[str, Any]:
    asked: dict[str, Any] = {"prompt": "x"} if path.endswith("/completions") and "chat" not in path else {}
    return (asked or {"messages": [{"role": "user", "content": "x"}]}) | {"max_tokens": 500} | more


def stream_of(served: Server, path: str, **more: Any) -> list[Any]:
    answer = served.post(path, **body_of(path, stream=True, **more))
    assert answer.status_code == 200, answer.text
    return events(answer.content)


def text_of(served: Server, path: str, **more: Any) -> tuple[str, str]:
    """(text, finish reason) without a stream."""
    choice = served.post(path, **body_of(path, **more)).json()["choices"][0]
    return choice["text"] if "text" in choice else choice["message"]["content"], choice["finish_reason"]


def contents(stream: list[Any]) -> list[str]:
    """The text of each event that has some."""
    found = [c["text"] if "text" in c else c["delta"].get("content", "") for e in stream for c in e["choices"]]
    return [text for text in found if text]


@pytest.mark.parametrize("path", ROUTES)
def test_the_frames_of_a_stream(path: str) -> None:
    with server(scripted_engine(ids_of("one two three"), step_s=0.002)) as told:
        answer = told.post(path, **body_of(path, stream=True))
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert answer.headers["cache-control"] == "no-cache" and answer.headers["x-accel-buffering"] == "no"
        assert answer.headers["transfer-encoding"] == "chunked" and "content-encoding" not in answer.headers
        raw = answer.content
        assert b"\r" not in raw and b"\nid:" not in raw and b"retry:" not in raw and b"event:" not in raw
        stream = events(raw)
        assert len({(e["id"], e["created"], e["model"], e["system_fingerprint"]) for e in stream}) == 1
        assert {e["object"] for e in stream} == {"chat.completion.chunk" if "chat" in path else "text_completion"}
        assert joined(stream) == "one two three" and reasons(stream) == ["stop"]
        assert all(c["finish_reason"] is None for e in stream[:-1] for c in e["choices"])
        if "chat" in path:
            assert stream[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
            assert [e for e in stream if "role" in e["choices"][0]["delta"]] == stream[:1]
            assert stream[-1]["choices"][0]["delta"] == {}


def test_the_json_of_a_frame_is_one_line_to_every_reader() -> None:
    data = frame({"x": "a\u2028\u2029\u0085\n\r\x0b\x0c\x1c\x1d\x1e b\u0a85\u20a8"})
    assert len(data.decode().splitlines()) == 2 and data.endswith(b"\n\n")
    assert json.loads(data[6:]) == {"x": "a\u2028\u2029\u0085\n\r\x0b\x0c\x1c\x1d\x1e b\u0a85\u20a8"}


def test_a_stream_is_closed_at_the_end_whoever_still_holds_it() -> None:
    """Also where the answer ends by an exception: the abort does not wait for the garbage collector."""
    aborted: list[str] = []

    async def run() -> None:
        request = Request(asyncio.get_running_loop(), asyncio.Queue(), Collector("r1", 1))
        stream = ResponseStream([request], aborted.append)
        with pytest.raises(ZeroDivisionError):
            async with closed_when_gone(stream, asyncio.Event().wait):  # type: ignore[arg-type]
                raise ZeroDivisionError
        assert aborted == ["r1"] and await stream.read() == []

    in_loop(run)


def test_each_event_is_one_write_and_the_role_comes_with_the_first_token() -> None:
    """Nothing but the head is sent before there is a token, so that clients measure the first token."""
    gate = threading.Event()
    engine = scripted_engine(ids_of("abc"))
    engine.runner.before_run = lambda batch: gate.wait(10)  # type: ignore[attr-defined]
    with server(engine) as told:
        stream = RawStream(told, ROUTES[0], body_of(ROUTES[0], stream=True))
        head = stream.read_until(b"\r\n\r\n")
        assert b"200 OK" in head and head.endswith(b"\r\n\r\n")
        stream.socket.settimeout(0.2)
        with pytest.raises(TimeoutError):
            stream.socket.recv(100)
        gate.set()
        stream.socket.settimeout(10)
        rest = stream.read_until(b"[DONE]\n\n\r\n0\r\n\r\n")
        for size, data in zip(*[iter(rest.split(b"\r\n")[:-3])] * 2, strict=True):
            assert int(size, 16) == len(data) and data.startswith(b"data: ") and data.endswith(b"\n\n")
            assert data.count(b"\n\n") == 1
        stream.close()


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("text", ["héllo 😀 日本 👩‍👩‍👧 🇨🇭", "\U0010fffd\u0301", "😀 first", "a\x00b"])
def test_T03_characters_of_several_tokens(path: str, text: str) -> None:
    with server(scripted_engine(ids_of(text))) as told:
        stream = stream_of(told, path)
        assert "".join(contents(stream)) == text_of(told, path)[0] == text
        assert not any("\ufffd" in part for part in contents(stream))
        assert path != ROUTES[0] or sum("role" in c["delta"] for e in stream for c in e["choices"]) == 1


def test_T03_an_unfinished_character_is_shown_at_the_end() -> None:
    ids = ids_of("a😀")[:-1]
    with server(scripted_engine(ids)) as told:
        assert joined(stream_of(told, ROUTES[0])) == text_of(told, ROUTES[0])[0]
        assert text_of(told, ROUTES[0])[0].startswith("a\ufffd")


@pytest.mark.parametrize("path", ROUTES)
def test_T06_spaces_of_metaspace_tokenizers(path: str) -> None:
    llama = tiny_tokenizer("llama")
    ids = llama.encode("one two  three\n four", allow_special=False, add_special_tokens=False)
    eos = llama.id_of("</s>")
    assert eos is not None
    with server(scripted_engine(ids, tokenizer=llama, eos=(eos,))) as told:
        text = joined(stream_of(told, path))
        assert text == text_of(told, path)[0] and text.strip() == "one two  three\n four"
        if path == ROUTES[1]:
            assert text.startswith(" "), "a continuation begins with its space"


@pytest.mark.parametrize("path", ROUTES)
def test_T07_a_stop_text_over_several_tokens(path: str) -> None:
    with server(scripted_engine(ids_of("alpha beta gamma delta"))) as told:
        for stop in ("ta gam", ["nothing", "ta gam"]):
            stream = stream_of(told, path, stop=stop)
            assert joined(stream) == "alpha be" and reasons(stream) == ["stop"]
            assert text_of(told, path, stop=stop) == ("alpha be", "stop")
            last = [c for e in stream for c in e["choices"]][-1]
            assert last["stop_reason"] == "ta gam"
        whole = stream_of(told, path, stop="ta gam", include_stop_str_in_output=True)
        assert joined(whole) == "alpha beta gam"
        assert joined(stream_of(told, path, stop="deltas")) == "alpha beta gamma delta", "released at the end"


@pytest.mark.parametrize("path", ROUTES)
def test_T09_a_long_stop_text_holds_nothing_up(path: str) -> None:
    words = "one two three four five six seven eight nine ten"
    with server(scripted_engine(ids_of(words), step_s=0.003)) as told:
        stream = stream_of(told, path, stop="@" * 24)
        assert joined(stream) == words
        assert len(contents(stream)) > 8, "words flow as they come"
        empty = [e for e in stream[1:-1] if not contents([e])]
        assert not empty, "no events without text"


def test_P17_a_follow_up_after_a_stop_text_equals_a_cold_one() -> None:
    with server() as warm:
        whole = warm.chat(max_tokens=20, ignore_eos=True).json()["choices"][0]["message"]["content"]
        stop = whole[4:7]
        first = warm.chat(max_tokens=20, stop=stop, ignore_eos=True).json()["choices"][0]["message"]["content"]
        assert first == whole[: whole.index(stop)]
        turns = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": first}]
        turns.append({"role": "user", "content": "and then?"})
        follow = {"messages": turns, "temperature": 0, "max_tokens": 20}
        again = warm.post(ROUTES[0], **follow).json()
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= 16
    with server() as cold:
        assert cold.post(ROUTES[0], **follow).json()["choices"] == again["choices"]


def test_the_log_probabilities_of_held_tokens_come_with_their_text() -> None:
    """Joined tokens are the joined text at every event, but for what the event's own text leaves open."""
    with server() as told:
        more: dict[str, Any] = {"logprobs": True, "max_tokens": 40, "ignore_eos": True, "temperature": 0}
        stream = stream_of(told, ROUTES[0], **more)
        text, data = "", b""
        for event in stream:
            choice = event["choices"][0]
            text += choice["delta"].get("content", "")
            for entry in (choice["logprobs"] or {"content": []})["content"]:
                data += bytes(entry["bytes"] or [])
            assert data.decode(errors="replace").startswith(text[:-1])
        assert data.decode(errors="replace") == text


def test_n_choices_share_one_stream() -> None:
    words = [ids_of("one two"), ids_of("alpha beta gamma"), ids_of("x")]

    def script(prompt: Any, k: int, choice: int) -> int:
        return words[choice][k] if k < len(words[choice]) else 383

    with server(scripted_engine(script)) as told:
        for path in ROUTES:
            stream = stream_of(told, path, n=3, stream_options={"include_usage": True})
            assert [joined(stream, i) for i in range(3)] == ["one two", "alpha beta gamma", "x"]
            ends = [c["index"] for e in stream for c in e["choices"] if c["finish_reason"]]
            assert sorted(ends) == [0, 1, 2]
            assert stream[-1]["usage"]["completion_tokens"] == sum(map(len, words)) + 3
            timed = [e for e in stream if "timings" in e]
            assert len(timed) == 1 and timed[0]["choices"][0]["finish_reason"]


def test_silence_is_filled_with_comments_only_when_it_is_long() -> None:
    gate = threading.Event()
    engine = scripted_engine(ids_of("ab"))
    engine.runner.before_run = lambda batch: gate.wait(10)  # type: ignore[attr-defined]
    with server(engine, sse_keepalive=0.05) as told:
        stream = RawStream(told, ROUTES[0], body_of(ROUTES[0], stream=True))
        stream.read_until(b": still working\n\n")
        gate.set()
        assert b"[DONE]" in stream.read_until(b"0\r\n\r\n")
        stream.close()
    with server(scripted_engine(ids_of("ab"), step_s=0.05), sse_keepalive=0) as told:
        assert b": " not in told.post(ROUTES[0], **body_of(ROUTES[0], stream=True)).content.replace(b"data: ", b"")


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("after", [0, 2])
def test_a_failure_ends_the_stream_with_an_error_and_done(path: str, after: int) -> None:
    ids = ids_of("well then")
    with server(scripted_engine(lambda prompt, k, choice: ids[k] if k < after else -1)) as failing:
        stream = stream_of(failing, path, stream_options={"include_usage": True})
        assert set(stream[-1]) == {"error"} and set(stream[-1]["error"]) == {"message", "type", "param", "code"}
        assert "made to fail" in stream[-1]["error"]["message"]
        assert not reasons(stream[:-1]) and not any(e.get("usage") for e in stream[:-1])
        assert len(joined(stream[:-1])) > 0 or not after
        assert failing.post(path, **body_of(path)).status_code == 500
        failing.wait_idle()


def test_M13_one_request_fails_and_its_neighbours_do_not() -> None:
    bad = ids_of("bad")
    good = ids_of("all is well")

    def script(prompt: Any, k: int, choice: int) -> int:
        if list(prompt) == bad and k == 3:
            return -1
        return good[k] if k < len(good) else 383

    with server(scripted_engine(script, step_s=0.002)) as mixed:
        answers = at_once(3, lambda i: mixed.complete("bad" if i == 1 else "good", max_tokens=50))
        assert [a.status_code for a in answers] == [200, 500, 200]
        assert [a.json()["choices"][0]["text"] for a in answers[::2]] == ["all is well"] * 2


def test_a_fault_of_the_whole_step_reaches_every_client_and_serving_goes_on() -> None:
    engine = scripted_engine(endless(), step_s=0.002)
    with server(engine) as served:
        streams = [RawStream(served, ROUTES[0], body_of(ROUTES[0], stream=True)) for _ in range(3)]
        for stream in streams:
            stream.read_until(b"content")

        def broken(*_: Any, **__: Any) -> None:
            del engine.scheduler.plan
            raise RuntimeError("the books are wrong")

        engine.scheduler.plan = broken  # type: ignore[method-assign]
        for stream in streams:
            rest = stream.read_until(b"0\r\n\r\n")
            assert b'data: {"error":{' in rest and b"data: [DONE]\n\n" in rest
            stream.close()
        health = served.http.get("/health").json()
        assert health["status"] == "ok" and health["faults"] == 1
        assert served.complete(max_tokens=3).json()["usage"]["completion_tokens"] == 3
        served.wait_idle()


def test_deltas_merge_while_the_loop_lags() -> None:
    """Held up for a while, the loop sends what came meanwhile in one event, and loses nothing."""
    engine = scripted_engine(endless("la "), step_s=0.001)
    with server(engine) as served:
        stream = RawStream(served, ROUTES[0], body_of(ROUTES[0], stream=True, max_tokens=400, temperature=0))
        stream.read_until(b"content")
        loop = served.serving_loop()
        loop.call_soon_threadsafe(time.sleep, 0.25)
        rest = stream.read_until(b"0\r\n\r\n")
        texts = [
            json.loads(line[6:])["choices"][0]["delta"].get("content", "")
            for line in rest.decode().split("\r\n")
            if line.startswith("data: {")
        ]
        assert max(map(len, texts)) > 60, "many tokens in one event"
        stream.close()
        wait(served.is_idle, "idle")


def test_S10_usage_does_not_count_what_was_computed_twice() -> None:
    """Preempted under a tiny pool, or alone: the same answer and the same counts."""
    asked = {"max_tokens": 40, "ignore_eos": True}
    with server(tiny_engine(num_blocks=64, text="chatml")) as roomy:
        alone = [roomy.complete(f"tale {i}", **asked).json() for i in range(6)]
    with server(tiny_engine(num_blocks=10, text="chatml", prefix_cache=False)) as tight:
        tight.serving.service.pause()

        def ask(index: int) -> Any:
            if index < 6:
                return tight.complete(f"tale {index}", **asked).json()
            wait(lambda: len(tight.state().sequences) == 6, "six requests")  # so that they meet on any machine
            return tight.serving.service.resume()

        crowd = at_once(7, ask)[:6]
        assert tight.state().totals.preemptions > 0
        tight.wait_idle()
    for one, other in zip(alone, crowd, strict=True):
        assert one["choices"] == other["choices"]
        assert one["usage"]["prompt_tokens"] == other["usage"]["prompt_tokens"]
        assert one["usage"]["completion_tokens"] == other["usage"]["completion_tokens"] == 40
        assert other["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
