"""One server on the tiny checkpoint for all tests that leave it as they found it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from mini_infer.build import build_engine
from mini_infer.config import EngineConfig
from mini_infer.llm import LLM
from tests.api.support import Server, server
from tests.support.checkpoints import write_checkpoint


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("api") / "Tiny-Instruct", dtype=torch.float64)


@pytest.fixture(scope="session")
def _tiny(folder: Path) -> Iterator[Server]:
    options = EngineConfig(model=str(folder), kv_blocks=1024, threads=1)
    with server(lambda: build_engine(options), model=str(folder)) as running:
        yield running


@pytest.fixture
def tiny(_tiny: Server) -> Iterator[Server]:
    """The shared server; a test must leave it idle."""
    yield _tiny
    _tiny.wait_idle()


@pytest.fixture(scope="session")
def llm(folder: Path) -> LLM:
    """The same model without a server: what answers must be."""
    return LLM(str(folder), EngineConfig(kv_blocks=1024, threads=1, prefix_cache=False))
