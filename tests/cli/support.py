"""What the tests of the command line share."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest

Run = Callable[..., tuple[int, str, str]]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def feed(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))


def refused(result: tuple[int, str, str]) -> str:
    """The one line of an error a user can mend."""
    code, out, err = result
    assert code == 2 and out == ""
    assert err.startswith("mini-infer: ") and err.endswith("\n") and err.count("\n") == 1, err
    return err
