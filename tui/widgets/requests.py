"""The requests at a glance, and what happened last."""

from __future__ import annotations

from collections.abc import Sequence

from tui.model.view_state import ViewState
from tui.text import clip, fit
from tui.widgets.answer import status
from tui.widgets.panel import Line, Panel, Span, Target, empty

_KIND_STYLES = {
    "preempted": "bad", "error": "bad bold", "aborted": "own", "evict": "own", "finished": "good", "control": "paused",
    "admitted": "", "arrived": "", "spec": "muted", "blocks": "muted",
}  # fmt: skip


class RequestList(Panel):
    """Live sequences in order of service, then the last ones that ended."""

    def heading(self, view: ViewState) -> tuple[str, str]:
        return "requests", f"{len(view.state.sequences)} live"

    def draw(self, view: ViewState, width: int, height: int) -> Sequence[Line]:
        live = [s.seq_id for s in view.state.ordered]
        ended = [r.seq_id for r in view.past.requests if view.past.is_ended(r.seq_id)]
        ids = [*live, *ended[::-1][: max(0, height - len(live))]]
        return [self._line(view, seq_id, width) for seq_id in ids] or empty("none yet")

    def _line(self, view: ViewState, seq_id: str, width: int) -> Line:
        g = view.glyphs
        mark = g.selected if seq_id == view.selected else " "
        room = min(22, max(8, width // 2 - 4))
        doing = clip(_doing(view, seq_id), room, g.ellipsis)
        tokens = f"{view.past.num_output(seq_id)} tok"
        title = clip(view.title(seq_id), max(0, width - 4 - room - 11), g.ellipsis)
        style = "" if seq_id in view.state.sequences else "muted"
        target = Target("request", seq_id)
        return [
            Span(f"{view.letter(seq_id)} {mark} ", view.owner(seq_id), target),
            Span(fit(doing, room) + " ", style, target),
            Span(fit(title, max(0, width - 4 - room - 10)), style, target),
            Span(tokens.rjust(9), style, target),
        ]


def _doing(view: ViewState, seq_id: str) -> str:
    """Its state, and where it waits, why."""
    seq = view.state.sequences.get(seq_id)
    if seq is None or seq.running:
        return status(view, seq_id)
    place = next(i for i, s in enumerate(view.state.waiting, 1) if s.seq_id == seq_id)
    why = seq.wait.kind if seq.wait is not None else "next"
    return f"{'preempted' if seq.lost else 'waits'} #{place} {why}"


class EventList(Panel):
    """What happened, newest first."""

    def heading(self, view: ViewState) -> tuple[str, str]:
        return "events", "newest first"

    def draw(self, view: ViewState, width: int, height: int) -> Sequence[Line]:
        lines: list[Line] = []
        for event in view.past.events(height):
            target = Target("step", event.seq_id, event.step)
            sign = view.glyphs.preempted if event.kind == "preempted" else " "
            lines.append([
                Span(f"{event.step:>5} {sign} ", "faint", target),
                Span(event.text.replace("→", view.glyphs.arrow), _KIND_STYLES.get(event.kind, ""), target),
            ])  # fmt: skip
        return lines or empty("nothing yet")
