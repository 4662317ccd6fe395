"""A report as lines for the event list, the most telling first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from mini_infer.observe.events import BlockMove, StepReport
from tui.model.records import Event, RequestRecord


def events_of(report: StepReport, requests: Mapping[str, RequestRecord]) -> list[Event]:
    """`requests` must have every sequence that the report names."""
    return [Event(report.seq, report.step, kind, seq_id, text) for kind, seq_id, text in _lines(report, requests)]


def _lines(report: StepReport, requests: Mapping[str, RequestRecord]) -> Iterator[tuple[str, str, str]]:
    def letter(seq_id: str) -> str:
        record = requests.get(seq_id)
        return record.letter if record is not None else "?"

    for control in report.control:
        yield "control", "", control.action.replace("_", " ") + (f": {control.detail}" if control.detail else "")
    for p in report.preempted:
        cause = f"{letter(p.cause)} needed a block" if p.cause else "a block was needed"
        yield "preempted", p.seq_id, f"{letter(p.seq_id)} preempted: {cause}, {p.freed} freed, {p.lost} tok lost"
    for a in report.arrived:
        more = f", {a.n} choices" if a.n > 1 else ""
        yield "arrived", a.seq_id, f"{letter(a.seq_id)} arrived, {len(a.prompt)} tok{more}"
    for let in report.admitted:
        record = requests.get(let.seq_id)
        total = len(record.prompt) + len(record.output) if record is not None else 0
        word = "admitted" if let.first else "resumed"
        yield "admitted", let.seq_id, f"{letter(let.seq_id)} {word}: {let.cached} of {total} tok cached"
    for fork in report.forked:
        yield "arrived", fork.child, f"{letter(fork.child)} forked from {letter(fork.parent)}"
    for r in report.spec:
        tail = "" if r.token is None else " + bonus" if r.bonus else ", target chose its own"
        yield "spec", r.seq_id, f"{letter(r.seq_id)} kept {r.kept}/{r.drafted} drafts{tail}"
    yield from _moves(report.blocks, letter)
    for finished in report.finished:
        word, name = finished.reason, letter(finished.seq_id)
        tokens = finished.usage.completion_tokens
        if word == "error":
            yield "error", finished.seq_id, f"{name} failed: {finished.error or 'no reason given'}"
        elif word == "abort":
            yield "aborted", finished.seq_id, f"{name} aborted after {tokens} tok"
        else:
            yield "finished", finished.seq_id, f"{name} finished ({word}), {tokens} tok"


def _moves(moves: Iterable[BlockMove], letter: Callable[[str], str]) -> Iterator[tuple[str, str, str]]:
    """What the pool did, in one line each for evictions and allocations."""
    evicted = [str(m.block) for m in moves if m.op == "evict"]
    taken = [f"+{m.block}→{letter(m.seq_id)}" for m in moves if m.op in ("alloc", "cow")]
    if evicted:
        yield "evict", "", f"evicted {_some(evicted)}"
    if taken:
        yield "blocks", "", _some(taken)


def _some(words: list[str], most: int = 6) -> str:
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return " ".join(words[:most]) + more
