"""Puts a one-line fault into the code under test."""

from __future__ import annotations
import __future__

import inspect
import textwrap
from typing import Any

import pytest


def break_line(patch: pytest.MonkeyPatch, owner: Any, name: str, old: str, new: str) -> None:
    """Replace the one place where `old` stands in a function, method or property of `owner` by `new`."""
    found = inspect.getattr_static(owner, name)
    function = found.fget if isinstance(found, property) else found
    source = textwrap.dedent(inspect.getsource(function)).removeprefix("@property\n")
    assert source.count(old) == 1, f"{old!r} is {source.count(old)} times in {name}"
    names: dict[str, Any] = {}
    flags = __future__.annotations.compiler_flag
    exec(compile(source.replace(old, new), f"<{name}, broken>", "exec", flags), function.__globals__, names)
    patch.setattr(owner, name, property(names[name]) if isinstance(found, property) else names[name])
