"""What the README shows works as it stands, with a tiny checkpoint in place of the repository it names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mini_infer.cli import cli
from tests.support.checkpoints import write_checkpoint

README = Path(__file__).parents[1].joinpath("README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("readme"), vocab=10000, max_position_embeddings=64)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_the_examples_run(number: int, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, replaced = re.subn(r'"Qwen/[^"]+"', repr(str(folder)), EXAMPLES[number])
    assert replaced == 1
    exec(compile(source, f"README example {number}", "exec"), {})
    assert capsys.readouterr().out.strip()


def test_there_are_examples() -> None:
    assert len(EXAMPLES) == 2


def test_the_commands_named_exist() -> None:
    named = set(re.findall(r"mini-infer ([a-z]+)", README))
    assert {"generate", "info", "trace"} <= named <= set(cli.commands)
