"""The block table of each request, in logical order, and what those without one would find in the cache."""

from __future__ import annotations

from collections.abc import Sequence

from mini_infer.observe.state import SequenceState
from tui.model.chains import ranges
from tui.model.pool_facts import published_index, still_cached
from tui.model.view_state import ViewState
from tui.text import clip, width
from tui.widgets.panel import Line, Span, Target, empty
from tui.widgets.picking import RequestRows

Entry = tuple[str, str, int]  # text, "shared", "new" or "", first block


class BlockTables(RequestRows):
    def ids(self, view: ViewState) -> Sequence[str]:
        return [s.seq_id for s in view.state.ordered]

    def heading(self, view: ViewState) -> tuple[str, str]:
        moves = view.report.blocks if view.report is not None else ()
        taken = [m.block for m in moves if m.op in ("alloc", "cow")]
        freed = len({m.block for m in moves if m.op == "free" and m.block not in view.holders})
        news = " ".join(f"+{b}" for b in taken) if len(taken) <= 6 else f"+{len(taken)} blocks"
        right = f"step {view.state.step}: {news}" + (f"  -{freed} freed" if freed else "")
        return "block tables (logical order)", right if taken or freed else f"step {view.state.step}: no change"

    def draw(self, view: ViewState, width: int, height: int) -> Sequence[Line]:
        index = published_index(view) if view.state.waiting else {}
        lines: list[Line] = []
        for seq in view.state.ordered:
            lines += self._holding(view, seq, width) if seq.table else [self._without(view, seq, width, index)]
        return lines or empty("no request is alive")

    def _label(self, view: ViewState, seq: SequenceState) -> Span:
        mark = view.glyphs.selected if seq.seq_id == view.selected else " "
        return Span(f"{view.letter(seq.seq_id)} {mark} ", view.owner(seq.seq_id), Target("request", seq.seq_id))

    def _holding(self, view: ViewState, seq: SequenceState, cells: int) -> list[Line]:
        size = view.state.info.block_size
        total = len(seq.prompt) + len(seq.output)
        in_last = max(0, min(size, seq.num_computed - (len(seq.table) - 1) * size))
        sums = f"{total} tok {in_last:>2}/{size} in last" if cells >= 50 else f"{total} tok" if cells >= 24 else ""
        room = max(1, cells - 4 - (len(sums) + 2 if sums else 0))
        entries = self._entries(view, seq, fold=False)
        if _length(entries) > room:
            entries = self._entries(view, seq, fold=True)
        wrapped = seq.seq_id == view.selected
        rows = _rows(entries, room) if wrapped else [_elided(entries, room, view.glyphs.ellipsis)]
        dim = " dim" if view.sequence is not None and not wrapped else ""
        lines: list[Line] = []
        for i, row in enumerate(rows):
            spans = [self._label(view, seq)] if i == 0 else [Span("    ")]
            for text, kind, block in row:
                style = {"shared": "shared" + dim, "new": f"owner-{view.hue(seq.seq_id)} reverse"}.get(
                    kind, f"owner-{view.hue(seq.seq_id)}" + (" bold" if wrapped else dim)
                )
                spans += [Span(text, style, Target("block", "", block)), Span(" ")]
            used = sum(len(s.text) for s in spans)
            if i == 0 and sums:
                spans += [Span(" " * max(0, cells - used - len(sums))), Span(sums, "muted")]
            lines.append(spans)
        return lines

    def _entries(self, view: ViewState, seq: SequenceState, fold: bool) -> list[Entry]:
        """Its blocks in order; `fold` writes runs of three and more of one kind as a range."""
        new = {m.block for m in view.report.blocks if m.op in ("alloc", "cow")} if view.report is not None else set()
        runs: list[tuple[str, list[int]]] = []
        for block in seq.table:
            kind = "shared" if len(view.holders[block]) > 1 else "new" if block in new else ""
            if fold and runs and runs[-1][0] == kind and runs[-1][1][-1] + 1 == block:
                runs[-1][1].append(block)
            else:
                runs.append((kind, [block]))
        entries: list[Entry] = []
        for kind, blocks in runs:
            star = view.glyphs.shared if kind == "shared" else ""
            if len(blocks) > 2:
                entries.append((f"{star}{blocks[0]}-{star}{blocks[-1]}", kind, blocks[0]))
            else:
                entries += [(f"{star}{b}", kind, b) for b in blocks]
        return entries

    def _without(
        self, view: ViewState, seq: SequenceState, cells: int, index: dict[tuple[str, tuple[int, ...]], int]
    ) -> Line:
        total = len(seq.prompt) + len(seq.output)
        word = "preempted, holds 0" if seq.lost else "waits, holds 0" if not seq.running else "holds 0"
        found = still_cached(view, seq, index) if not seq.running else []
        if found:
            hit = f"{len(found) * view.state.info.block_size} of its {total} tok would hit"
            text = f"{word}; {ranges(found)} still cached = {hit}"
            if width(text) > cells - 4:
                text = f"{word}; {hit}"
        else:
            text = f"{word}; nothing of its {total} tok is cached"
        return [self._label(view, seq), Span(clip(text, max(0, cells - 4), view.glyphs.ellipsis), "muted",
                                            Target("request", seq.seq_id))]  # fmt: skip


def _length(entries: Sequence[Entry]) -> int:
    return sum(len(text) + 1 for text, _, _ in entries) - 1


def _rows(entries: Sequence[Entry], room: int) -> list[list[Entry]]:
    """All of them, in as many lines as that takes."""
    rows: list[list[Entry]] = [[]]
    for entry in entries:
        if rows[-1] and _length([*rows[-1], entry]) > room:
            rows.append([])
        rows[-1].append(entry)
    return rows


def _elided(entries: Sequence[Entry], room: int, ellipsis: str) -> list[Entry]:
    """The first ones and the last, with a mark of omission between where not all fit."""
    if _length(entries) <= room:
        return list(entries)
    last = entries[-1]
    kept: list[Entry] = []
    for entry in entries[:-1]:
        if _length([*kept, entry, (ellipsis, "", last[2]), last]) > room:
            break
        kept.append(entry)
    return [*kept, (ellipsis, "", entries[len(kept)][2]), last]
