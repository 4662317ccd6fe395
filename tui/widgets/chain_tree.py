"""The cached prefixes as a tree, and the order in which what is idle will be evicted."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from tui.messages import BlockPinned, ViewOpened
from tui.model.chains import Chain, Idle, Node, eviction_order, ranges, tree
from tui.model.view_state import ViewState
from tui.text import clip, fit, width
from tui.widgets.listing import Listing
from tui.widgets.panel import Line, Span, Target

Entry = Node | Idle


class ChainTree(Listing[Entry]):
    """A line per chain, or with `by_eviction` one per idle block. `find` keeps what holds that text."""

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.by_eviction = False
        self.find = ""
        self._places: dict[int, int] = {}
        self._drawn_for: ViewState | None = None
        self._tree: list[Node] = []
        self._order: list[Idle] = []

    def heading(self, view: ViewState) -> tuple[str, str]:
        self._learn(view)
        title = "eviction order" if self.by_eviction else "cached chains"
        title += " (radix view of block keys)" if self.size.width >= 76 and not self.by_eviction else ""
        found = f'  "{clip(self.find, 20, view.glyphs.ellipsis)}"' if self.find else ""
        return title + found, f"{len(self._order)} of {len(view.state.blocks)} evictable, LRU"

    def items(self, view: ViewState) -> Sequence[Entry]:
        self._learn(view)
        if self.by_eviction:
            return [i for i in self._order if self.find in view.decode(i.state.tokens)]
        return [n for n in self._tree if not self.find or (n.chain and self.find in view.decode(n.chain.tokens))]

    def _learn(self, view: ViewState) -> None:
        if self._drawn_for is not view:
            self._drawn_for = view
            self._tree, self._order = tree(view), eviction_order(view)
            self._places = {idle.block: idle.place for idle in self._order}

    def key(self, item: Entry) -> Hashable:
        return ("block", item.block) if isinstance(item, Idle) else (item.chain is None, item.parent, _first(item))

    def none(self, view: ViewState) -> str:
        if not view.state.info.prefix_cache:
            return "the prefix cache is switched off"
        if self.find:
            return f'nothing cached holds "{self.find}"'
        return "nothing is idle: every cached block is in use" if self.by_eviction and self._tree else "nothing cached"

    def home(self, view: ViewState, items: Sequence[Entry]) -> int:
        """The longest chain that the selected request holds."""
        held = [i for i, n in enumerate(items) if isinstance(n, Node) and n.chain and view.selected in n.chain.holders]
        return held[-1] if held else 0

    def opened(self, item: Entry) -> None:
        block = item.block if isinstance(item, Idle) else item.chain.blocks[-1] if item.chain is not None else None
        if block is not None:
            self.post_message(BlockPinned(block))
            self.post_message(ViewOpened("blocks"))

    def action_eviction(self) -> None:
        self.by_eviction, self.at = not self.by_eviction, None
        self.redraw()

    def search(self, text: str) -> None:
        """Keep the chains whose tokens hold this text."""
        self.find, self.at = text, None
        self.redraw()

    def row(self, view: ViewState, item: Entry, width: int, here: bool) -> Line:
        mark = Span(view.glyphs.selected if here and self.has_focus else " ", "bold")
        if isinstance(item, Idle):
            return [mark, *self._idle(view, item, width - 1)]
        if item.chain is None:
            return [mark, Span(_root(item, self._tree), "muted")]
        return [mark, *self._chain(view, item, item.chain, width - 1)]

    def _idle(self, view: ViewState, idle: Idle, cells: int) -> Line:
        freed = "before the start" if idle.freed_step is None else f"idle since step {idle.freed_step}"
        target = Target("block", "", idle.block)
        head = f"{idle.place:>4}  block {idle.block:<5} {idle.state.key[:8]}  {freed:<22} "
        text = clip(f'"{view.decode(idle.state.tokens)}"', max(0, cells - width(head)), view.glyphs.ellipsis)
        return [Span(head, "own" if idle.place == 1 else "", target), Span(text, "muted", target)]

    def _chain(self, view: ViewState, node: Node, chain: Chain, cells: int) -> Line:
        g, target = view.glyphs, Target("block", "", chain.blocks[-1])
        stem = "".join(g.tree_line if more else "   " for more in node.stems[:-1])
        stem += g.tree_branch if node.stems[-1] else g.tree_last
        stem = stem if width(stem) <= cells // 3 else f"{chain.depth}{g.tree_last[1:]}"
        label = clip(ranges(chain.blocks), max(6, cells // 4), g.ellipsis)
        owners = [Span(f" {view.letter(s)}", view.owner(s), Target("request", s)) for s in chain.holders]
        state = f"ref {len(chain.holders)} "
        if not chain.holders:
            places = sorted(self._places[b] for b in chain.blocks)
            which = "" if 1 not in places else f" next: {next(b for b in chain.blocks if self._places[b] == 1)}"
            owners = [Span(f" evict{which}" if which else f" evict #{ranges(places)}", "own")]
        room = cells - width(stem) - width(label) - len(state) - max(9, 2 * len(owners)) - 2
        if not chain.holders:
            room = cells - width(stem) - width(label) - len(state) - max(9, width(owners[0].text)) - 2
        style = "" if chain.holders else "muted"
        line = [Span(stem, "frame"), Span(label + " ", "bold" if view.selected in chain.holders else style, target)]
        if room >= 30:
            line.append(Span(f"{chain.key[:8]} ", "faint", target))
            room -= 9
        if room >= 4:
            line.append(Span(fit(_quoted(view, chain.tokens, room), room) + " ", style, target))
        return [*line, Span(state, "" if chain.holders else "faint"), *owners]


def _quoted(view: ViewState, tokens: tuple[int, ...], cells: int) -> str:
    """The text of a chain, or its beginning; no more tokens are looked at than can be seen."""
    return clip(f'"{view.decode(tokens[:cells])}"', cells, view.glyphs.ellipsis + '"')


def _root(node: Node, nodes: Sequence[Node]) -> str:
    if node.orphan:
        return f"(out of reach: {node.parent[:8]} was evicted)"
    several = sum(1 for n in nodes if n.chain is None and not n.orphan) > 1
    return f"(root {node.parent[:8]}, a salt of its own)" if several else "(root)"


def _first(node: Node) -> int:
    return node.chain.blocks[0] if node.chain is not None else -1
