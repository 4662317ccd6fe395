"""Control tokens in user text: broken before a chat template sees it, so that only the template can write one.

A *mark*, a private-use character that nothing in the request uses, is put into the user's strings, and taken out again
after the rendered text has been split at the control tokens it holds. There are two strengths:

- *light*: a mark inside each control token that a user string spells out. Honest text has none and stays as it is, so
  every template reads it as its author meant.
- *hard*: also at every character that could begin or end a control token, so that no template can complete one from
  parts of user strings, whatever it joins, cuts or removes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

from mini_infer.errors import UserError

_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function", "ipython"})
_PRIVATE_USE = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))


def strings_in(value: Any) -> Iterator[str]:
    """Every string of a JSON value, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from strings_in(key)
            yield from strings_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from strings_in(item)


def unused_character(strings: Iterable[str]) -> str:
    """A private-use character that none of the strings holds."""
    text = "".join(strings)
    if "\ue000" not in text:
        return "\ue000"
    used = set(text)
    for code in chain(*_PRIVATE_USE):
        if chr(code) not in used:
            return chr(code)
    raise UserError("the messages use every private-use character of Unicode; one must be left to the tokenizer")


class ControlTokens:
    """The control tokens of a tokenizer, `contents`, and how user text is kept apart from them."""

    def __init__(self, contents: Iterable[str]) -> None:
        self.contents = frozenset(contents)
        self._whole = one_of(self.contents)
        self._edges = {text[n] for text in self.contents for n in (0, -1) if len(text) > 1}
        singles = {text for text in self.contents if len(text) == 1}
        edges = "".join(map(re.escape, sorted(self._edges | singles)))
        self._edge = re.compile(f"[{edges}]" if edges else "(?!)")
        self._longest = max(map(len, self.contents), default=0)

    def light(self, value: Any, mark: str) -> Any:
        """The JSON value with every control token in its strings broken by `mark`."""
        return _map_strings(value, lambda text, key: self._break_whole(text, mark))

    def hard(self, value: Any, mark: str) -> Any:
        """The JSON value with marks wherever a control token could be made from its strings."""
        return _map_strings(value, lambda text, key: self._break_parts(text, mark, key))

    def find(self, text: str, mark: str) -> list[str]:
        """The control tokens in a rendered text, in order."""
        return [found[0] for found in one_of(self.contents, mark).finditer(text)]

    def _break_whole(self, text: str, mark: str) -> str:
        return self._whole.sub(lambda found: found[0][0] + mark + found[0][1:], text)

    def _break_parts(self, text: str, mark: str, key: str | None) -> str:
        broken = self._edge.sub(lambda found: mark * (found[0] in self._edges) + found[0] + mark, text)
        inner = text.strip()
        expected = key is None or (key in ("role", "type") and inner in _ROLES)
        if broken != text or expected or not 0 < len(inner) < self._longest:
            return broken
        if any(inner in token for token in self.contents):
            # A template that writes '<|' + name + '|>' must not make a control token of the name `im_end`; that of a
            # role is what such a template is for.
            return text.replace(inner, inner[0] + mark + inner[1:], 1)
        return text


def one_of(contents: Iterable[str], mark: str = "") -> re.Pattern[str]:
    """A pattern for any of the tokens, longest first as the library matches. A token of one character has no inside to
    break: for it `mark` comes after."""
    longest_first = sorted(contents, key=len, reverse=True)
    unbroken = f"(?!{re.escape(mark)})" if mark else ""
    return re.compile("|".join(re.escape(text) + unbroken * (len(text) == 1) for text in longest_first) or "(?!)")


def _map_strings(value: Any, change: Callable[[str, str | None], str], key: str | None = "") -> Any:
    """The value with every string changed by `change(string, the key it stands under)`: "" where there is none, None
    for a string that is a key itself."""
    if isinstance(value, str):
        return change(value, key)
    if isinstance(value, dict):
        return {change(name, None): _map_strings(item, change, name) for name, item in value.items()}
    if isinstance(value, list):
        return [_map_strings(item, change, key) for item in value]
    return value
