"""A command as a user runs it, and a tiny checkpoint for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.checkpoints import write_checkpoint
from tests.support.command import Run, runner


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("tiny"), max_position_embeddings=128)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return runner(capsys)


@pytest.fixture
def ask(run: Run, tiny: Path) -> Run:
    """`run` for a greedy answer of the tiny model; the prompt comes last."""

    def call(*args: object) -> tuple[int, str, str]:
        return run("generate", "--model", tiny, "--temperature", 0, "--max-tokens", 8, "--device", "cpu", *args)

    return call
