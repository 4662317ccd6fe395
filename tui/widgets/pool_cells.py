"""The cells of the pool grid: what one block, or eight, look like."""

from __future__ import annotations

from collections import Counter

from tui.model.pool_facts import PoolFacts, tone
from tui.model.view_state import ViewState
from tui.widgets.panel import Span, Target

_BRAILLE = (0x01, 0x08, 0x02, 0x10, 0x04, 0x20, 0x40, 0x80)
"""The dots of a Braille pattern, row by row (Unicode, block U+2800)."""


class Cells:
    """Draws stretches of the pool. `found`: blocks to show among dim ones; `marked`: where the cursor stands."""

    def __init__(self, view: ViewState, facts: PoolFacts, found: frozenset[int] | None, marked: int | None) -> None:
        self.view, self.facts, self.found, self.marked = view, facts, found, marked
        self._tones: dict[tuple[str, ...], str] = {}

    def row(self, zoom: str, first: int, end: int) -> list[Span]:
        spans: list[Span] = []
        if zoom == "dense":
            return [self._dense(range(b, min(end, b + 8))) for b in range(first, end, 8)]
        for block in range(first, end):
            style, target = self._style(block), Target("block", "", block)
            marked = self._marking(block)
            if zoom == "1 cell":
                spans.append(
                    Span(self._sign(block), f"{style} {marked}" if marked == "reverse" else marked or style, target)
                )
                continue
            text = self._pair(block)
            if marked:  # the fill keeps its own colours, a reversed one would look like another
                spans.append(Span(text[0], f"{style} {marked}" if marked == "reverse" else marked, target))
                text = text[1:]
            spans.append(Span(text, style, target))
            if block + 1 < end:
                spans.append(Span(" "))
        return spans

    def _pair(self, block: int) -> str:
        g, held = self.view.glyphs, self.facts.holders.get(block)
        if not held:
            freed = block in self.facts.freed
            if block in self.view.state.blocks:
                return (g.freed if freed else g.cached) + g.fill[-1]
            return (g.freed if freed else g.free) + g.free
        if len(held) > 1:
            return g.shared + (str(len(held)) if len(held) < 10 else "+")
        return self.view.letter(held[0]) + self._fill(block)

    def _fill(self, block: int) -> str:
        """Eighths, rounded up: a block that is not full never looks full, one with something never empty."""
        g, size = self.view.glyphs, self.view.state.info.block_size
        rows = self.facts.filled.get(block, 0)
        if not rows:
            return g.free
        return g.fill[-1] if rows == size else g.fill[min(6, max(0, -(-8 * rows // size) - 1))]

    def _sign(self, block: int) -> str:
        g, held = self.view.glyphs, self.facts.holders.get(block)
        if held:
            return self.view.letter(held[0]) if len(held) == 1 else str(len(held)) if len(held) < 10 else "+"
        if block in self.facts.freed:
            return g.freed
        return g.cached if block in self.view.state.blocks else g.free

    def _marking(self, block: int) -> str:
        """What is special about it now: the cursor, taken or freed in this step."""
        if block == self.marked:
            return "cursor bold"
        if block in self.facts.freed:
            return "bad"
        return "reverse" if block in self.facts.new else ""

    def _style(self, block: int) -> str:
        held = self.facts.holders.get(block)
        if held:
            style = (f"owner-{self.view.hue(held[0])}" if len(held) == 1 else "shared") + self._tone(held)
        elif block in self.view.state.blocks:
            life = self.view.past.block(block)
            style = f"owner-{self.view.hue(life.alloc_by)} dim" if life is not None and life.alloc_by else "muted"
        else:
            style = "faint"
        if block == self.view.pinned:
            style += " underline"
        if self.found is None:
            return style
        return f"{style} bold underline".replace(" dim", "") if block in self.found else f"{style} dim"

    def _tone(self, held: list[str]) -> str:
        key = tuple(held)
        if key not in self._tones:
            self._tones[key] = tone(self.view, held)
        return self._tones[key]

    def _dense(self, blocks: range) -> Span:
        """Eight blocks in one cell: a dot for each that is held, in the hue of whoever holds most of them."""
        g, holders, published = self.view.glyphs, self.facts.holders, self.view.state.blocks
        held = [b for b in blocks if b in holders]
        target = Target("block", "", blocks.start)
        here = self.marked is not None and self.marked in blocks
        if held:
            dots = sum(_BRAILLE[b - blocks.start] for b in held)
            text = chr(0x2800 + dots) if g.name == "unicode" else str(len(held))
            owners = Counter(seq_id for b in held for seq_id in holders[b])
            most = owners.most_common(1)[0][0]
            style = f"owner-{self.view.hue(most)}" + tone(self.view, list(owners))
        else:
            cached = any(b in published for b in blocks)
            text, style = (g.cached, "muted") if cached else (g.free, "faint")
        if self.found is not None:
            style += " bold underline" if any(b in self.found for b in blocks) else " dim"
        return Span(text, "cursor bold" if here else style, target)
