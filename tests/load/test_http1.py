"""Responses out of bytes: every framing, cut anywhere, and what is no response."""

from __future__ import annotations

import pytest

from mini_infer.load.http1 import BadResponse, ResponseReader

CHUNKED = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\nhello\r\n8;note=1\r\n, chunks\r\n0\r\nX-Trailer: 1\r\n\r\n"
)
PLAIN = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 404 Not Found\r\nContent-Length: 13\r\n\r\nhello, chunks"


@pytest.mark.parametrize("data", [CHUNKED, PLAIN])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_any_cut_gives_the_same_body(data: bytes, size: int) -> None:
    reader = ResponseReader()
    body = b"".join(reader.feed(data[i : i + size]) for i in range(0, len(data), size))
    assert body == b"hello, chunks"
    assert reader.is_complete and reader.keep_alive
    assert reader.status == (200 if data is CHUNKED else 404)


def test_without_a_length_the_body_ends_with_the_connection() -> None:
    reader = ResponseReader()
    assert reader.feed(b"HTTP/1.0 200 OK\r\n\r\nsome") == b"some"
    assert not reader.is_complete
    reader.eof()
    assert reader.is_complete and not reader.keep_alive


@pytest.mark.parametrize("data", [b"", CHUNKED[:30], CHUNKED[:-1], CHUNKED[:90], PLAIN[:-1]])
def test_an_early_end_is_said(data: bytes) -> None:
    reader = ResponseReader()
    reader.feed(data)
    with pytest.raises(BadResponse):
        reader.eof()


def test_connection_close_and_old_versions_are_not_kept() -> None:
    for head in (b"HTTP/1.1 200 OK\r\nConnection: close\r\n", b"HTTP/1.0 200 OK\r\n"):
        reader = ResponseReader()
        reader.feed(head + b"Content-Length: 0\r\n\r\n")
        assert reader.is_complete and not reader.keep_alive


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000,
    ],
)
def test_what_is_no_response_is_said(data: bytes) -> None:
    with pytest.raises(BadResponse):
        ResponseReader().feed(data)


def test_204_has_no_body() -> None:
    reader = ResponseReader()
    reader.feed(b"HTTP/1.1 204 No Content\r\n\r\n")
    assert reader.is_complete
