"""One request and its record: times, pieces, tokens, failures by cause."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from mini_infer.load.client import Client, Target
from mini_infer.load.records import Ask, Message, Record
from tests.load.support import (
    DONE,
    HELLO,
    Connection,
    Handler,
    Request,
    Script,
    answer,
    event,
    finish,
    in_loop,
    role,
    serving,
    text,
    timed,
    usage,
)


def scripted(*parts: tuple[float, bytes | Exception], status: int = 200, ask: Ask = HELLO) -> Record:
    """The record of one request that is answered with these bytes at these times."""
    script = Script([(status, list(parts))])

    async def main() -> Record:
        async with Client(Target("http://there", "m"), script.clock, script) as client:
            return await client.ask(ask)

    return in_loop(main)


def served(handler: Handler, ask: Ask = HELLO, times: int = 1, timeout_s: float = 60) -> list[Record]:
    """The records of requests to a real server, one after another on one client."""

    async def main() -> list[Record]:
        async with serving(handler) as server, Client(Target(server.url + "/v1/", "m", timeout_s=timeout_s)) as client:
            return [await client.ask(ask, i) for i in range(times)]

    return in_loop(main)


# --- times ----------------------------------------------------------------------------------------------------------


def test_B01_the_role_chunk_is_not_the_first_token() -> None:
    record = scripted(*timed(0.5, 0.02, *"abcdefghij"))
    assert record.is_ok
    assert record.pieces[0] - record.sent == pytest.approx(0.5)
    gaps = [b - a for a, b in zip(record.pieces, record.pieces[1:], strict=False)]
    assert gaps == pytest.approx([0.02] * 9)
    assert record.tokens == 10
    assert record.text == "abcdefghij"


def test_the_end_is_the_last_byte_not_the_last_token() -> None:
    record = scripted((0.1, text("a")), (0.2, finish()), (0.3, usage(1)), (0.4, DONE), (0.5, b""))
    assert record.end - record.sent == pytest.approx(0.5)


def test_reasoning_and_tool_calls_are_tokens_too() -> None:
    call = {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0}]}}]}
    for first in ({"choices": [{"index": 0, "delta": {"reasoning_content": "hm"}}]}, call):
        record = scripted((0.1, role()), (0.2, event(first)), (0.3, text("a")), (0.3, finish()), (0.3, DONE))
        assert record.pieces[0] - record.sent == pytest.approx(0.2)


# --- B09: whatever shape chunks have --------------------------------------------------------------------------------

SHAPES: dict[str, list[bytes]] = {
    "usage without choices": [text("ab"), event({"usage": {"completion_tokens": 2}}), finish(), DONE],
    "choices null": [text("ab"), event({"choices": None, "usage": {"completion_tokens": 2}}), finish(), DONE],
    "comments": [b": ping\n\n", text("ab"), b":\n\n: x\n\n", finish(), usage(2), b"\n\n\n", DONE],
    "no space, CRLF": [(text("ab") + finish() + usage(2) + DONE).replace(b"data: ", b"data:").replace(b"\n", b"\r\n")],
    "nulls": [
        event({"choices": [{"delta": {"content": None, "role": None}, "logprobs": None}], "usage": None}),
        event({"choices": [{"delta": None}]}),
        text("ab"),
        finish(),
        usage(2),
        DONE,
    ],
    "no DONE": [text("ab"), finish(), usage(2)],
    "no finish": [text("ab"), usage(2), DONE],
    "no last blank line": [text("ab"), finish(), usage(2).rstrip(b"\n")],
}


@pytest.mark.parametrize("name", SHAPES)
def test_B09_every_shape_is_read(name: str) -> None:
    data = b"".join(SHAPES[name])
    for size in (len(data), 1, 5):
        record = scripted(*((0.1, data[i : i + size]) for i in range(0, len(data), size)))
        assert (record.outcome, record.text, record.tokens) == ("ok", "ab", 2), record.detail


def test_B09_texts_cut_within_json_and_within_characters() -> None:
    said = "grün\u2028 €😀"
    raw = event({"choices": [{"index": 0, "delta": {"content": said}}]}).replace(b"\\u2028", "\u2028".encode())
    data = raw + finish() + usage(3) + DONE

    async def handler(request: Request, out: Connection) -> None:
        await out.start()
        for i in range(0, len(data), 3):
            await out.chunk(data[i : i + 3])
            await asyncio.sleep(0)
        await out.end()

    assert [r.text for r in served(handler)] == [said]


# --- B07: tokens ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "last", [[], [event({"choices": [], "usage": None})], [event({"choices": [], "usage": {"total": 1}})]]
)
def test_B07_without_usage_pieces_are_counted_and_it_is_said(last: list[bytes]) -> None:
    record = scripted(*((0.1, part) for part in [text("a"), text("b"), finish(), *last, DONE]))
    assert (record.outcome, record.tokens, record.counted_by) == ("ok", 2, "pieces")


def test_B07_a_usage_in_every_chunk_is_counted_once() -> None:
    def chunk(said: str, count: int) -> bytes:
        counts = {"completion_tokens": count, "prompt_tokens": 4, "prompt_tokens_details": {"cached_tokens": 3}}
        return event({"choices": [{"delta": {"content": said}}], "usage": counts})

    parts = [chunk("a", 2), chunk("b", 4), chunk("c", 6), finish(), DONE]
    record = scripted(*((0.1, part) for part in parts))
    assert (record.tokens, record.counted_by, record.prompt_tokens, record.cached_tokens) == (6, "usage", 4, 3)


def test_logprobs_of_both_routes() -> None:
    top = [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -1.0}]
    chat = {"content": [{"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": top}]}
    record = scripted((0.1, text("a", logprobs=chat) + finish() + usage(1) + DONE))
    lists = {"tokens": ["a"], "token_logprobs": [-0.5], "top_logprobs": [{"a": -0.5, "b": -1.0}], "text_offset": [0]}
    choice = {"index": 0, "text": "a", "logprobs": lists, "finish_reason": "stop"}
    other = scripted((0.1, event({"choices": [choice]}) + usage(1) + DONE), ask=Ask(prompt=(1, 2), max_tokens=1))
    assert record.logprobs == other.logprobs
    assert record.logprobs[0].top == {"a": -0.5, "b": -1.0}


# --- failures -------------------------------------------------------------------------------------------------------

ERROR = {"error": {"message": "too  much\nwork", "type": "rate_limit_error", "code": None}}
BROKEN: dict[str, list[tuple[float, bytes | Exception]]] = {
    "cut": [(0.1, text("a"))],
    "malformed chunk": [(0.1, text("a")), (0.2, b'data: {"choices": [\n\n')],
    "error in stream": [(0.1, text("a")), (0.2, event(ERROR)), (0.2, DONE)],
    "empty": [(0.1, role()), (0.1, finish()), (0.1, DONE)],
    "timeout": [(0.1, text("a")), (0.2, httpx.ReadTimeout("nothing came"))],
}


@pytest.mark.parametrize("cause", BROKEN)
def test_what_goes_wrong_in_a_stream_has_its_cause(cause: str) -> None:
    record = scripted(*BROKEN[cause])
    assert (record.outcome, record.cause) == ("failed", cause)


@pytest.mark.parametrize(
    "data", [b"data: 5\n\n", b'data: {"choices": 7}\n\n', b'data: {"choices": [3]}\n\n', b"data: \xff\n\n"]
)
def test_nonsense_in_a_chunk_is_malformed(data: bytes) -> None:
    assert scripted((0.1, text("a") + data + finish() + DONE)).cause == "malformed chunk"


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500, 503])
def test_a_refusal_has_its_status_and_the_servers_words(status: int) -> None:
    async def handler(request: Request, out: Connection) -> None:
        await out.json(ERROR, f"{status} No")

    records = served(handler, times=2)
    assert [(r.cause, r.detail) for r in records] == [(f"HTTP {status}", "too much work")] * 2


def test_a_closed_port_is_refused() -> None:
    async def main() -> Record:
        async with serving(None) as server:  # type: ignore[arg-type]
            url = server.url
        async with Client(Target(url)) as client:
            return await client.ask(HELLO)

    record = in_loop(main)
    assert (record.outcome, record.cause, record.pieces) == ("failed", "refused", ())


def test_a_connection_that_breaks_is_cut() -> None:
    async def handler(request: Request, out: Connection) -> None:
        await out.start()
        await out.chunk(text("a"))
        out.writer.close()

    record = served(handler)[0]
    assert (record.cause, record.tokens, record.text) == ("cut", 1, "a")


def test_silence_is_a_timeout() -> None:
    async def handler(request: Request, out: Connection) -> None:
        await out.start()
        await out.chunk(text("a"))
        await asyncio.Event().wait()

    assert served(handler, timeout_s=0.2)[0].cause == "timeout"


def test_an_answer_that_is_no_stream_is_said() -> None:
    async def handler(request: Request, out: Connection) -> None:
        await out.json({"choices": [{"message": {"content": "all at once"}}]})

    assert served(handler)[0].cause == "not a stream"


def test_what_is_no_http_server_is_said() -> None:
    async def handler(request: Request, out: Connection) -> None:
        await out.raw(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")

    assert served(handler)[0].cause == "not HTTP"


def test_an_answer_of_another_length_than_asked_for_is_a_failure() -> None:
    ask = Ask(prompt=(1, 2, 3), max_tokens=4, ignore_eos=True, prompt_tokens=3)
    parts = [(0.1, part) for part in answer("a", "b")]
    assert scripted(*parts, ask=ask).cause == "wrong length"
    wrong = scripted((0.1, text("a") + finish() + usage(4, prompt=2) + DONE), ask=ask)
    assert (wrong.cause, "2 tokens of prompt" in wrong.detail) == ("wrong length", True)
    assert scripted((0.1, text("a") + finish() + usage(4, prompt=3) + DONE), ask=ask).is_ok


# --- the connection -------------------------------------------------------------------------------------------------


def test_one_connection_serves_request_after_request() -> None:
    async def main() -> int:
        async def handler(request: Request, out: Connection) -> None:
            await out.stream(answer("a", "b"))

        async with serving(handler) as server, Client(Target(server.url)) as client:
            for i in range(5):
                assert (await client.ask(HELLO, i)).is_ok
            return server.connections

    assert in_loop(main) == 1


def test_a_kept_connection_that_died_is_replaced_without_notice() -> None:
    async def main() -> list[Record]:
        async def handler(request: Request, out: Connection) -> None:
            await out.stream(answer("a"))
            if request.number % 2 == 0:
                out.writer.close()

        async with serving(handler) as server, Client(Target(server.url)) as client:
            records = [await client.ask(HELLO, i) for i in range(4)]
            assert server.connections >= 2
            return records

    assert [r.outcome for r in in_loop(main)] == ["ok"] * 4


def test_a_body_that_stays_open_after_DONE_does_not_hold_us() -> None:
    async def handler(request: Request, out: Connection) -> None:
        await out.start()
        await out.chunk(b"".join(answer("a")))
        await asyncio.Event().wait()

    assert [r.outcome for r in served(handler, times=2)] == ["ok", "ok"]


@pytest.mark.parametrize("after", [0, 1, 3])
def test_hanging_up_closes_the_connection(after: int) -> None:
    async def main() -> Record:
        gone = asyncio.Event()

        async def handler(request: Request, out: Connection) -> None:
            await out.start()
            try:
                while True:
                    await out.chunk(text("a"))
                    await asyncio.sleep(0)
            except ConnectionError:
                gone.set()
                raise

        async with serving(handler) as server, Client(Target(server.url)) as client:
            record = await client.ask(HELLO, hang_up_after=after)
            await gone.wait()
            return record

    record = in_loop(main)
    assert (record.outcome, record.cause) == ("cancelled", None)
    assert len(record.pieces) == after


def test_a_cancelled_task_leaves_what_it_had() -> None:
    async def main() -> Record | None:
        begun = asyncio.Event()

        async def handler(request: Request, out: Connection) -> None:
            await out.start()
            await out.chunk(text("a"))
            await asyncio.Event().wait()

        async with serving(handler) as server, Client(Target(server.url)) as client:
            task = asyncio.create_task(client.ask(HELLO, on_piece=lambda at: begun.set()))
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return client.unfinished

    record = in_loop(main)
    assert record is not None
    assert (record.outcome, record.text) == ("unfinished", "a")


def test_proxy_variables_are_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")

    async def handler(request: Request, out: Connection) -> None:
        await out.stream(answer("a"))

    assert served(handler)[0].is_ok


# --- what is sent ---------------------------------------------------------------------------------------------------


def test_the_request_says_what_is_wanted() -> None:
    script = Script([(200, [(0.1, part) for part in answer("a")])])
    asks = [
        Ask(messages=(Message("user", "x"),), max_tokens=7, logprobs=2),
        Ask(prompt=(1, 2), max_tokens=3, ignore_eos=True, logprobs=2, temperature=None),
    ]

    async def main() -> None:
        async with Client(Target("http://there/v1", "name", "key"), script.clock, script) as client:
            for ask in asks:
                await client.ask(ask)

    in_loop(main)
    both: dict[str, Any] = {"model": "name", "stream": True, "stream_options": {"include_usage": True}}
    chat = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 7, "temperature": 0.0}
    assert script.asked[0] == both | chat | {"logprobs": True, "top_logprobs": 2}
    assert script.asked[1] == both | {"prompt": [1, 2], "max_tokens": 3, "ignore_eos": True, "logprobs": 2}


@pytest.mark.parametrize("url", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"])
def test_a_url_may_end_in_v1_or_not(url: str) -> None:
    assert Target(url).endpoint("chat") == "http://h:1/v1/chat/completions"
    assert Target(url).endpoint("completions") == "http://h:1/v1/completions"
