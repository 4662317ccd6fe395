"""Every record survives JSON, a report is small, and reading reports needs no torch."""

from __future__ import annotations

import math
import random
import subprocess
import sys
import types
from functools import reduce
from operator import or_
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mini_infer.observe import events, state
from mini_infer.observe.events import (
    BlockMove,
    Budget,
    Durations,
    Finished,
    KChoice,
    Output,
    PoolCount,
    Round,
    Scheduled,
    StepReport,
    Usage,
    decode_report,
    encode,
    four_digits,
)
from mini_infer.observe.state import EngineState, decode_state
from tests.observe.story import INFO, STORY, empty

RECORDS = sorted(
    {v for m in (events, state) for v in vars(m).values() if isinstance(v, type) and issubclass(v, msgspec.Struct)}
    - {msgspec.Struct},
    key=lambda cls: cls.__name__,
)


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Any value that a field of this type may have."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Literal:
        return st.sampled_from(args)
    if origin in (Union, types.UnionType):
        return reduce(or_, map(values, args))
    if origin is tuple and args[-1] is Ellipsis:
        return st.lists(values(args[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values, args))
    if origin is dict:
        return st.dictionaries(values(args[0]), values(args[1]), max_size=3)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = get_type_hints(kind)
        return st.deferred(lambda: st.builds(kind, **{f: values(hints[f]) for f in kind.__struct_fields__}))
    return {
        int: st.integers(-(2**63), 2**63 - 1),
        float: st.floats(allow_nan=False, allow_infinity=False),
        bool: st.booleans(),
        str: st.text(max_size=8),
        types.NoneType: st.none(),
    }[kind]


@pytest.mark.parametrize("record", RECORDS, ids=lambda cls: cls.__name__)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_every_record_survives_json_and_is_frozen(record, data):
    value = data.draw(values(record))
    text = encode(value)
    assert b"\n" not in text
    assert msgspec.json.decode(text, type=record) == value
    with pytest.raises(AttributeError):
        setattr(value, record.__struct_fields__[0], None)


def test_all_records_are_tried():
    assert len(RECORDS) >= 25
    assert {StepReport, EngineState, Round, Usage} <= set(RECORDS)


@settings(max_examples=60, deadline=None)
@given(values(StepReport))
def test_reports_survive_json(report):
    assert decode_report(encode(report)) == report
    assert list(report) == [(o.seq_id, i) for o in report.outputs for i in o.token_ids]


@settings(max_examples=40, deadline=None)
@given(values(EngineState))
def test_snapshots_survive_json(snapshot):
    assert decode_state(encode(snapshot)) == snapshot


def test_a_quiet_report_is_short():
    assert encode(StepReport(7, 7, 1.5)) == b'{"seq":7,"step":7,"t":1.5}'


def test_a_report_iterates_over_its_tokens_and_knows_what_ended():
    end = Finished("b", "stop", Usage(3, 1))
    report = StepReport(1, 1, 0.0, outputs=(Output("a/1", (5, 6)), Output("b", (7,), finished=end), Output("c")))
    assert list(report) == [("a/1", 5), ("a/1", 6), ("b", 7)]
    assert report.finished == (end,)


def test_kinds_are_for_display():
    kinds = [Scheduled("a", 9, n, k, 10).kind for n, k in ((1, 0), (2, 0), (1, 3))]
    assert kinds == ["decode", "prefill", "verify"]


@pytest.mark.parametrize(
    ("value", "rounded"),
    [(0.123456, 0.1235), (0.000012345678, 0.00001235), (1.0, 1.0), (0.0, 0.0), (12345.6, 12350.0), (-3.14159, -3.142)],
)
def test_four_digits_are_significant_ones(value, rounded):
    assert four_digits(value) == rounded


def test_an_infinite_gap_becomes_a_number_json_can_hold():
    report = StepReport(1, 1, 0.0, spec=(Round("a", (1,), 1, 0, 2, False, gap=(four_digits(math.inf),)),))
    assert decode_report(encode(report)) == report
    assert four_digits(-math.inf) == -1e9


def busy_report(rng: random.Random, ids: int) -> StepReport:
    """16 requests at K = 8, everything accepted: the most that such a step can say. Token ids are below `ids`."""
    seqs = [f"req-{i}" for i in range(16)]

    def tokens(n: int) -> tuple[int, ...]:
        return tuple(rng.randrange(ids) for _ in range(n))

    def chances() -> tuple[float, ...]:
        return tuple(four_digits(rng.random()) for _ in range(8))

    return StepReport(
        123_456, 123_456, 86_399.123456789,
        outputs=tuple(Output(s, tokens(9), "".join(rng.choices([" the", " word", "s", ","], k=9))) for s in seqs),
        durations=Durations(0.2134, 11.9843, 63.8812, 7.0423, 1.2345),
        budget=Budget(144, 256, 16, 16),
        pool=PoolCount(1024, 2048, 1024),
        num_waiting=1000,
        sched=tuple(Scheduled(s, 1000 + i, 1, 8, 1001 + i) for i, s in enumerate(seqs)),
        spec=tuple(Round(s, tokens(8), 8, 8, rng.randrange(ids), True, chances(), chances(), chances()) for s in seqs),
        k=tuple(KChoice(s, 8) for s in seqs),
    )  # fmt: skip


def test_a_report_of_16_requests_at_k_8_is_at_most_8_kb_of_json():
    for seed in range(20):
        assert len(encode(busy_report(random.Random(seed), 151_936))) <= 8000


def test_the_same_with_the_blocks_that_such_a_step_fills():
    """Nine of sixteen sequences fill a block of 16 rows with 9 tokens. Most tokens of a text have small ids."""
    rng = random.Random(0)
    moves: list[BlockMove] = []
    for i in range(9):
        key, parent = rng.randbytes(16).hex(), rng.randbytes(16).hex()
        moves += [
            BlockMove("alloc", 2000 + i, f"req-{i}", 63),
            BlockMove("hash", 2000 + i, f"req-{i}", 62, key, parent),
        ]
    report = msgspec.structs.replace(busy_report(rng, 10_000), blocks=tuple(moves))
    assert len(encode(report)) <= 8192


def test_snapshots_carry_the_schema():
    assert msgspec.json.decode(encode(empty()))["info"]["schema"] == events.SCHEMA == INFO.schema


def test_reading_reports_loads_no_torch_and_no_web_and_no_screen():
    names = "events, state, sinks, trace_file, perfetto, metrics"
    code = f"import sys; from mini_infer.observe import {names}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "numpy", "textual", "rich", "litestar", "httpx", "mini_infer.engine"} & set(loaded)


def test_the_story_survives_json():
    assert [decode_report(encode(report)) for report in STORY] == list(STORY)
