"""A command as a user runs it, and what it said."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest

from mini_infer.cli import main

Run = Callable[..., tuple[int, str, str]]


def runner(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command and returns (exit code, standard output, standard error)."""

    def run(*args: object) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main([str(arg) for arg in args])
        captured = capsys.readouterr()
        return int(end.value.code or 0), captured.out, captured.err

    return run


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
