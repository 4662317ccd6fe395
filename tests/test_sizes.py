"""The core stays small enough to be read: lines of code, without blank ones, comments and docstrings."""

from __future__ import annotations

import ast
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SKIPPED = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def files(*places: str) -> list[Path]:
    return [
        file
        for place in places
        for path in [ROOT / "mini_infer" / place]
        for file in (path.rglob("*.py") if path.is_dir() else [path])
    ]


def code_lines(path: Path) -> int:
    source = path.read_text(encoding="utf-8")
    documentation = {
        number
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    with path.open(encoding="utf-8") as file:
        tokens = [t for t in tokenize.generate_tokens(file.readline) if t.type not in SKIPPED]
    return len({n for t in tokens for n in range(t.start[0], t.end[0] + 1)} - documentation)


def test_lines_are_counted_as_said(tmp_path: Path) -> None:
    source = '"""Two\nlines."""\n\n# one\nx = (\n    1,  # two\n)\n\n\ndef f():\n    """One."""\n    return x\n'
    (tmp_path / "a.py").write_text(source)
    assert code_lines(tmp_path / "a.py") == 5


@pytest.mark.parametrize(
    ("places", "most"),
    [(("engine.py", "scheduler", "cache", "sampling", "models"), 2_599), (("cache", "scheduler", "observe"), 1_299)],
)
def test_the_core_can_be_read_in_an_afternoon(places: tuple[str, ...], most: int) -> None:
    counted = [file for file in files(*places) if file.name not in ("perfetto.py", "metrics.py")]
    assert len(counted) > 10
    assert sum(map(code_lines, counted)) <= most


def test_no_module_is_longer_than_400_lines() -> None:
    modules = [*files("."), *(ROOT / "tui").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
    assert len(modules) > 200
    assert {m.name: n for m in modules if (n := len(m.read_text(encoding="utf-8").splitlines())) > 400} == {}
