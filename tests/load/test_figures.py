"""From records to figures: definitions, failures kept out, nothing divided by nothing."""

from __future__ import annotations

import random
from typing import Any

import pytest

from mini_infer.load.arrivals import Level
from mini_infer.load.figures import Figures, Slo, figures
from mini_infer.load.records import Record
from mini_infer.load.runner import LevelRun
from mini_infer.load.statistics import Spread, bootstrap, histogram, percentile, spread


def record(number: int, sent: float, first: float, gap: float, count: int, **more: Any) -> Record:
    """An answer of `count` pieces, the first after `first`."""
    pieces = tuple(sent + first + i * gap for i in range(count))
    values: dict[str, Any] = {
        "scheduled": sent,
        "end": pieces[-1] if pieces else sent,
        "tokens": count,
        "pieces": pieces,
    }
    return Record(number=number, sent=sent, **(values | more))


def of(*records: Record, end: float = 10.0, slo: Slo | None = None, **level: Any) -> Figures:
    return figures(LevelRun(Level(**(level or {"concurrency": 2})), 0.0, end, records), slo or Slo())


def test_every_definition() -> None:
    found = of(
        record(0, 0.0, 0.5, 0.02, 11),
        record(1, 1.0, 0.3, 0.04, 6, end=2.0, tokens=11, cached_tokens=2, prompt_tokens=8),
    )
    assert found.ttft_ms.mean == pytest.approx(400)
    assert found.tpot_ms.mean == pytest.approx(20)  # 200 ms / 10 tokens, both
    assert found.itl_ms.count == 15
    assert found.itl_ms.p50 == pytest.approx(20)
    assert found.e2e_ms.max == pytest.approx(1000)
    assert found.output_tokens == 22
    assert found.output_tok_s == pytest.approx(2.2)
    assert found.requests_s == pytest.approx(0.2)
    assert found.tokens_per_piece == pytest.approx(22 / 17)
    assert (found.input_tokens, found.cached_share) == (8, 0.25)


def test_B04_quick_failures_neither_help_nor_hurt() -> None:
    good = [record(i, float(i), 0.1, 0.1, 10, end=i + 1.0) for i in range(5)]
    bad = [record(5 + i, float(i), 0, 0, 0, outcome="failed", cause="HTTP 500", end=i + 0.001) for i in range(5)]
    found = of(*good, *bad, slo=Slo(ttft=500))
    assert found.e2e_ms.p50 == pytest.approx(1000)
    assert found.e2e_ms.count == 5
    assert found.failed == {"HTTP 500": 5}
    assert found.output_tok_s == pytest.approx(5)
    assert found.attainment == 0.5
    assert found.goodput_s == pytest.approx(0.5)


@pytest.mark.parametrize("records", [[], [record(0, 0, 0, 0, 0, outcome="failed", cause="refused")]])
def test_B05_nothing_good_gives_no_figures_and_no_error(records: list[Record]) -> None:
    found = of(*records, slo=Slo(ttft=1))
    assert (found.ok, found.output_tokens) == (0, 0)
    assert found.ttft_ms == found.tpot_ms == found.e2e_ms == Spread()
    assert found.output_tok_s is None and found.cached_share is None and found.acceptance is None
    assert of(*records, end=0.0).requests_s is None


def test_open_loops_count_from_when_a_request_was_due() -> None:
    late = record(0, 3.0, 0.1, 0.0, 1, scheduled=1.0)
    found = of(late, rate=1.0)
    assert found.ttft_ms.p50 == pytest.approx(2100)
    assert found.ttft_from_sent_ms.p50 == pytest.approx(100)
    assert found.e2e_ms.p50 == pytest.approx(2100)


def test_the_steady_window_leaves_ramp_and_tail_out() -> None:
    """Two streams; the second begins at 1, the first has nothing left to do at 3."""
    first = [record(0, 0.0, 0.5, 0.5, 4, end=2.0), record(2, 2.0, 0.5, 0.5, 2, end=3.0)]
    found = of(*first, record(1, 1.0, 0.5, 0.5, 8, end=5.0), end=5.0)
    assert found.steady_s == pytest.approx(2.0)
    assert found.steady_tok_s is not None and found.steady_tok_s > (found.output_tok_s or 0)


def test_an_answer_in_one_piece_has_no_tpot() -> None:
    found = of(record(0, 0.0, 0.5, 0, 1, tokens=20), record(1, 0.0, 0.5, 0, 1))
    assert found.tpot_ms == Spread()
    assert found.output_tokens == 21


def test_objectives() -> None:
    slow = record(0, 0.0, 0.6, 0.01, 5)
    fast = record(1, 0.0, 0.1, 0.01, 5)
    assert of(slow, fast, slo=Slo(ttft=500)).attainment == 0.5
    assert of(slow, fast, slo=Slo(ttft=500, tpot=5)).attainment == 0.0
    assert of(slow, fast, slo=Slo(e2e=1000)).attainment == 1.0
    assert of(slow, fast).attainment is None


def test_drafts_are_summed_and_unknown_ones_stay_unknown() -> None:
    drafted = record(0, 0.0, 0.1, 0.1, 5, drafted=10, accepted=4)
    assert of(drafted, drafted).acceptance == pytest.approx(0.4)
    assert of(record(0, 0.0, 0.1, 0.1, 5)).drafted is None
    assert of(record(0, 0.0, 0.1, 0.1, 5, drafted=0, accepted=0)).acceptance is None


# --- statistics -----------------------------------------------------------------------------------------------------


def test_percentiles_interpolate_as_numpy_does() -> None:
    numpy = pytest.importorskip("numpy")
    rng = random.Random(0)
    for size in (1, 2, 3, 10, 101):
        values = sorted(rng.random() for _ in range(size))
        for share in (0.0, 0.25, 0.5, 0.9, 0.99, 1.0):
            assert percentile(values, share) == pytest.approx(float(numpy.percentile(values, 100 * share)))
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)


def test_spread_and_histogram() -> None:
    assert spread([3, 1, 2]) == Spread(3, 2, 2, pytest.approx(2.8), pytest.approx(2.98), 3)
    assert histogram([0, 1, 1.5, 2, 9], [1, 2, 3]) == [1, 2, 1, 1]


def test_bootstrap_covers_the_truth() -> None:
    """Of 200 samples of a known mean, about 95 % of the intervals must hold it."""
    rng = random.Random(1)
    held = 0
    for trial in range(200):
        values = [rng.gauss(10, 2) for _ in range(40)]
        found = bootstrap(lambda r, v=values: sum(r.choices(v, k=40)) / 40, draws=200, seed=trial)
        assert found is not None
        held += found[0] <= 10 <= found[1]
    assert 175 <= held <= 199
    assert bootstrap(lambda r: None) is None
