from __future__ import annotations

import pytest
from msgspec.structs import replace

from mini_infer.observe.events import Durations, Output, StepReport, Usage
from mini_infer.observe.metrics import (
    RequestTimes,
    RequestTiming,
    acceptance,
    acceptance_by_position,
    hit_rate,
    mean_acceptance_length,
    step_start,
)
from mini_infer.observe.state import Totals
from tests.observe.story import STORY


def timings(reports=STORY) -> dict[str, RequestTiming]:
    times = RequestTimes()
    done = {t.seq_id: t for report in reports for t in times.add(report)}
    assert not times.live
    return done


def test_ttft_counts_from_arrival_and_tpot_from_the_first_token():
    a = timings()["a"]
    assert a.queued == pytest.approx(0.001)
    assert a.ttft == pytest.approx(100.020 - 99.999)
    assert a.tokens == 6
    assert a.tpot == pytest.approx((100.070 - 100.020) / 5)
    assert a.e2e == pytest.approx(100.070 - 99.999)


def test_itl_is_per_chunk_however_many_tokens_it_brought():
    assert timings()["a"].itl == pytest.approx([0.010, 0.020, 0.010, 0.010])


def test_choices_share_arrival_but_not_gaps():
    done = timings()
    c0, c1 = done["c/0"], done["c/1"]
    assert c0.ttft == c1.ttft == pytest.approx(100.060 - 100.035)
    assert c0.queued == c1.queued == pytest.approx(100.050 - 100.035)
    assert c0.itl == pytest.approx([0.010, 0.230])
    assert c0.itl is not c1.itl


def test_a_preemption_does_not_restart_the_clock():
    b = timings()["b"]
    assert b.queued == pytest.approx(100.010 - 99.9995)
    assert b.itl == pytest.approx([0.010, 0.040])


def test_one_token_has_no_tpot_and_an_unknown_arrival_is_the_reports():
    d = timings()["d"]
    assert d.tpot is None
    assert d.itl == []
    assert d.arrival == 100.200
    assert d.ttft == pytest.approx(0.1)


def test_an_abort_in_the_queue_has_only_an_end():
    times = RequestTimes()
    times.add(STORY[0])
    [b] = times.add(StepReport(2, 2, 100.5, outputs=(Output("b", finished=replace(STORY[6].finished[0])),)))
    assert (b.queued, b.ttft, b.tpot, b.tokens) == (None, None, None, 0)
    assert b.e2e == pytest.approx(100.5 - 99.9995)
    assert b.finished is not None
    assert b.finished.reason == "abort"


def test_sequences_from_before_the_first_report_are_left_out():
    assert set(timings(STORY[2:])) == {"c/0", "c/1", "d"}


def test_step_start():
    assert step_start(StepReport(1, 1, 5.0, durations=Durations(1, 2, 3, 4, 5))) == pytest.approx(4.985)
    assert step_start(StepReport(1, 1, 5.0, durations=Durations(1, 2, 3, 4, 5), stepped=False)) == 5.0
    assert step_start(StepReport(1, 1, 5.0)) == 5.0


@pytest.mark.parametrize(
    "counts", [Usage(1, 1, rounds=4, drafted=12, accepted=9), Totals(rounds=4, drafted=12, accepted=9)]
)
def test_acceptance(counts):
    assert acceptance(counts) == 0.75
    assert mean_acceptance_length(counts) == 3.25


def test_rates_of_nothing_do_not_exist():
    assert acceptance(Totals()) is None
    assert mean_acceptance_length(Usage(1, 1)) is None
    assert hit_rate(Totals()) is None
    assert hit_rate(Totals(prompt_tokens=8, cached_tokens=2)) == 0.25


def test_acceptance_by_position():
    usage = Usage(1, 1, accepted_by_position=(3, 1, 0), judged_by_position=(4, 3, 0))
    assert acceptance_by_position(usage) == (0.75, pytest.approx(1 / 3), None)
    with pytest.raises(ValueError, match="zip"):
        acceptance_by_position(replace(usage, judged_by_position=(4,)))
