"""From a level's records to its figures. Definitions:

- TTFT: from when the request should have been sent (closed loops: was sent) to its first text. A role is no text.
- TPOT: (last text - first text) / (tokens - 1), for answers of two tokens and more that came in more than one piece.
- ITL: every gap between two pieces of one answer.
- E2E: to the last byte.
- Output tok/s: tokens of good answers over the level's time, parts of those cut off at its end included; "steady" is
  the same between the moment when all streams ran and the moment when the first had nothing more to do.
- Goodput: answers per second that met every objective; attainment: their share of all answers, failures included.

Only good answers enter latencies. All divisions by nothing are None.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

from msgspec import Struct

from mini_infer.load.records import Record
from mini_infer.load.runner import LevelRun
from mini_infer.load.statistics import Spread, histogram, percentile, spread


class Slo(Struct, frozen=True):
    """Objectives in milliseconds; None is none."""

    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None

    def is_met(self, record: Record) -> bool:
        pairs = ((self.ttft, ttft(record)), (self.tpot, tpot(record)), (self.e2e, record.end - record.scheduled))
        return all(limit is None or found is None or 1e3 * found <= limit for limit, found in pairs)

    def __bool__(self) -> bool:
        return (self.ttft, self.tpot, self.e2e) != (None, None, None)


class Figures(Struct, frozen=True, kw_only=True):
    """What a level came to. Times in milliseconds where the name says so, else seconds."""

    ok: int
    failed: dict[str, int]
    details: dict[str, str]
    cancelled: int
    unfinished: int
    without_usage: int
    window_s: float
    steady_s: float | None
    input_tokens: int | None
    output_tokens: int
    unfinished_tokens: int
    output_tok_s: float | None
    steady_tok_s: float | None
    requests_s: float | None
    ttft_ms: Spread
    ttft_from_sent_ms: Spread
    tpot_ms: Spread
    itl_ms: Spread
    e2e_ms: Spread
    tokens_per_piece: float | None
    goodput_s: float | None
    attainment: float | None
    cached_share: float | None
    drafted: int | None
    accepted: int | None
    acceptance: float | None
    client_cpu_share: float
    client_lag_p99_ms: float | None
    itl_histogram: tuple[list[float], list[int]] = ((), ())  # type: ignore[assignment]

    @property
    def num_failed(self) -> int:
        return sum(self.failed.values())


_ITL_EDGES = [round(0.5 * 1.25**i, 3) for i in range(46)]
"""Milliseconds, to about 11 s."""


def ttft(record: Record) -> float | None:
    return record.pieces[0] - record.scheduled if record.pieces else None


def tpot(record: Record) -> float | None:
    if record.tokens < 2 or len(record.pieces) < 2:
        return None
    return (record.pieces[-1] - record.pieces[0]) / (record.tokens - 1)


def figures(run: LevelRun, slo: Slo) -> Figures:
    ok = [r for r in run.records if r.is_ok]
    failed = [r for r in run.records if r.outcome == "failed"]
    unfinished = [r for r in run.records if r.outcome == "unfinished"]
    window = run.end - run.start
    tokens, pieces = sum(r.tokens for r in ok), sum(len(r.pieces) for r in ok)
    per_piece = _over(tokens, pieces)
    partial = round(sum(len(r.pieces) for r in unfinished) * (per_piece or 1.0))
    steady = steady_window(run)
    good = sum(slo.is_met(r) for r in ok)
    gaps = [1e3 * (b - a) for r in ok for a, b in pairwise(r.pieces)]
    drafted = _sum(r.drafted for r in ok)
    accepted = _sum(r.accepted for r in ok)
    known = [r for r in ok if r.prompt_tokens is not None]
    cached = [r for r in known if r.cached_tokens is not None]
    return Figures(
        ok=len(ok),
        failed=dict(Counter(r.cause or "unknown" for r in failed).most_common()),
        details={r.cause or "unknown": r.detail for r in reversed(failed)},
        cancelled=sum(r.outcome == "cancelled" for r in run.records),
        unfinished=len(unfinished),
        without_usage=sum(r.counted_by == "pieces" for r in ok),
        window_s=window,
        steady_s=None if steady is None else steady[1] - steady[0],
        input_tokens=sum(r.prompt_tokens or 0 for r in known) if known else None,
        output_tokens=tokens,
        unfinished_tokens=partial,
        output_tok_s=_over(tokens + partial, window) if ok else None,
        steady_tok_s=None if steady is None else _tokens_within(ok + unfinished, *steady) / (steady[1] - steady[0]),
        requests_s=_over(len(ok), window) if ok else None,
        ttft_ms=_ms(ttft(r) for r in ok),
        ttft_from_sent_ms=_ms(r.pieces[0] - r.sent for r in ok if r.pieces),
        tpot_ms=_ms(tpot(r) for r in ok),
        itl_ms=spread(gaps),
        e2e_ms=_ms(r.end - r.scheduled for r in ok),
        tokens_per_piece=per_piece,
        goodput_s=_over(good, window) if slo else None,
        attainment=_over(good, len(ok) + len(failed)) if slo else None,
        cached_share=_over(sum(r.cached_tokens or 0 for r in cached), sum(r.prompt_tokens or 0 for r in cached)),
        drafted=drafted,
        accepted=accepted,
        acceptance=None if drafted is None or accepted is None else _over(accepted, drafted),
        client_cpu_share=run.cpu_share,
        client_lag_p99_ms=1e3 * percentile(sorted(run.lag_s), 0.99) if run.lag_s else None,
        itl_histogram=(_ITL_EDGES, histogram(gaps, _ITL_EDGES)),
    )


def steady_window(run: LevelRun) -> tuple[float, float] | None:
    """Of a closed loop: from when all its streams had begun to when the first had nothing left to do."""
    streams = run.level.concurrency
    sent = sorted(r.sent for r in run.records)
    if streams is None or len(sent) < streams:
        return None
    begin = sent[streams - 1]
    end = min((r.end for r in run.records if r.end > sent[-1]), default=run.end)
    return (begin, end) if end > begin else None


def _tokens_within(records: Sequence[Record], begin: float, end: float) -> float:
    """Tokens whose pieces came within; a piece is an equal share of its answer's tokens."""
    total = 0.0
    for record in records:
        inside = sum(begin < at <= end for at in record.pieces)
        if inside:
            total += record.tokens * inside / len(record.pieces)
    return total


def _ms(values: Iterable[float | None]) -> Spread:
    return spread([1e3 * value for value in values if value is not None])


def _sum(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _over(amount: float, by: float) -> float | None:
    return amount / by if by > 0 else None
