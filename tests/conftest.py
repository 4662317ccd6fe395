"""Fixtures shared by all tests."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support import real

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job: tests of Ctrl+C must hear it
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def qwen_folder() -> Path:
    return real.real_checkpoint(real.QWEN)


@pytest.fixture(scope="session")
def smollm_folder() -> Path:
    return real.real_checkpoint(real.SMOLLM)
