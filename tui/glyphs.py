"""Every sign the screen draws, in two sets. Each is one cell wide, and in DejaVu Sans Mono."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Glyphs:
    """What is drawn; text beside it never depends on the set."""

    name: str
    fill: str  # eighths of a block, from 1 to 8
    bar: str
    bar_half: str  # cached, the second part of a bar
    bar_empty: str
    spark: str  # eight heights
    cached: str  # an idle block whose prefix can still be hit
    free: str
    shared: str  # before the number of holders
    freed: str
    prefill: str  # marks of the timeline; drafts that were kept show as a digit
    decode: str
    preempted: str
    finished: str
    aborted: str
    waiting: str
    absent: str
    kept: str  # verdicts
    rejected: str
    unjudged: str
    own: str  # the target's own token
    bonus: str
    accepted: str  # marks of the lens
    plain: str
    from_cache: str
    selected: str
    live: str
    history: str
    paused: str
    cursor: str
    newline: str
    arrow: str
    ellipsis: str
    dot: str
    separator: str
    horizontal: str
    vertical: str
    top_left: str
    top_right: str
    bottom_left: str
    bottom_right: str
    tree_branch: str
    tree_last: str
    tree_line: str
    now: str  # the edge of the timeline
    enter: str
    arrows: str


UNICODE = Glyphs(
    name="unicode", fill="▁▂▃▄▅▆▇█", bar="█", bar_half="▒", bar_empty="·", spark="▁▂▃▄▅▆▇█", cached="○", free="·",
    shared="*", freed="x", prefill="P", decode="━", preempted="!", finished="✓", aborted="x", waiting="·", absent="-",
    kept="✓", rejected="✗", unjudged="-", own="x", bonus="*", accepted="+", plain="-", from_cache="=", selected="▸",
    live="▶", history="◀", paused="■", cursor="▌", newline="↵", arrow="→", ellipsis="…", dot="·", separator="│",
    horizontal="─", vertical="│", top_left="┌", top_right="┐", bottom_left="└", bottom_right="┘", tree_branch="├─ ",
    tree_last="└─ ", tree_line="│  ", now="┃", enter="⏎", arrows="←↑↓→",
)  # fmt: skip

ASCII = Glyphs(
    name="ascii", fill="12345678", bar="#", bar_half="=", bar_empty=".", spark="12345678", cached="o", free=".",
    shared="*", freed="x", prefill="P", decode="=", preempted="!", finished="v", aborted="x", waiting=".", absent="-",
    kept="v", rejected="X", unjudged="-", own="x", bonus="*", accepted="+", plain="-", from_cache="=", selected=">",
    live=">", history="<", paused="#", cursor="_", newline="\\", arrow=">", ellipsis="~", dot=".", separator="|",
    horizontal="-", vertical="|", top_left="+", top_right="+", bottom_left="+", bottom_right="+", tree_branch="|- ",
    tree_last="`- ", tree_line="|  ", now="|", enter="Ent", arrows="arrows",
)  # fmt: skip


def spark(glyphs: Glyphs, values: list[float], cells: int) -> str:
    """The last values as heights from 0 to the largest, one cell each."""
    shown = values[-cells:] if cells > 0 else []
    top = max(shown, default=0.0)
    return "".join(glyphs.spark[min(7, int(8 * v / top)) if top > 0 else 0] for v in shown)


def share_bar(glyphs: Glyphs, parts: tuple[tuple[float, str], ...], cells: int) -> str:
    """Shares of 1 drawn one after the other, each with its glyph; any share above zero takes a cell where it can."""
    drawn = ""
    for share, glyph in parts:
        if share > 0:
            drawn += glyph * max(1, round(share * cells))
    return (drawn + glyphs.bar_empty * cells)[:cells]
