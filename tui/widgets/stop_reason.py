"""Why each request's prefix stopped matching: the scheduler's reason in words, with both texts where they differ."""

from __future__ import annotations

from collections.abc import Sequence

from mini_infer.observe.events import Miss
from tui.model.explain import why_missed
from tui.model.records import RequestRecord
from tui.model.view_state import ViewState
from tui.text import clip, clip_left, width
from tui.widgets.hit_bars import cached_of
from tui.widgets.panel import Line, Panel, Span, Target, empty
from tui.widgets.wrapped import wrap

CONTEXT = 6
"""Tokens shown before the first that differs; both texts have them."""


class StopReason(Panel):
    """The selected request in full, then the others, the newest first."""

    def heading(self, view: ViewState) -> tuple[str, str]:
        return ("why did it stop matching?" if self.size.width >= 40 else "why no match?"), ""

    def draw(self, view: ViewState, width: int, height: int) -> Sequence[Line]:
        if not view.state.info.prefix_cache:
            return empty("the prefix cache is switched off")
        records = view.past.requests[::-1]
        order = {r.seq_id: (cached_of(view, r) is None, view.past.is_ended(r.seq_id)) for r in records}
        records.sort(key=lambda r: (r.seq_id != view.selected, *order[r.seq_id]))
        lines: list[Line] = []
        for record in records:
            if len(lines) >= max(height, 1) and record.seq_id != view.selected:
                break
            lines += self._about(view, record, width)
        return lines or empty("no request yet")

    def _about(self, view: ViewState, record: RequestRecord, cells: int) -> list[Line]:
        name, target = view.letter(record.seq_id), Target("request", record.seq_id)
        cached = cached_of(view, record)
        style = "" if record.seq_id == view.selected else "muted"

        def said(text: str) -> list[Line]:
            lines = wrap(text, max(1, cells - 2))
            first = [Span(f"{name} ", view.owner(record.seq_id), target), Span(lines[0], style, target)]
            return [first, *([Span("  "), Span(line, style, target)] for line in lines[1:])]

        if cached is None:
            return said("waits: its prefix is looked up when it is admitted")
        miss, size = record.miss, view.state.info.block_size
        begun = f"matched {cached // size} block{'' if cached // size == 1 else 's'} ({cached} tok)"
        if miss is None:
            return said(f"{begun}.")
        if miss.kind == "DIFF":
            at = f"the first different token is {miss.token}, in block {miss.token // size}:"
            return [*said(f"{begun}; {at}"), *_texts(view, record, miss, cells)]
        return said(f"{begun}: {_words(view, record, miss)}")


def _words(view: ViewState, record: RequestRecord, miss: Miss) -> str:
    size, total = view.state.info.block_size, len(record.prompt)
    if miss.kind == "PARTIAL":
        full = f"{total} tok = {total // size} full blocks + {total % size} tok"
        return f"{full}, and only full blocks are cached."
    if miss.kind == "NEVER_SEEN":
        return f"nothing cached goes on at token {miss.token}: this text was not seen before."
    return f"{why_missed(view, miss)}."


def _texts(view: ViewState, record: RequestRecord, miss: Miss, cells: int) -> list[Line]:
    """The cached text and the request's own, with what both have before it."""
    g = view.glyphs
    name = view.letter(record.seq_id)
    pad = 2 + max(6, width(name))
    shared = view.decode(record.prompt[max(0, miss.token - CONTEXT) : miss.token])
    room = max(0, cells - pad - 3)
    before = clip_left(shared, min(width(shared), room * 2 // 3), g.ellipsis) if room >= 9 else ""
    if before and miss.token > CONTEXT and not before.startswith(g.ellipsis):
        before = g.ellipsis + before
    lines: list[Line] = []
    for label, tokens, style in (("cached", miss.theirs, "own"), (name, miss.ours, "good")):
        text = clip(view.decode(tokens), max(0, room - width(before)), g.ellipsis)
        lines.append([
            Span("  "), Span(label.ljust(pad - 2), "muted"), Span(' "', "faint"), Span(before, "muted"),
            Span(text, f"{style} bold"), Span('"', "faint"),
        ])  # fmt: skip
    return lines
