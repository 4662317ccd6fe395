"""The report as a value, and as JSON and CSV. The schema's number goes up with every change that readers notice."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from mini_infer.errors import UserError
from mini_infer.load.check import CheckReport
from mini_infer.load.figures import Figures, Slo, tpot, ttft
from mini_infer.load.power import Energy
from mini_infer.load.records import Record
from mini_infer.load.scrape import ServerSide

SCHEMA = "mini-infer-load/1"


class Sample(Struct, frozen=True, kw_only=True):
    """One request. Times in milliseconds, `scheduled_ms` from the level's start; None is what never happened."""

    scheduled_ms: float
    sent_ms: float
    outcome: str
    cause: str | None = None
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None
    tokens: int = 0
    pieces: int = 0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None


class LevelReport(Struct, frozen=True, kw_only=True):
    """`level` is its name: streams at once, requests a second, or replay."""

    level: str
    concurrency: int | None
    rate: float | None
    repeat: int
    figures: Figures
    energy: Energy
    server: ServerSide
    is_cut: bool
    warnings: list[str]
    samples: list[Sample]

    @property
    def all_failed(self) -> bool:
        return not self.figures.ok and self.figures.num_failed > 0


class Maximum(Struct, frozen=True, kw_only=True):
    """What --find-max found: the highest level that kept the objectives, and the lowest that did not."""

    kept: str | None
    broken: str | None
    attainment: float
    """The share of answers that must meet the objectives."""


class Report(Struct, frozen=True, kw_only=True):
    schema: str = SCHEMA
    version: str
    created: str
    url: str
    model: str
    server: dict[str, Any]
    seed: int
    settings: dict[str, Any]
    slo: Slo
    levels: list[LevelReport] = []
    check: CheckReport | None = None
    maximum: Maximum | None = None
    stopped: str | None = None
    """Why it ended early."""
    notes: list[str] = []


def sample(record: Record, start: float) -> Sample:
    def ms(seconds: float | None) -> float | None:
        return None if seconds is None else round(1e3 * seconds, 3)

    ok = record.is_ok
    return Sample(
        scheduled_ms=round(1e3 * (record.scheduled - start), 3),
        sent_ms=round(1e3 * (record.sent - start), 3),
        outcome=record.outcome,
        cause=record.cause,
        ttft_ms=ms(ttft(record)) if ok else None,
        tpot_ms=ms(tpot(record)) if ok else None,
        e2e_ms=ms(record.end - record.scheduled) if ok else None,
        tokens=record.tokens,
        pieces=len(record.pieces),
        prompt_tokens=record.prompt_tokens,
        cached_tokens=record.cached_tokens,
    )


def to_json(report: Report) -> str:
    """Indented JSON. What has no value is null: JSON knows no NaN."""
    return msgspec.json.format(msgspec.json.encode(report), indent=1).decode() + "\n"


def read_json(path: Path) -> Report:
    """Raises UserError for a file that is no report of this schema."""
    try:
        data = path.read_bytes()
        schema = msgspec.json.decode(data, type=_Header).schema
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror})") from None
    except msgspec.DecodeError as error:
        raise UserError(f"{path} is no report of mini-infer load ({error})") from None
    if schema != SCHEMA:
        raise UserError(f"{path} has schema {schema!r}: this version reads {SCHEMA!r}; measure again")
    try:
        return msgspec.json.decode(data, type=Report)
    except msgspec.DecodeError as error:
        raise UserError(f"{path} is damaged ({error})") from None


class _Header(Struct):
    schema: str


COLUMNS = (
    "level repeat ok failed cancelled unfinished window_s output_tokens output_tok_s steady_tok_s requests_s "
    "ttft_p50_ms ttft_p99_ms tpot_p50_ms tpot_p99_ms itl_p50_ms itl_p99_ms e2e_p50_ms e2e_p99_ms goodput_s attainment "
    "cached_share acceptance memory_peak_bytes power_w tokens_per_joule tokens_per_joule_net client_cpu_share"
).split()


def to_csv(report: Report) -> str:
    """One row per level; an empty cell is what nobody knows."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for level in report.levels:
        writer.writerow([_cell(level, column) for column in COLUMNS])
    return out.getvalue()


def _cell(level: LevelReport, column: str) -> Any:
    if column in ("level", "repeat"):
        return getattr(level, column)
    if column == "failed":
        return level.figures.num_failed
    if hasattr(level.energy, column):
        value = getattr(level.energy, column)
    elif hasattr(level.figures, column):
        value = getattr(level.figures, column)
    else:
        quantity, share, unit = column.rsplit("_", 2)
        value = getattr(getattr(level.figures, f"{quantity}_{unit}"), share)
    return "" if value is None else round(value, 4) if isinstance(value, float) else value
