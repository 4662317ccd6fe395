"""The speculative rounds of a request: what was proposed, how far it was kept, and what the target added."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from textual.message import Message

from mini_infer.observe.events import Round
from tui.messages import CursorMoved, ViewOpened
from tui.model.focus import drafting, focus, why_k
from tui.model.records import RoundRecord
from tui.model.view_state import ViewState
from tui.text import clip, fit, width
from tui.widgets.listing import Listing
from tui.widgets.panel import Line, Span

DRAFTS, VERDICT, TARGET = "draft proposes", "verdict", "target adds"


class RoundList(Listing[RoundRecord]):
    """One line per round, the newest last and under the cursor until it is moved."""

    class Moved(Message):
        """The cursor went to another round."""

    def heading(self, view: ViewState) -> tuple[str, str]:
        seq_id = focus(view)
        if seq_id is None:
            return "rounds", ""
        drafter = view.meta.draft if view.meta.draft not in ("", "none") else view.state.info.draft
        k, _ = why_k(view, seq_id)
        return f"rounds of {view.letter(seq_id)}", f"drafter: {drafter}  k={k}"

    def items(self, view: ViewState) -> Sequence[RoundRecord]:
        seq_id = focus(view)
        return view.past.rounds(seq_id) if seq_id is not None else []

    def key(self, item: RoundRecord) -> Hashable:
        return (item.round.seq_id, item.seq)

    def home(self, view: ViewState, items: Sequence[RoundRecord]) -> int:
        return len(items) - 1

    def none(self, view: ViewState) -> str:
        seq_id, off = focus(view), drafting(view)
        if off is not None:
            return off
        if seq_id is None:
            return "no request yet"
        k, why = why_k(view, seq_id)
        return f"{view.letter(seq_id)} had no round yet: k={k}, {why}."

    def moved(self, item: RoundRecord) -> None:
        self.post_message(self.Moved())

    def opened(self, item: RoundRecord) -> None:
        self.post_message(CursorMoved(item.step))
        self.post_message(ViewOpened("chat"))

    def head(self, view: ViewState, width: int, height: int) -> list[Line]:
        if height < 3 or width < 30:
            return []
        drafts, signs, own = _columns(view, self.drawn, width)
        verdict = VERDICT if signs >= len(VERDICT) else ""
        added = TARGET if own >= len(TARGET) else "target"
        text = f"  {'step':>5} {fit(f' {DRAFTS}', drafts)} {fit(verdict, signs)} {fit(added, own)} kept"
        return [[Span(text, "muted")]]

    def row(self, view: ViewState, item: RoundRecord, width: int, here: bool) -> Line:
        g, made = view.glyphs, item.round
        drafts, signs, own = _columns(view, self.drawn, width)
        mark = g.selected if here else " "
        line = [Span(f"{mark} {item.step:>5} ", "bold" if here else "muted"), *_drafts(view, made, drafts), Span(" ")]
        line += [*_verdict(view, made, signs), Span(" "), *_own(view, made, own)]
        return [*line, Span(f" {tokens_of(made):>4}", "bold" if here else "")]


def tokens_of(made: Round) -> int:
    """Output tokens of a round."""
    return made.kept + (made.token is not None)


def verdicts(view: ViewState, made: Round) -> list[tuple[str, str, str]]:
    """(sign, style, word) for each of the drafted tokens."""
    g = view.glyphs
    found = [(g.kept, "good", "kept")] * made.kept
    found += [(g.rejected, "bad", "rejected")] * (len(made.draft) - made.kept)
    return found + [(g.unjudged, "faint", "never judged")] * (made.drafted - len(found))


def _columns(view: ViewState, items: Sequence[RoundRecord], cells: int) -> tuple[int, int, int]:
    """Cells for drafts, verdicts, and the target's own token."""
    k = max((r.round.drafted for r in items[-64:]), default=1)
    signs = max(len(VERDICT) if cells >= 60 else 1, 2 * k - 1 if cells >= 60 else k)
    signs = min(signs, max(1, cells // 4))
    own = len(TARGET) + 6 if cells >= 100 else len(TARGET) + 2 if cells >= 60 else 9
    own = min(own, max(3, cells // 4))
    room = max(1, cells - 8 - 1 - signs - 1 - own - 5)
    longest = max((_needed(view, r.round) for r in items[-64:]), default=0)
    return min(room, max(longest + 2, len(DRAFTS) + 2)), signs, own


def _needed(view: ViewState, made: Round) -> int:
    """Cells of its drafts with their edges."""
    unknown = made.drafted - len(made.draft)
    return 1 + sum(width(view.piece(t)) + 1 for t in made.draft) + 2 * unknown


def _drafts(view: ViewState, made: Round, cells: int) -> list[Span]:
    """The proposed tokens between edges, so that their spaces show; those never judged are not known."""
    edge = view.glyphs.separator if view.glyphs.name == "ascii" else "|"
    spans, used = [Span(edge, "faint")], 1
    for i in range(made.drafted):
        known = i < len(made.draft)
        text = view.piece(made.draft[i]) if known else view.glyphs.ellipsis
        style = "faint" if not known else "good" if i < made.kept else "bad strike"
        left = cells - used - 1
        if width(text) > left:
            text = clip(text, left, view.glyphs.ellipsis)
        spans += [Span(text, style), Span(edge, "faint")] if text else []
        used += width(text) + 1 if text else 0
        if left <= width(text):
            break
    return [*spans, Span(" " * max(0, cells - used))]


def _verdict(view: ViewState, made: Round, cells: int) -> list[Span]:
    found = verdicts(view, made)
    gap = " " if 2 * len(found) - 1 <= cells else ""
    shown = found[:cells]
    spans = [Span(sign + (gap if i + 1 < len(shown) else ""), style) for i, (sign, style, _) in enumerate(shown)]
    return [*spans, Span(" " * max(0, cells - sum(len(s.text) for s in spans)))]


def _own(view: ViewState, made: Round, cells: int) -> list[Span]:
    g = view.glyphs
    if made.token is None:
        return [Span(fit("(ended)", cells), "faint")]
    sign, style = (g.bonus, "bonus bold") if made.bonus else (g.own, "own")
    text = clip(view.piece(made.token), max(0, cells - 4), g.ellipsis)
    return [Span(fit(f"{sign} |{text}|", cells), style)]
