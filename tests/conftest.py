"""Fixtures shared by all tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import real


@pytest.fixture(scope="session")
def qwen_folder() -> Path:
    return real.real_checkpoint(real.QWEN)


@pytest.fixture(scope="session")
def smollm_folder() -> Path:
    return real.real_checkpoint(real.SMOLLM)
