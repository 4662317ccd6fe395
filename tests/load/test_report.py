"""Reports in every form: values that are there, values that nobody knows, nothing that JSON cannot say."""

from __future__ import annotations

import csv
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from mini_infer.errors import UserError
from mini_infer.load.arrivals import Level
from mini_infer.load.compare import compare_reports, to_text
from mini_infer.load.figures import Slo, figures
from mini_infer.load.html import to_html
from mini_infer.load.markdown import to_markdown
from mini_infer.load.plot import Series, plot, ticks
from mini_infer.load.power import Energy
from mini_infer.load.records import Record
from mini_infer.load.report import COLUMNS, LevelReport, Report, read_json, sample, to_csv, to_json
from mini_infer.load.runner import LevelRun
from mini_infer.load.scrape import ServerSide
from mini_infer.load.words import faults, warnings


def level(streams: int, scale: float = 1.0, repeat: int = 0, count: int = 40, **more: Any) -> LevelReport:
    """Answers whose times wobble a little around a scale."""
    records = []
    for i in range(count):
        wobble = scale * (1 + 0.1 * ((i * 7 + repeat) % 11 - 5) / 5)
        pieces = tuple(i + 0.1 * wobble + 0.02 * wobble * j for j in range(8))
        records.append(Record(number=i, scheduled=i, sent=i, end=pieces[-1], pieces=pieces, tokens=8))
    run = LevelRun(Level(concurrency=streams), 0.0, float(max(count, 1)), tuple(records))
    values: dict[str, Any] = {"energy": Energy(), "server": ServerSide(), "is_cut": False, "warnings": []}
    return LevelReport(
        level=str(streams),
        concurrency=streams,
        rate=None,
        repeat=repeat,
        figures=figures(run, Slo(ttft=500)),
        samples=[sample(r, 0.0) for r in records],
        **(values | more),
    )


def report(*levels: LevelReport, **more: Any) -> Report:
    values: dict[str, Any] = {"model": "m", "url": "http://h:1", "server": {"engine": "fake"}, "seed": 7}
    values |= {"created": "2026-01-01T00:00:00+00:00", "version": "0", "settings": {"workload": "chat"}}
    return Report(levels=list(levels), slo=Slo(ttft=500), **(values | more))


EMPTY = report(level(1, count=0), level(4, count=0))


def test_json_comes_back_as_it_was(tmp_path: Path) -> None:
    made = report(level(1), level(4, energy=Energy(source="RAPL", power_w=10.0, tokens_per_joule=0.8)))
    path = tmp_path / "r.json"
    path.write_text(to_json(made))
    assert read_json(path) == made
    assert json.loads(path.read_text())["schema"] == "mini-infer-load/1"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": "mini-infer-load/9"}', '{"schema": "mini-infer-load/1"}'])
def test_what_is_no_report_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "r.json"
    path.write_text(text)
    with pytest.raises(UserError, match=r"r\.json") as caught:
        read_json(path)
    assert "\n" not in str(caught.value)


def test_B05_an_empty_report_has_blanks_and_no_NaN() -> None:
    text = to_json(EMPTY)
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
    assert "n/a" in to_markdown(EMPTY)
    for shown in (to_markdown(EMPTY), to_csv(EMPTY), to_html(EMPTY), to_html(report()), to_markdown(report())):
        assert "nan" not in re.sub(r"[^a-zA-Z ]", " ", shown).lower().split()


def test_csv_has_one_row_per_level() -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(report(level(1), level(4))))))
    assert [row["level"] for row in rows] == ["1", "4"]
    assert list(rows[0]) == COLUMNS
    assert float(rows[0]["ttft_p50_ms"]) == pytest.approx(100, rel=0.05)
    assert rows[0]["tokens_per_joule"] == ""


def test_the_markdown_table_is_the_readmes() -> None:
    energy = Energy(source="NVML", memory_peak_bytes=1_482_000_000, power_w=12.7, tokens_per_joule=0.76)
    lines = to_markdown(report(level(1, energy=energy))).split("\n")
    head = next(i for i, line in enumerate(lines) if line.startswith("| c | ok / fail | tok/s | TTFT p50 / p99 ms"))
    cells = [cell.strip() for cell in lines[head + 2].strip("|").split("|")]
    assert cells[:2] == ["1", "40 / 0"]
    assert cells[5:] == ["1,482", "12.7", "0.76"]
    assert to_markdown(report(level(1))).count("n/a") > 3


# --- HTML -----------------------------------------------------------------------------------------------------------


class _Reader(HTMLParser):
    VOID = ("meta", "br")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.counts: dict[str, int] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "data")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_html_is_whole_and_needs_nothing_else() -> None:
    text = to_html(report(level(1), level(4), level(16), model="<b>&x"))
    reader = _Reader()
    reader.feed(text)
    assert reader.open == []
    assert reader.links == []
    assert "url(" not in text and "@import" not in text and "<script" not in text
    assert reader.counts["svg"] == 6
    assert "&lt;b&gt;&amp;x" in text and "<b>&x" not in text


