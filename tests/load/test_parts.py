"""The small parts: search, power, metrics, the pictures on a terminal."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mini_infer.load.arrivals import Level
from mini_infer.load.dashboard import dashboard, sparkline
from mini_infer.load.live import PlainLines, Progress
from mini_infer.load.power import Energy, Rapl, Reading, energy, find_meter
from mini_infer.load.records import Record
from mini_infer.load.runner import Extent
from mini_infer.load.scrape import Scrape, ServerSide, server_side
from mini_infer.load.search import search
from tests.load.support import in_loop
from tests.load.test_report import level

# --- the search -----------------------------------------------------------------------------------------------------


def searched(limit: int, first: int = 1, most: int = 4096) -> tuple[tuple[int | None, int | None], list[int]]:
    tried: list[int] = []

    async def keeps(size: int) -> bool:
        tried.append(size)
        return size <= limit

    return in_loop(lambda: search(keeps, first, most)), tried


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 7, 8, 13, 16, 31])
def test_the_search_finds_small_limits_exactly(limit: int) -> None:
    assert searched(limit)[0] == (limit, limit + 1)
    assert searched(limit, first=4)[0] == (limit, limit + 1)


def test_the_search_is_short_and_near_for_large_limits() -> None:
    (kept, broken), tried = searched(1000)
    assert kept is not None and broken is not None
    assert kept <= 1000 < broken and broken - kept <= kept / 8
    assert len(tried) < 18 and len(set(tried)) == len(tried)


def test_the_search_ends_at_nothing_and_at_everything() -> None:
    assert searched(0)[0] == (None, 1)
    assert searched(10**9, most=64)[0] == (64, None)


def test_the_search_ends_when_told() -> None:
    async def keeps(size: int) -> bool | None:
        return True if size < 4 else None

    assert in_loop(lambda: search(keeps)) == (2, None)


# --- power ----------------------------------------------------------------------------------------------------------


def test_energy_by_a_counter_and_net_of_idle() -> None:
    readings = [
        (0.0, Reading(joules=100.0, memory=5)),
        (1.0, Reading(memory=9)),
        (2.0, Reading(joules=130.0, memory=7)),
    ]
    found = energy(readings, "NVML", idle_w=5.0, tokens=60)
    assert (found.joules, found.power_w, found.memory_peak_bytes) == (30.0, 15.0, 9)
    assert (found.tokens_per_joule, found.tokens_per_joule_net) == (2.0, 3.0)


def test_energy_by_the_trapezoid_rule() -> None:
    readings = [(0.0, Reading(watts=10.0)), (1.0, Reading(watts=20.0)), (3.0, Reading(watts=20.0))]
    assert energy(readings, "NVML", None, 11).joules == pytest.approx(55)


def test_what_no_device_tells_is_none() -> None:
    assert energy([], "NVML", None, 5) == Energy(source="NVML")
    assert energy([(0.0, Reading()), (1.0, Reading())], "x", None, 5).power_w is None
    assert find_meter("none") is None


def test_rapl_counts_packages_only_and_across_the_wrap(tmp_path: Path) -> None:
    for name, value in (("intel-rapl:0", 990), ("intel-rapl:1", 0), ("intel-rapl:0:0", 77)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "energy_uj").write_text(str(value * 10**6))
        (folder / "max_energy_range_uj").write_text(str(1000 * 10**6 - 1))
    meter = Rapl(tmp_path)
    assert meter.read().joules == 0
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text(str(20 * 10**6))
    assert meter.read().joules == pytest.approx(30)
    (tmp_path / "intel-rapl:1" / "energy_uj").write_text(str(5 * 10**6))
    assert meter.read().joules == pytest.approx(35)
    with pytest.raises(OSError, match="RAPL"):
        Rapl(tmp_path / "nothing")


# --- metrics --------------------------------------------------------------------------------------------------------


def scrape(generated: int, running: int = 0, used: int = 0) -> Scrape:
    labels = '{model_name="m",engine="0"}'
    return Scrape.parse(
        f"# TYPE vllm:generation_tokens counter\nvllm:generation_tokens_total{labels} {generated}\n"
        f"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{labels} {running}\n"
        f'mini_infer_kv_blocks{{state="used"}} {used}\nmini_infer_kv_blocks{{state="free"}} 9\n'
        f"vllm:spec_decode_num_draft_tokens_total{labels} 8\nvllm:spec_decode_num_accepted_tokens_total{labels} 4\n"
    )


def test_two_readings_make_a_level() -> None:
    found = server_side(scrape(10), scrape(52), 42)
    assert (found.generated_tokens, found.agrees, found.leaked, found.idle_checked) == (42, True, {}, True)
    assert server_side(scrape(10), scrape(52), 40).agrees is False
    assert server_side(scrape(10), scrape(52), None).agrees is None
    assert server_side(None, scrape(1), 1) == ServerSide()
    assert server_side(scrape(0), scrape(9, running=2, used=5), 9).leaked == {"running": 2, "kv in use": 5}


def test_other_servers_names_are_known() -> None:
    text = "llamacpp:tokens_predicted_total 7\nllamacpp:requests_processing 1\n"
    found = server_side(Scrape.parse(text.replace("7", "0")), Scrape.parse(text), 7)
    assert (found.generated_tokens, found.agrees, found.leaked) == (7, True, {"running": 1})


# --- on a terminal --------------------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def driven(progress: Progress, clock: Clock) -> None:
    """Two answers and a failure, over three seconds."""
    progress.phase("measuring", Level(concurrency=2), Extent(requests=4))
    for number in range(2):
        progress.sent()
        for _i in range(10):
            clock.now += 0.15
            progress.piece(clock.now)
        record = Record(number=number, scheduled=0.0, sent=0.0, end=clock.now, pieces=(0.5,), tokens=10)
        progress.ended(record)
    progress.sent()
    progress.ended(Record(number=2, scheduled=0, sent=0, end=0, outcome="failed", cause="HTTP 429"))
    progress.sent()
    progress.measured(level(2))


def test_sparklines() -> None:
    assert sparkline([], 4) == "    "
    assert sparkline([0, 0], 4) == "    "
    assert sparkline([0, 1, 4, 8], 4) == " ▁▄█"
    assert sparkline(range(100), 5, " .:")[-1] == ":"
    assert len(sparkline([1] * 99, 7)) == 7


def drawn(progress: Progress, width: int, **options: Any) -> str:
    out = StringIO()
    Console(file=out, width=width, color_system=None).print(dashboard(progress, "title", width=width, **options))
    return out.getvalue()


@pytest.mark.parametrize("width", [60, 100, 160])
def test_the_dashboard_shows_what_runs_and_what_is_done(width: int) -> None:
    clock = Clock()
    progress = Progress(clock)
    assert "starting" in drawn(progress, width)
    driven(progress, clock)
    text = drawn(progress, width)
    for shown in ("measuring", "2 at once", "1 running", "2 ok", "1 failed", "1 × HTTP 429", "40 / 0"):
        assert shown in text, shown
    assert all(len(line) <= width for line in text.split("\n"))
    assert progress.share == 0.75
    clock.now += 100
    assert progress.rates()[-1] == 0
    if width == 100:
        assert not set(drawn(progress, width, plain=True)) & set("▁▂▃▄▅▆▇█")


def test_plain_lines_say_each_phase_and_each_level() -> None:
    lines: list[str] = []
    clock = Clock()
    driven(PlainLines(clock, lines.append), clock)
    assert lines[0] == "measuring level 2 (4 requests)"
    assert lines[1].startswith("level 2: 40 ok, 0 failed in 40.0 s, 8.0 tok/s, TTFT 100.0 / ")
