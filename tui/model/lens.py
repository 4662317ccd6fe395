"""The token lens: how each token of an answer is coloured, and the sign under it that says the same without colour."""

from __future__ import annotations

from tui.glyphs import Glyphs
from tui.model.records import Origin

LENSES = ("off", "source", "probability", "step")

WORDS = {
    "off": "off",
    "source": "source",
    "probability": "probability the target gave an accepted draft (greedy: how far it was from the best)",
    "step": "step that made it",
}


def look(lens: str, origin: Origin, glyphs: Glyphs) -> tuple[str, str]:
    """(style, sign) of a token."""
    if lens == "source":
        return _by_source(origin, glyphs)
    if lens == "probability":
        return _by_probability(origin, glyphs)
    if lens == "step":
        return ("bold" if origin.step % 2 else "muted"), str(origin.step % 10)
    return "", " "


def _by_source(origin: Origin, g: Glyphs) -> tuple[str, str]:
    return {
        "draft": ("draft", g.accepted),
        "own": ("own", g.own),
        "bonus": ("bonus bold", g.bonus),
        "plain": ("", g.plain),
        "unknown": ("muted", "?"),
    }[origin.source]


def _by_probability(origin: Origin, g: Glyphs) -> tuple[str, str]:
    """Tenths of the probability; 9 in greedy rounds. A dot where none is known."""
    if origin.source != "draft":
        return "muted", g.dot
    p = origin.p if origin.p is not None else 1.0 if origin.gap is not None else None
    if p is None:
        return "muted", g.dot
    style = "good" if p >= 0.8 else "" if p >= 0.5 else "own" if p >= 0.2 else "bad"
    return style, str(min(9, int(10 * p)))


def legend(lens: str, glyphs: Glyphs) -> list[list[tuple[str, str]]]:
    """Lines of (text, style) that explain the signs."""
    g = glyphs
    if lens == "source":
        return [
            [(f"{g.accepted} draft accepted    ", "draft"), (f"{g.own} target's own token    ", "own"),
             (f"{g.bonus} bonus", "bonus bold")],
            [(f"{g.plain} plain decode", "")],
        ]  # fmt: skip
    if lens == "probability":
        return [[("0-9 tenths: the target's probability of an accepted draft", "muted")],
                [(f"{g.dot} no draft", "muted")]]  # fmt: skip
    if lens == "step":
        return [[("last digit of the step that made the token", "muted")]]
    return [[("off: finished answers show as Markdown", "muted")]]
