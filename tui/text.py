"""Text of models and people made safe for a grid of cells: nothing in it can move, style or widen the screen."""

from __future__ import annotations

import unicodedata
from functools import lru_cache

from rich.cells import cell_len, set_cell_size

_BIDI = {*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C}


@lru_cache(maxsize=4096)
def _safe(char: str) -> str:
    code = ord(char)
    if code < 0x20 or 0x7F <= code < 0xA0 or code in _BIDI or unicodedata.category(char) in ("Cs", "Co", "Cn"):
        return "\ufffd"
    return char


def safe(text: str, newline: str = "\n") -> str:
    """`text` without control characters: a tab is a space, a line end is `newline`, others show as U+FFFD."""
    if text.isascii() and text.isprintable():
        return text
    text = text.replace("\r\n", "\n").replace("\t", " ")
    return "".join(newline if c == "\n" else _safe(c) for c in text)


def width(text: str) -> int:
    """Cells that `text` takes."""
    return len(text) if text.isascii() else cell_len(text)


def fit(text: str, cells: int) -> str:
    """`text` cut or padded to exactly that many cells."""
    return text.ljust(cells) if text.isascii() and len(text) <= cells else set_cell_size(text, max(0, cells))


def clip(text: str, cells: int, mark: str = "…") -> str:
    """`text` where it fits, else its beginning with a mark of omission."""
    if width(text) <= cells:
        return text
    return set_cell_size(text, max(0, cells - len(mark))).rstrip() + mark if cells >= len(mark) else ""


def clip_left(text: str, cells: int, mark: str = "…") -> str:
    """`text` where it fits, else its end with a mark of omission before it."""
    if width(text) <= cells:
        return text
    while text and width(text) > cells - len(mark):
        text = text[1:]
    return mark + text
