"""One block: what it is, who holds it, where it comes from, and what stands in it."""

from __future__ import annotations

from collections.abc import Sequence

from tui.model.chains import eviction_order
from tui.model.pool_facts import first_token, kind_of, pool_facts, rows_filled, tokens_of
from tui.model.view_state import ViewState
from tui.text import clip, width
from tui.widgets.panel import Line, Panel, Span, Target
from tui.widgets.wrapped import wrap


class BlockInspector(Panel):
    """`hovered_block`: what the pointer or the grid's cursor is on. A pinned block stays whatever they do."""

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.hovered_block: int | None = None

    def look_at(self, block: int | None) -> None:
        self.hovered_block = block
        self.redraw()

    def heading(self, view: ViewState) -> tuple[str, str]:
        return "block", "pinned" if view.pinned is not None else ""

    def draw(self, view: ViewState, width: int, height: int) -> Sequence[Line]:
        block = self.block(view)
        if height < 4:
            return [[Span(line)] for line in wrap(in_one_line(view, block), width)[:height]]
        lines = [
            line for line in (self._title(view, block, width), *self._owners(view, block, width)) if line is not None
        ]
        lines += self._facts(view, block, width)
        return [*lines, *self._text(view, block, width)]

    def block(self, view: ViewState) -> int:
        """What it shows: the pinned block, that under the pointer, the newest of the selected request, or any new."""
        last = view.state.info.num_blocks - 1
        for block in (view.pinned, self.hovered_block):
            if block is not None:
                return min(block, last)
        if view.sequence is not None and view.sequence.table:
            return view.sequence.table[-1]
        return min(pool_facts(view).new, default=0)

    def _title(self, view: ViewState, block: int, cells: int) -> Line:
        name, state = f"block {block}", state_words(view, block)
        gap = max(1, cells - len(name) - len(state))
        return [Span(name, "bold"), Span(" " * gap), Span(state, "shared" if state.startswith("SHARED") else "bold")]

    def _owners(self, view: ViewState, block: int, cells: int) -> list[Line]:
        """`A[3] C[3]`: who holds it, and at which place of its table."""
        lines: list[list[Span]] = [[]]
        for seq_id in view.holders.get(block, ()):
            index = view.state.sequences[seq_id].table.index(block)
            text = f"{view.letter(seq_id)}[{index}]  "
            if sum(len(s.text) for s in lines[-1]) + len(text) - 2 > cells and lines[-1]:
                lines.append([])
            lines[-1].append(Span(text, view.owner(seq_id), Target("request", seq_id)))
        return list(lines) if lines[0] else [[Span("nobody holds it", "muted")]]

    def _facts(self, view: ViewState, block: int, cells: int) -> list[Line]:
        size = view.state.info.block_size
        rows: list[Line] = [_fact("fill", f"{rows_filled(view, block)}/{size}")]
        published = view.state.blocks.get(block)
        if published is not None:
            rows.append(_fact("hash", published.key[:8]))
            parent = next((b for b, s in view.state.blocks.items() if s.key == published.parent), None)
            if parent is not None:
                target = Target("block", "", parent)
                more = f"(block {parent})" if cells >= 30 else f"({parent})"
                rows.append([*_fact("parent", published.parent[:8]), Span(" "), Span(more, "underline", target)])
            elif first_token(view, block) == 0:
                rows.append(_fact("parent", "none (first)"))
            else:
                rows.append(_fact("parent", f"{published.parent[:8]} evicted"))
        else:
            rows.append(_fact("hash", "none yet" if block in view.holders else "none"))
        life = view.past.block(block)
        if life is not None and life.alloc_step is not None:
            rows.append(_fact("alloc", f"step {life.alloc_step} by {view.letter(life.alloc_by)}",
                              Target("step", "", life.alloc_step)))  # fmt: skip
        if life is not None:
            last = f"last step {life.last_hit}" if life.last_hit is not None else "never hit"
            rows.append(_fact(f"hits {life.hits}", last))
        rows.append(_fact("evict", evictable(view, block)))
        return rows

    def _text(self, view: ViewState, block: int, cells: int) -> list[Line]:
        tokens, first = tokens_of(view, block), first_token(view, block)
        if not tokens:
            return []
        where = f"tokens {first}-{first + len(tokens) - 1}:" if first is not None else f"{len(tokens)} tokens:"
        text = view.decode(tokens, view.glyphs.newline + "\n").rstrip("\n")
        return [[Span(where, "muted")], *([Span(f" {line}")] for line in wrap(text, max(1, cells - 1)))]


def _fact(name: str, value: str, target: Target | None = None) -> list[Span]:
    return [Span(f"{name:<8}", "muted"), Span(value, "", target)]


def state_words(view: ViewState, block: int) -> str:
    kind = kind_of(view, block)
    return {"owned": "IN USE", "shared": f"SHARED x{len(view.holders.get(block, ()))}"}.get(kind, kind.upper())


def evictable(view: ViewState, block: int) -> str:
    """When its contents will go: never while held, else its place among the idle ones, least recently used first."""
    kind = kind_of(view, block)
    if kind == "free":
        return "nothing to evict"
    if kind != "cached":
        return "no, in use"
    order = eviction_order(view)
    place = next((idle.place for idle in order if idle.block == block), 0)
    return f"yes, {place} of {len(order)}" + (" (next)" if place == 1 else "")


def in_one_line(view: ViewState, block: int) -> str:
    """The same, for a tooltip and for little room."""
    held = " ".join(
        f"{view.letter(s)}[{view.state.sequences[s].table.index(block)}]" for s in view.holders.get(block, ())
    )
    parts = [f"block {block}", state_words(view, block), held]
    parts.append(f"{rows_filled(view, block)}/{view.state.info.block_size} tok")
    published = view.state.blocks.get(block)
    parts += [f"hash {published.key[:8]}"] if published is not None else []
    text = view.decode(tokens_of(view, block))
    parts += [f'"{clip(text, 60, view.glyphs.ellipsis)}"'] if text else []
    line = f" {view.glyphs.dot} ".join(part for part in parts if part)
    return line if width(line) else f"block {block}"