def test_plots_stay_within_their_frame() -> None:
    for points in ([(1.0, 5.0)], [(1.0, 0.0), (2.0, 0.0)], [(1.0, 1e-3), (64.0, 1e6)], [(0.0, 1.0), (0.5, 2.0)]):
        text = plot("t", "x", "y", [Series("s", points)], log_x=points[0][0] > 0)
        for x, y in re.findall(r'cx="([-\d.]+)" cy="([-\d.]+)"', text):
            assert 0 <= float(x) <= 460 and 0 <= float(y) <= 260
    assert "nothing measured" in plot("t", "x", "y", [Series("s", [])])


@pytest.mark.parametrize("high", [0.0, 0.003, 1.0, 7.0, 99.0, 100.0, 1e6])
def test_ticks_are_few_round_and_reach_the_top(high: float) -> None:
    found = ticks(high)
    assert 2 <= len(found) <= 7
    assert found[0] == 0 and found[-1] >= high


# --- lines ----------------------------------------------------------------------------------------------------------


def test_faults_say_why_in_one_line_each() -> None:
    failed = Record(number=0, scheduled=0, sent=0, end=0, outcome="failed", cause="refused", detail="port 1")
    found = figures(LevelRun(Level(concurrency=1), 0.0, 1.0, (failed, failed)), Slo())
    bad = level(1, count=0)
    bad = LevelReport(**{name: getattr(bad, name) for name in bad.__struct_fields__} | {"figures": found})
    assert faults(report(bad), cancelled=False) == ["all 2 requests of level 1 failed: refused (port 1)"]
    assert faults(report(level(1)), cancelled=False) == []
    leak = level(4, server=ServerSide(leaked={"running": 2.0}))
    assert faults(report(leak), cancelled=False) == []
    assert "running 2" in faults(report(leak), cancelled=True)[0]


def test_warnings_name_what_a_reader_must_know() -> None:
    found = level(1).figures
    assert warnings(found, ServerSide(agrees=True), cut=False) == []
    said = warnings(found, ServerSide(agrees=False, generated_tokens=9, leaked={"waiting": 1.0}), cut=False)
    assert len(said) == 2 and "counted 9 tokens" in said[0] and "waiting 1" in said[1]


# --- comparison -----------------------------------------------------------------------------------------------------


def verdicts(a: Report, b: Report, **options: Any) -> dict[str, str]:
    return {v.quantity: v.verdict for v in compare_reports(a, b, draws=300, **options)}


def test_a_slower_run_is_worse_and_a_faster_one_better() -> None:
    base = report(level(4))
    slower = verdicts(base, report(level(4, 1.3)))
    assert {slower[q] for q in ("TTFT p50 ms", "TPOT p50 ms", "E2E p50 ms", "tok/s")} == {"worse"}
    assert slower["failed share"] == "same"
    assert verdicts(report(level(4, 1.3)), base)["tok/s"] == "better"


def test_noise_and_small_differences_are_neither() -> None:
    base = report(level(4))
    assert set(verdicts(base, report(level(4, repeat=3))).values()) == {"same"}
    assert set(verdicts(base, report(level(4, 1.03))).values()) == {"same"}
    assert "worse" in verdicts(base, report(level(4, 1.08)), threshold=0.02).values()


def test_repeats_that_disagree_widen_the_interval() -> None:
    """A is fast and B slow in one pair only: over all pairs that is no verdict."""
    a = report(*(level(4, 1.0, repeat=i) for i in range(3)))
    b = report(*(level(4, scale, repeat=i) for i, scale in enumerate((1.0, 1.4, 0.7))))
    found = next(v for v in compare_reports(a, b, draws=300) if v.quantity == "tok/s")
    assert (found.verdict, found.repeats) == ("same", 3)
    assert found.low is not None and found.high is not None and found.high - found.low > 0.2


def test_failures_alone_make_a_run_worse() -> None:
    good = level(4)
    broken = [sample(Record(number=0, scheduled=0, sent=0, end=0, outcome="failed", cause="cut"), 0.0)] * 20
    values = {name: getattr(good, name) for name in good.__struct_fields__}
    bad = LevelReport(**values | {"samples": good.samples + broken})
    assert verdicts(report(good), report(bad))["failed share"] == "worse"


def test_nothing_in_common_is_said_and_nothing_measured_is_unknown() -> None:
    with pytest.raises(UserError, match="no level in common"):
        compare_reports(report(level(1)), report(level(4)))
    assert set(verdicts(EMPTY, EMPTY).values()) == {"unknown"}
    text = to_text(compare_reports(report(level(4)), report(level(4, 1.3)), draws=100))
    assert "B is worse in: TTFT p50 ms at 4" in text
