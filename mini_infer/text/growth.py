"""How long a text, a list or a number would be that a template asks for, told before it is built."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

MAX_LENGTH = 20_000_000
"""Characters of one value that a template builds: several times what the longest contexts hold."""
MAX_BITS = 100_000
"""Size of a number that a template computes."""

_DIGITS = re.compile(r"\d+")
_ITEM = 8  # what an entry of a list counts, in characters


def check(length: int) -> int:
    """The length itself. Raises OverflowError where a value so long is refused."""
    if length > MAX_LENGTH:
        raise OverflowError(f"a value longer than {MAX_LENGTH:,}")
    return length


def weight(*values: Any) -> int:
    """About the characters of the values' printed forms; counting ends beyond `MAX_LENGTH`."""
    total, rest = 0, list(values)
    while rest and total <= MAX_LENGTH:
        value = rest.pop()
        if isinstance(value, str | bytes):
            total += len(value)
        elif isinstance(value, Mapping):
            total += _ITEM * len(value)
            rest += [part for item in value.items() for part in item]
        elif isinstance(value, list | tuple):
            total += _ITEM * len(value)
            rest += value if total <= MAX_LENGTH else ()
        else:
            total += _ITEM
    return total


def product(operator: str, left: Any, right: Any) -> int:
    """The length of what `+`, `*`, `**` or `%` makes of two values. Raises OverflowError for a large number."""
    if operator == "%" and isinstance(left, str | bytes):
        return formatted(left, right)
    sizes = [len(v) * (1 if isinstance(v, str | bytes) else _ITEM) if isinstance(v, str | bytes | list | tuple) else v
             for v in (left, right)]  # fmt: skip
    if sizes == [left, right]:
        if operator == "**" and all(isinstance(v, int | float) for v in sizes) and max(map(abs, sizes)) > 1000:
            raise OverflowError("a power of a large number")
        return 0
    if all(isinstance(size, int) for size in sizes):
        return max(0, sizes[0] * sizes[1] if operator == "*" else sizes[0] + sizes[1])
    return 0  # no such operation: Python says so


def formatted(form: str | bytes, *values: Any) -> int:
    """The length of a format filled with values: widths and precisions, in it or among them, make it longer."""
    text = form.decode("latin-1") if isinstance(form, bytes) else form
    if any(len(run) > 9 for run in _DIGITS.findall(text)):
        return MAX_LENGTH + 1
    written = sum(map(int, _DIGITS.findall(text)))
    if "*" in text or re.search(r":[^}]*\{", text):
        written += sum(abs(number) for number in _integers(values))
    return len(text) + written + (text.count("{") + text.count("%")) * weight(*values)


def called(text: str | bytes, method: str, *args: Any) -> int:
    """The length of what a method of a text makes. For `join` the items must be a list."""
    match method, args:
        case "replace", (str() | bytes() as old, str() | bytes() as new, *_) if type(old) is type(new) is type(text):
            return len(text) + text.count(old) * len(new)  # type: ignore[arg-type]
        case "join", (list() | tuple() as items,):
            return len(items) * len(text) + weight(items)
        case "translate", (Mapping() as table,):
            return len(text) * max([1, *(len(value) for value in table.values() if isinstance(value, str))])
        case "expandtabs", _:
            tab: Any = "\t" if isinstance(text, str) else b"\t"
            return len(text) + text.count(tab) * max([8, *_integers(args)])
        case (("format" | "format_map"), _):
            return formatted(text, *args)
    return max([len(text), *_integers(args)])  # center, zfill and their kind


def measured(value: Any) -> Any:
    """The value, unless it has become too long or too large."""
    if isinstance(value, str | bytes | list | tuple):
        check(len(value) * (_ITEM if isinstance(value, list | tuple) else 1))
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise OverflowError(f"a number of more than {MAX_BITS:,} bits")
    return value


def _integers(values: Iterable[Any]) -> list[int]:
    flat = [part for value in values for part in (value if isinstance(value, list | tuple) else [value])]
    return [part for part in flat if isinstance(part, int) and not isinstance(part, bool)]
