"""How much of each prompt came from the prefix cache: a figure that is counted once, and a bar of blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from mini_infer.observe.metrics import hit_rate
from tui.messages import RequestSelected, ViewOpened
from tui.model.records import RequestRecord
from tui.model.view_state import ViewState
from tui.text import clip, fit
from tui.widgets.listing import Listing
from tui.widgets.panel import Line, Span, Target

HIT, COMPUTED, PARTIAL, NOT_YET = "H", "M", "p", "-"
_STYLES = {HIT: "good", COMPUTED: "", PARTIAL: "own", NOT_YET: "faint"}
_WORDS = ((HIT, "cached"), (COMPUTED, "computed"), (PARTIAL, "partial"), (NOT_YET, "not yet"))
LAST = 100


class HitBars(Listing[RequestRecord]):
    """Live requests in order of service, then the ended ones, the last first. The cursor is the selection."""

    def heading(self, view: ViewState) -> tuple[str, str]:
        run, (rate, count) = hit_rate(view.state.totals), recent_rate(view)
        parts = [] if run is None else [f"run {run:.0%}"]
        if rate is not None:
            parts.append(f"last {count} req {rate:.0%}")
        cells = self.size.width
        return ("hits per request, counted once at admission" if cells >= 80 else "prefix hits"), "  ".join(parts)

    def items(self, view: ViewState) -> Sequence[RequestRecord]:
        past = view.past
        live = [r for s in view.state.ordered if (r := past.request(s.seq_id)) is not None]
        return [*live, *[r for r in past.requests if past.is_ended(r.seq_id)][::-1]]

    def key(self, item: RequestRecord) -> str:
        return item.seq_id

    def none(self, view: ViewState) -> str:
        return "no request yet" if view.state.info.prefix_cache else "the prefix cache is switched off"

    def index(self, view: ViewState, items: Sequence[RequestRecord]) -> int:
        return next((i for i, r in enumerate(items) if r.seq_id == view.selected), 0)

    def moved(self, item: RequestRecord) -> None:
        self.post_message(RequestSelected(item.seq_id))

    def opened(self, item: RequestRecord) -> None:
        self.post_message(RequestSelected(item.seq_id))
        self.post_message(ViewOpened("blocks"))

    def head(self, view: ViewState, width: int, height: int) -> list[Line]:
        if height < 3:
            return []
        text = "req  prompt cached   hit   " if width >= 48 else "req tok  hit  "
        legend: list[Span] = []
        for i, (sign, word) in enumerate(_WORDS):
            legend += [Span("   " if i else ""), Span(sign, _STYLES[sign]), Span(f" {word}", "muted")]
        per = _per_cell(view, self.drawn, _room(width))
        note = f"   1 cell = {per} blocks" if per > 1 else ""
        return [[Span(text, "muted"), *legend, Span(note, "muted")]]

    def row(self, view: ViewState, item: RequestRecord, width: int, here: bool) -> Line:
        seq_id, target = item.seq_id, Target("request", item.seq_id)
        ended = view.past.is_ended(seq_id)
        cached = cached_of(view, item)
        share = "-" if cached is None else f"{cached / max(1, len(item.prompt)):.0%}"
        mark = view.glyphs.selected if seq_id == view.selected else " "
        style = "muted" if ended else ""
        letter = Span(f"{view.letter(seq_id)} {mark} ", view.owner(seq_id), target)
        if width >= 48:
            hit = "-" if cached is None else str(cached)
            figures = f"{len(item.prompt):>7} {hit:>6} {share:>5}   "
        else:
            figures = f"{len(item.prompt):>4} {share:>4}  "[: max(0, width - 4)]
        cells, per = blocks_of(view, item), _per_cell(view, self.drawn, _room(width))
        bar = "".join(_most(cells[i : i + per]) for i in range(0, len(cells), per))
        spans = [letter, Span(figures, style, target)]
        for sign in _runs(bar):
            spans.append(Span(sign, _STYLES[sign[0]], target))
        seq = view.state.sequences.get(seq_id)
        note = "preempted" if seq is not None and seq.lost else "waits" if seq is not None and not seq.running else ""
        used = 4 + len(figures) + len(bar)
        if note and width - used > 4:
            spans.append(Span(" " + clip(note, width - used - 1, view.glyphs.ellipsis), "own", target))
        elif ended and width - used > 8:
            spans.append(Span(fit(" ended", 6), "faint", target))
        return spans


def cached_of(view: ViewState, record: RequestRecord) -> int | None:
    """Tokens its first admission hit; None before it."""
    admitted = record.admitted_seq is not None and record.admitted_seq <= view.past.seq
    return record.cached if admitted else None


def blocks_of(view: ViewState, record: RequestRecord) -> str:
    """A sign per block of its prompt."""
    size, total = view.state.info.block_size, len(record.prompt)
    seq = view.state.sequences.get(record.seq_id)
    if seq is not None:
        computed = min(seq.num_computed, total)
    else:  # whoever gave a token had its whole prompt
        computed = total if view.past.num_output(record.seq_id) else cached_of(view, record) or 0
    hit = (cached_of(view, record) or 0) // size
    if seq is not None and seq.lost:
        hit = 0  # preempted: it holds nothing now
    full, done = total // size, computed // size
    middle = COMPUTED * (min(done, full) - hit) if done > hit else ""
    last = "" if total % size == 0 else PARTIAL if computed == total else NOT_YET
    return HIT * hit + middle + NOT_YET * (full - max(hit, min(done, full))) + last


def recent_rate(view: ViewState) -> tuple[float | None, int]:
    """Share of prompt tokens hit, of the last requests that were admitted (at most 100), and how many those are."""
    seen: dict[str, RequestRecord] = {}
    for record in view.past.requests:
        if cached_of(view, record) is not None:
            seen.setdefault(record.request_id, record)  # choices share one prompt
    last = sorted(seen.values(), key=lambda r: r.admitted_seq or 0)[-LAST:]
    total = sum(len(r.prompt) for r in last)
    return (sum(r.cached or 0 for r in last) / total if total else None), len(last)


def _room(width: int) -> int:
    """Cells for a bar."""
    return max(1, width - (27 if width >= 48 else 14) - (10 if width >= 48 else 0))


def _per_cell(view: ViewState, items: Sequence[RequestRecord], room: int) -> int:
    """Blocks that one cell stands for: the same in all rows."""
    most = max((-(-len(r.prompt) // view.state.info.block_size) for r in items), default=1)
    return max(1, -(-most // room))


def _most(cells: str) -> str:
    return Counter(cells).most_common(1)[0][0]


def _runs(bar: str) -> list[str]:
    """The bar cut where its sign changes."""
    runs: list[str] = []
    for sign in bar:
        if runs and runs[-1][0] == sign:
            runs[-1] += sign
        else:
            runs.append(sign)
    return runs
