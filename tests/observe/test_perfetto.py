"""The export keeps to the trace event format, nests, and says what the reports say."""

from __future__ import annotations

import io
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from mini_infer.errors import UserError
from mini_infer.observe.events import (
    Admitted,
    Arrived,
    BlockMove,
    Durations,
    Finished,
    Output,
    PoolCount,
    Scheduled,
    StepReport,
    Usage,
    Wait,
    Waiting,
)
from mini_infer.observe.perfetto import ENGINE, POOL, REQUESTS, STEPS, Event, events, export, write
from mini_infer.observe.state import fold_all
from mini_infer.observe.trace_file import FileSink, Trace, TraceHeader, read_trace
from tests.observe.story import MS, STORY, empty


def trace_of(reports=STORY, snapshot=None) -> Trace:
    class Held(Trace):
        def reports(self) -> Iterator[StepReport]:
            return iter(reports)

    return Held(Path("held"), TraceHeader("mini-infer", 1, {"mini-infer": "0"}), snapshot or empty())


def parsed(trace: Trace) -> list[Event]:
    return json.loads(b"".join(export(trace)))["traceEvents"]


def rows(made: list[Event]) -> dict[str, list[Event]]:
    """The slices and instants of each sequence's row, by its name."""
    named = {e["tid"]: e["args"]["name"] for e in made if e["name"] == "thread_name" and e["pid"] == REQUESTS}
    result: dict[str, list[Event]] = {name: [] for name in named.values()}
    for e in made:
        if e["pid"] == REQUESTS and e["ph"] in "Xi":
            result[named[e["tid"]]].append(e)
    return result


def spans(row: list[Event]) -> list[tuple[str, int, int]]:
    return [(e["name"], e["ts"], e["ts"] + e["dur"]) for e in row if e["ph"] == "X"]


def check_format(made: list[Event]) -> None:
    """Fields of every phase, names for every row, one row's slices nested, counters and instants in order of time."""
    named = {(e["pid"], e["tid"]) for e in made if e["name"] == "thread_name"}
    processes = {e["pid"] for e in made if e["name"] == "process_name"}
    last: dict[tuple[object, ...], int] = defaultdict(int)
    open_slices: dict[tuple[int, int], list[int]] = defaultdict(list)
    for e in made:
        assert {"ph", "name", "pid", "tid", "ts", "args"} <= set(e)
        assert e["ph"] in ("M", "X", "C", "i")
        assert isinstance(e["ts"], int)
        assert e["ts"] >= 0
        assert e["pid"] in processes
        row = (e["pid"], e["tid"])
        if e["ph"] in "Xi":
            assert row in named
        if e["ph"] == "M":
            assert e["name"] in ("process_name", "process_sort_index", "thread_name", "thread_sort_index")
            continue
        if e["ph"] == "C":
            assert all(isinstance(v, int) and v >= 0 for v in e["args"].values())
        if e["ph"] == "i":
            assert e["s"] in ("t", "p")
        track = (*row, e["ph"], e["name"] if e["ph"] == "C" else "")
        assert e["ts"] >= last[track], f"{e} goes back in time"
        last[track] = e["ts"]
        if e["ph"] == "X":
            assert isinstance(e["dur"], int)
            assert e["dur"] >= 0
            ends = open_slices[row]
            while ends and ends[-1] <= e["ts"]:
                ends.pop()
            assert not ends or e["ts"] + e["dur"] <= ends[-1], f"{e} overlaps the slice around it"
            ends.append(e["ts"] + e["dur"])


def test_the_story_keeps_to_the_format():
    made = parsed(trace_of())
    check_format(made)
    for cut in range(len(STORY)):
        check_format(parsed(trace_of(STORY[:cut])))
        check_format(parsed(trace_of(STORY[cut:], fold_all(empty(), STORY[:cut]))))


def test_rows_of_requests_say_when_they_waited_and_what_each_step_did():
    """Times in microseconds after a's arrival, 1 ms before the first step; each step takes 10 ms."""
    made = rows(parsed(trace_of()))
    assert list(made) == ["a", "b", "c/0", "c/1", "d"]
    assert spans(made["a"]) == [
        ("waiting", 0, 1_000), ("prefill", 1_000, 11_000), ("prefill", 11_000, 21_000), ("verify", 21_000, 31_000),
        ("decode", 41_000, 51_000), ("decode", 51_000, 61_000), ("decode", 61_000, 71_000),
    ]  # fmt: skip
    assert spans(made["b"]) == [
        ("waiting", 500, 11_000), ("prefill", 11_000, 21_000), ("decode", 21_000, 31_000), ("waiting", 41_000, 51_000),
        ("prefill", 51_000, 61_000), ("prefill", 61_000, 71_000),
    ]  # fmt: skip
    assert spans(made["c/0"])[0] == ("waiting", 36_000, 51_000)
    assert spans(made["d"]) == [("waiting", 201_000, 291_000), ("prefill", 291_000, 301_000)]


