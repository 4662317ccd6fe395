"""Events out of bytes that were cut anywhere."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_infer.load.sse import EventParser

STREAM = (
    ": ping\r\n\r\n"
    'data: {"a":"b\u2028c\u2029d\x85e"}\n\n'
    "event: x\nid: 7\nretry: 10\ndata:no space\r\n\r\n"
    "data: two\ndata: lines\n\n\n\n"
    "data: cr\r\rdata: ends\n\n"
    "data: größe €😀\n\ndata: [DONE]\n\n"
).encode()
EVENTS = [
    '{"a":"b\u2028c\u2029d\x85e"}',
    "no space",
    "two\nlines",
    "cr",
    "ends",
    "größe €😀",
    "[DONE]",
]


def parse(*parts: bytes) -> list[str]:
    parser = EventParser()
    found = [event for part in parts for event in parser.feed(part)]
    return [event.decode() for event in [*found, *parser.end()]]


def test_whole() -> None:
    assert parse(STREAM) == EVENTS


def test_byte_by_byte() -> None:
    assert parse(*(STREAM[i : i + 1] for i in range(len(STREAM)))) == EVENTS


@given(st.lists(st.integers(0, len(STREAM)), max_size=6))
def test_cut_anywhere(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    assert parse(*(STREAM[a:b] for a, b in itertools.pairwise(edges))) == EVENTS


@pytest.mark.parametrize("rest", [b"data: last", b"data: last\n", b"data: last\r", b"data: last\r\n"])
def test_a_last_event_without_its_blank_line_is_not_lost(rest: bytes) -> None:
    assert parse(b"data: first\n\n" + rest) == ["first", "last"]


def test_an_event_without_data_is_none() -> None:
    assert parse(b"event: ping\n\nretry: 1\n\n\n") == []
