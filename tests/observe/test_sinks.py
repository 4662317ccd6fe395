from __future__ import annotations

import threading

import pytest

from mini_infer.observe.events import StepReport
from mini_infer.observe.sinks import CallbackSink, RingSink, Sink
from mini_infer.observe.state import Gap, fold_all
from tests.observe.story import STORY, empty


def report(seq: int) -> StepReport:
    return StepReport(seq, seq, float(seq))


def ring(maxlen: int, last: int) -> RingSink:
    """A ring that was given the reports 11 … last."""
    sink = RingSink(maxlen)
    sink.start(empty(seq=10))
    for seq in range(11, last + 1):
        sink.emit(report(seq))
    return sink


def test_a_ring_gives_what_it_got_in_order():
    sink = ring(5, 13)
    assert sink.snapshot == empty(seq=10)
    assert [r.seq for r in sink.drain()] == [11, 12, 13]
    assert sink.drain() == []
    assert sink.dropped == 0


def test_a_full_ring_drops_the_oldest_and_counts():
    sink = ring(3, 18)
    assert sink.dropped == 5
    assert [r.seq for r in sink.drain()] == [16, 17, 18]


def test_several_readers_have_places_of_their_own():
    sink = ring(5, 13)
    assert [r.seq for r in sink.since(10)] == [11, 12, 13]
    assert [r.seq for r in sink.since(12)] == [13]
    assert sink.since(13) == []
    assert [r.seq for r in sink.since(10)] == [11, 12, 13]


@pytest.mark.parametrize(("seq", "first"), [(10, 16), (14, 16), (19, 19), (500, 19)])
def test_a_reader_that_lost_reports_is_told(seq, first):
    sink = ring(3, 18)
    with pytest.raises(Gap) as gap:
        sink.since(seq)
    assert (gap.value.expected, gap.value.got) == (seq + 1, first)


def test_a_drained_ring_still_knows_its_place():
    sink = ring(3, 12)
    sink.drain()
    assert sink.since(12) == []
    with pytest.raises(Gap):
        sink.since(11)


def test_a_started_ring_begins_anew():
    sink = ring(3, 12)
    sink.start(empty(seq=40))
    assert sink.since(40) == sink.drain() == []


def test_a_reader_in_another_thread_misses_nothing():
    sink = RingSink(100_000)
    sink.start(empty())
    writer = threading.Thread(target=lambda: [sink.emit(report(i)) for i in range(1, 5001)])
    seen: list[int] = []
    place = 0
    writer.start()
    while place < 5000:
        for r in sink.since(place):
            place = r.seq
            seen.append(place)
    writer.join()
    assert seen == list(range(1, 5001))


def test_a_ring_and_a_fold_give_the_state():
    sink = RingSink(100)
    sink.start(empty())
    for r in STORY:
        sink.emit(r)
    assert sink.snapshot is not None
    assert fold_all(sink.snapshot, sink.drain()) == fold_all(empty(), STORY)
    assert not sink.closed
    sink.close()
    sink.close()
    assert sink.closed


def test_a_callback_gets_every_report_and_its_errors_are_the_engines():
    got: list[StepReport] = []
    sink: Sink = CallbackSink(got.append)
    sink.start(empty())
    sink.emit(report(1))
    sink.close()
    assert got == [report(1)]
    with pytest.raises(ZeroDivisionError):
        CallbackSink(lambda r: 1 // 0).emit(report(1))


def test_a_ring_of_no_reports_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        RingSink(0)
