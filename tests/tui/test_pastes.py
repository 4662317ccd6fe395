"""A paste is a paste, whatever is in it and however it arrives; nothing of it is taken for a key."""

from __future__ import annotations

import random

import pytest
from textual import events
from textual._xterm_parser import XTermParser
from textual.drivers import linux_driver

from tui.pastes import END, START, Parser, PasteFilter, cleaned

TEXTS = {
    "a\x1b[31mRED\x1b[0m b\rline2\rline3 WWW": "aRED b\rline2\rline3 WWW",
    "\x1b\x1b\x1b[": "[",
    "x\x1b": "x",
    "\x1b[200~nested": "nested",
    "bell \x07, tab\t, null \x00": "bell , tab\t, null ",
    "": "",
    "日本 🙂": "日本 🙂",
    "\x1b[201": "[201",  # almost the end
}


def pieces(text: str, rng: random.Random) -> list[str]:
    cuts = sorted(rng.sample(range(1, len(text)), min(len(text) - 1, rng.randrange(6)))) if len(text) > 1 else []
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@pytest.mark.parametrize("text", TEXTS)
def test_what_is_pasted_comes_clean_in_whatever_pieces(text: str) -> None:
    for seed in range(300):
        parts, paste = pieces(f"k{START}{text}{END}\x1b[A", random.Random(seed)), PasteFilter()
        assert "".join(map(paste.feed, parts)) == f"k{START}{TEXTS[text]}{END}\x1b[A", parts


@pytest.mark.parametrize("text", TEXTS)
def test_the_parser_sees_one_paste_and_no_key(text: str) -> None:
    for seed in range(200):
        parser, seen = Parser(), []
        for part in pieces(f"{START}{text}{END}", random.Random(seed)):
            seen += parser.feed(part)
        assert [type(event) for event in seen] == [events.Paste]
        assert not set(seen[0].text) & set("\x1b\x07\x00")
        assert [event.key for event in parser.feed("\r")] == ["enter"]


def test_keys_are_not_held_up() -> None:
    paste = PasteFilter()
    for key in ("\x1b", "\x1b[", "\x1b[A", "\x1b[2", "0", "\x1b[20", "a"):
        assert paste.feed(key) == key


def test_textual_alone_takes_such_a_paste_apart() -> None:
    """The reason for all of this; where this fails, a new Textual has mended it, and the filter can go."""
    text = "a\x1b[31mRED\x1b[0m b\rline2\rline3 WWW"
    seen = list(XTermParser().feed(f"{START}{text}{END}"))
    assert [type(event) for event in seen] != [events.Paste] or seen[0].text != text.replace("\x1b", "")


def test_drivers_use_it_while_the_playground_runs() -> None:
    with cleaned():
        assert linux_driver.XTermParser is Parser
    assert linux_driver.XTermParser is XTermParser
