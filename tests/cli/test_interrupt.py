"""Ctrl+C at any time: a quiet end with exit code 130, and what was answered by then is kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mini_infer.commands import generate as generate_command
from mini_infer.engine import InferenceEngine
from tests.cli.support import Run


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl+C during the fifth step."""
    step, count = InferenceEngine.step, 0

    def counted(self: InferenceEngine) -> Any:
        nonlocal count
        count += 1
        if count == 5:
            raise KeyboardInterrupt
        return step(self)

    monkeypatch.setattr(InferenceEngine, "step", counted)


def test_ctrl_c_keeps_the_partial_text(ask: Run, request: pytest.FixtureRequest) -> None:
    whole = ask("hello")[1].rstrip("\n")
    request.getfixturevalue("interrupted")
    code, out, err = ask("hello")
    assert (code, err) == (130, "") and out.endswith("\n")
    kept = out.rstrip("\n").rstrip("\N{REPLACEMENT CHARACTER}")
    assert kept and whole.startswith(kept) and len(kept) < len(whole)


@pytest.mark.usefixtures("interrupted")
def test_ctrl_c_completes_the_object_and_the_recording(ask: Run, run: Run, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    code, out, err = ask("--json", "--record", trace, "hello")
    answer = json.loads(out)
    assert (code, err, answer["finish_reason"], len(answer["token_ids"])) == (130, "", "abort", 4)
    assert answer["usage"]["prompt_tokens"] > 0 and answer["usage"]["completion_tokens"] == 4
    assert "abort" in trace.read_text().splitlines()[-1]
    assert run("trace", "export", trace)[0] == 0


def test_ctrl_c_before_the_model_is_there(ask: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(generate_command, "build_engine", interrupt)
    assert ask("hi") == (130, "", "")