def test_a_wait_is_split_where_its_reason_changes():
    """A step plans at its beginning, so that is where a reason begins; one not yet known begins with the wait."""
    quiet = replace(STORY[0], waiting=(Waiting("b", Wait("ORDER", behind="a")),))
    changes = [
        StepReport(i, i, 100.0 + i / 100, durations=MS, pool=PoolCount(1, 0, 7), waiting=waiting)
        for i, waiting in enumerate(
            [(Waiting("b", Wait("TOKENS", have=0)),), (), (Waiting("b"),), (Waiting("b", Wait("SEQS", 1)),)], start=2
        )
    ]
    row = rows(parsed(trace_of([quiet, *changes])))["b"]
    assert spans(row) == [
        ("waiting", 500, 11_000), ("waiting", 11_000, 31_000), ("waiting", 31_000, 51_000),
    ]  # fmt: skip
    assert [e["args"] for e in row] == [
        {"reason": "ORDER", "behind": "a"}, {"reason": "TOKENS"}, {"reason": "SEQS", "need": 1},
    ]  # fmt: skip


def test_slices_say_tokens_blocks_and_reasons():
    made = rows(parsed(trace_of()))
    a, b = ([e["args"] for e in made[name] if e["ph"] == "X"] for name in "ab")
    assert a[1] == {"tokens": 4, "start": 0, "blocks": 1}
    assert a[3] == {"tokens": 3, "start": 6, "blocks": 3, "drafted": 2, "accepted": 1}
    assert b[0] == {"reason": "TOKENS"}
    assert b[1] == {"tokens": 2, "start": 4, "blocks": 2, "reason": "BUDGET"}
    assert b[3] == {"reason": "COOLDOWN"}
    assert made["c/0"][0]["args"] == {"reason": "BLOCKS", "need": 3, "have": 2}
    assert made["d"][0]["args"] == {"reason": "PAUSED"}


def test_instants_for_preemptions_forks_evictions_and_ends():
    made = parsed(trace_of())
    seen = [(e["name"], e["ts"], e["args"]) for e in made if e["ph"] == "i" and e["pid"] == REQUESTS]
    assert seen[:2] == [
        ("preempted", 41_000, {"lost": 7, "freed": 2, "cause": "a"}),
        ("forked", 61_000, {"parent": "c/0"}),
    ]
    assert {name for name, _, _ in seen[2:]} == {"finished"}
    assert [args["reason"] for _, _, args in seen[2:]] == ["stop", "abort", "length", "error", "error"]
    engine = [(e["tid"], e["name"], e["args"]) for e in made if e["ph"] == "i" and e["pid"] == ENGINE]
    assert engine == [
        (STEPS, "pause", {"detail": ""}), (STEPS, "reset_cache", {"detail": ""}),
        (POOL, "evicted", {"blocks": [1]}), (STEPS, "resume", {"detail": ""}),
        (STEPS, "fault", {"detail": "the plan failed"}),
    ]  # fmt: skip


def test_phases_fill_their_step_and_end_with_it():
    made = [e for e in parsed(trace_of()) if e["pid"] == ENGINE and e["tid"] == STEPS and e["ph"] == "X"]
    assert [e["name"] for e in made[:6]] == ["step 1", "schedule", "draft", "forward", "sample", "commit"]
    assert spans(made[:6]) == [
        ("step 1", 1_000, 11_000), ("schedule", 1_000, 1_500), ("draft", 1_500, 2_500), ("forward", 2_500, 8_500),
        ("sample", 8_500, 10_500), ("commit", 10_500, 11_000),
    ]  # fmt: skip
    assert made[0]["args"] == {"tokens": 4, "sequences": 1, "copies": 0}
    assert len([e for e in made if e["name"].startswith("step")]) == sum(r.stepped for r in STORY)
    for e, report in zip(
        [e for e in made if e["name"].startswith("step")], [r for r in STORY if r.stepped], strict=True
    ):
        assert e["ts"] + e["dur"] == round((report.t - 99.999) * 1e6)


