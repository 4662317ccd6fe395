"""A command as a user runs it, and a tiny checkpoint for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mini_infer.cli import main
from tests.cli.support import Run
from tests.support.checkpoints import write_checkpoint


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("tiny"), max_position_embeddings=128)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command and returns (exit code, standard output, standard error)."""

    def call(*args: object) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main([str(arg) for arg in args])
        captured = capsys.readouterr()
        return int(end.value.code or 0), captured.out, captured.err

    return call


@pytest.fixture
def ask(run: Run, tiny: Path) -> Run:
    """`run` for a greedy answer of the tiny model; the prompt comes last."""

    def call(*args: object) -> tuple[int, str, str]:
        return run("generate", "--model", tiny, "--temperature", 0, "--max-tokens", 8, "--device", "cpu", *args)

    return call
