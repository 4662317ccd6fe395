"""The two lines at the top of every view: which view, when, and the engine in figures."""

from __future__ import annotations

from collections.abc import Sequence

from mini_infer.observe.metrics import hit_rate, mean_acceptance_length
from tui.glyphs import Glyphs, spark
from tui.messages import CursorMoved, EngineCommand, ViewOpened
from tui.model.cursor import Mode
from tui.model.view_state import ViewState
from tui.widgets.panel import Line, Panel, Span, Target, cut, plain

TABS = ("Cockpit", "Chat", "Blocks", "Sched", "Prefix", "Spec", "Trace")


class EngineStrip(Panel):
    """`tab`: the name of the view that is open."""

    can_focus = False
    framed = False
    DEFAULT_CSS = "EngineStrip { height: 2; dock: top; }"

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.tab = "chat"

    def draw(self, view: ViewState, width: int, height: int) -> Sequence[Line]:
        mode = self._mode(view, width)
        used = sum(len(s.text) for s in mode)
        left = self._tabs(view, width - used - 2)
        gap = width - used - sum(len(s.text) for s in left)
        return [[*cut(left, max(0, width - used - 1), pad=gap < 1), Span(" " * max(0, gap)), *mode],
                self._figures(view, width)]  # fmt: skip

    def clicked(self, target: Target) -> None:
        if target.kind == "view":
            self.post_message(ViewOpened(target.seq_id))
        elif target.kind == "mode":
            view = self.view
            if view is not None and view.mode is Mode.HISTORY:
                self.post_message(CursorMoved(None))
            elif view is not None:
                self.post_message(EngineCommand("run" if view.mode is Mode.PAUSED else "pause"))

    def _tabs(self, view: ViewState, room: int) -> list[Span]:
        all_of_them = sum(len(name) + 4 for name in TABS)
        wide = room >= all_of_them + 20
        names = TABS if room >= all_of_them else TABS[1:]
        tabs: list[Span] = []
        for name in names:
            number, here = TABS.index(name), name.lower() == self.tab
            text = f"[{number} {name}]" if here else f" {number} {name} "
            tabs.append(Span(text, "bold reverse" if here else "", Target("view", name.lower())))
        title = [Span(" mini-infer ", "bold"), *self._model(view, room - 12 - sum(len(s.text) for s in tabs) - 2)]
        return [*title, Span("  "), *tabs] if wide else tabs

    def _model(self, view: ViewState, room: int) -> list[Span]:
        meta, dot = view.meta, f" {view.glyphs.dot} "
        draft = f" + draft {meta.draft}" if meta.draft not in ("", "none") else ""
        for text in (dot.join(filter(None, (meta.model + draft, meta.device, meta.dtype))), meta.model):
            if text and len(text) + 1 <= room:
                return [Span(f" {text}", "muted")]
        return []

    def _mode(self, view: ViewState, width: int) -> list[Span]:
        g, replay = view.glyphs, "REPLAY " if view.meta.is_replay else ""
        speed = "max" if view.meta.speed is None else f"{view.meta.speed:g}/s"
        step = f"step {view.state.step} "
        target = Target("mode")
        match view.mode:
            case Mode.HISTORY:
                return [Span(f"{g.history} {replay}HISTORY -{view.behind}", "history bold", target), Span(f"  {step}")]
            case Mode.PAUSED:
                return [Span(f"{g.paused} {replay}PAUSED", "paused bold", target), Span(f"  {step}")]
        return [Span(f"{g.live} {replay}LIVE", "live bold", target), Span(f" {speed}  {step}")]

    def _figures(self, view: ViewState, width: int) -> Line:
        state, past, g = view.state, view.past, view.glyphs
        pool, blocks = state.pool, state.info.num_blocks
        wide = width >= 120
        counts = (
            f"{pool.used} used + {pool.cached} cached / {blocks}" if wide else f"{pool.used}+{pool.cached}/{blocks}"
        )
        waiting = state.waiting
        preempted = sum(1 for s in waiting if s.lost)
        hits, kept = hit_rate(state.totals), mean_acceptance_length(state.totals)
        k = max((s.k for s in state.sequences.values()), default=0)
        parts = [f"run {len(state.running)} wait {len(waiting) - preempted} pre {preempted}"]
        if hits is not None:
            parts.append(f"hit {hits:.0%}")
        if kept is not None:
            parts.append(f"kept {kept:.1f}/{k + 1}" if k else f"kept {kept:.1f}")
        speed = past.tokens_per_second()
        if wide and past.ttft is not None:
            parts.append(f"TTFT p50 {past.ttft:.2f} s")
        if wide and past.itl is not None:
            parts.append(f"ITL p50 {1000 * past.itl:.0f} ms")
        if speed is not None:
            parts.append(f"{speed:.0f} tok/s")
        bar = _pool_bar(g, pool.used, pool.cached, blocks, 16 if wide else 8)
        line = [Span(" KV ", "muted"), *bar, Span(f" {counts}")]
        for part in parts:
            line += [Span(f" {g.separator} ", "frame"), Span(part)]
        if wide:
            room = width - sum(len(s.text) for s in line) - 2
            line.append(Span(" " + spark(g, past.rates(min(room, 24)), min(room, 24)), "good"))
        return line

    def as_text(self) -> str:
        return plain(self._rows or [])


def _pool_bar(g: Glyphs, used: int, cached: int, total: int, cells: int) -> list[Span]:
    """Used and cached shares, each with a cell of its own where it is not nothing."""
    full = max(used > 0, round(used / total * cells))
    half = max(cached > 0, round((used + cached) / total * cells) - full)
    full = min(full, cells - half)
    return [
        Span(g.bar * full, ""),
        Span(g.bar_half * half, "muted"),
        Span(g.bar_empty * (cells - full - half), "faint"),
    ]