def test_counters():
    made = [e for e in parsed(trace_of()) if e["ph"] == "C"]
    blocks = [e["args"] for e in made if e["name"] == "blocks"]
    assert blocks == [{"used": r.pool.used, "cached": r.pool.cached, "free": r.pool.free} for r in STORY if r.pool]
    assert [e["args"]["waiting"] for e in made if e["name"] == "waiting"] == [r.num_waiting for r in STORY]
    tokens = [(e["ts"], e["args"]) for e in made if e["name"] == "tokens"]
    assert tokens[:5] == [
        (1_000, {"prefill": 4, "decode": 0, "draft": 0}),
        (11_000, {"prefill": 4, "decode": 0, "draft": 0}),
        (21_000, {"prefill": 0, "decode": 2, "draft": 2}),
        (31_000, {"prefill": 0, "decode": 0, "draft": 0}),  # nothing ran until step 4
        (41_000, {"prefill": 0, "decode": 1, "draft": 0}),
    ]
    assert not any(tokens[-1][1].values())


def test_durations_that_do_not_fit_between_two_reports_stay_nested():
    long = Durations(5.0004, 0.0, 20.0007, 3.0001, 1.0)
    reports = [replace(r, durations=long) if r.stepped else r for r in STORY]
    made = parsed(trace_of(reports))
    check_format(made)
    steps = [e for e in made if e["name"].startswith("step ")]
    assert [e["ts"] + e["dur"] for e in steps[:2]] == [29_001, 39_001]  # the ends stand, the beginning gives way
    assert steps[1]["ts"] == 29_001
    assert not [e for e in made if e["name"] == "draft"]


def test_reports_without_durations_have_a_place_in_time():
    made = parsed(trace_of([replace(r, durations=None) for r in STORY]))
    check_format(made)
    assert [e["ts"] for e in made if e["name"].startswith("step ")][:3] == [11_000, 21_000, 31_000]


def test_a_trace_that_begins_in_the_middle_has_a_row_for_everybody_alive():
    made = rows(parsed(trace_of(STORY[4:], fold_all(empty(), STORY[:4]))))
    assert list(made) == ["c/0", "a", "b", "c/1", "d"]
    assert made["c/0"][0]["ph"] == "X"
    assert spans(made["b"])[0] == ("prefill", 0, 10_000)  # it was admitted at once: no wait is left to show


def test_waits_that_never_end_reach_to_the_last_report():
    made = rows(parsed(trace_of(STORY[:4])))
    assert spans(made["c/0"]) == [("waiting", 36_000, 51_000)]
    assert spans(made["b"])[-1] == ("waiting", 41_000, 51_000)


def test_a_file_is_exported_whole(tmp_path):
    sink = FileSink(tmp_path / "t", {})
    sink.start(empty())
    for report in STORY:
        sink.emit(report)
    sink.close()
    out = io.BytesIO()
    write(read_trace(tmp_path / "t"), out)
    whole = json.loads(out.getvalue())
    assert whole["displayTimeUnit"] == "ms"
    assert whole["otherData"]["model"] == "tiny"
    assert "mini-infer" in whole["otherData"]
    assert [e for e in whole["traceEvents"] if e["ph"] != "M"] == [
        e for e in json.loads(json.dumps(list(events(trace_of())))) if e["ph"] != "M"
    ]


def test_a_trace_without_reports_is_still_a_trace():
    made = parsed(trace_of(()))
    check_format(made)
    assert {e["ph"] for e in made} == {"M"}


@pytest.mark.parametrize(
    "report",
    [
        StepReport(2, 2, 100.02, sched=(Scheduled("x", 0, 1, 0, 1),)),
        StepReport(2, 2, 100.02, admitted=(Admitted("x"),)),
        StepReport(2, 2, 100.02, blocks=(BlockMove("free", 5, "a", 0),)),
    ],
)
def test_a_report_that_does_not_fit_is_named(report):
    with pytest.raises(UserError, match="held: report 2 names what"):
        list(export(trace_of([STORY[0], report])))


def test_export_takes_reports_one_by_one():
    """A long trace must not fill the memory: after each report at most its own events are held."""
    taken = 0

    def endless() -> Iterator[StepReport]:
        nonlocal taken
        for i in range(1, 10**9):
            taken += 1
            yield StepReport(i, i, i * 0.01, durations=MS, pool=PoolCount(0, 0, 8))

    made = events(trace_of(endless()))
    for _ in range(1000):
        next(made)
    assert taken < 150


def test_rows_are_given_back():
    reports = [
        StepReport(
            i, i, i * 0.01, durations=MS, arrived=(Arrived(f"r{i}", f"r{i}", (1,), i),), admitted=(Admitted(f"r{i}"),),
            outputs=(Output(f"r{i}", (2,), finished=Finished(f"r{i}", "length", Usage(1, 1))),),
            sched=(Scheduled(f"r{i}", 0, 1, 0, 1),),
        )
        for i in range(1, 200)
    ]  # fmt: skip
    made = parsed(trace_of(reports))
    check_format(made)
    assert len(rows(made)) == 199
