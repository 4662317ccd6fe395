"""Recordings and their exports, and the files that neither may destroy."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from tests.support.command import Run, refused


def test_a_recording_becomes_perfetto_json(ask: Run, run: Run, tmp_path: Path) -> None:
    trace, out = tmp_path / "trace.jsonl", tmp_path / "trace.json"
    assert ask("--record", trace, "hello")[0] == 0
    header = json.loads(trace.read_text().splitlines()[0])
    assert header["versions"]["torch"] == torch.__version__ and header["config"]["block_size"] == 16
    assert run("trace", "export", trace, "--output", out) == (0, "", "")
    events = json.loads(out.read_text())["traceEvents"]
    assert any(event["name"] == "thread_name" and event["args"]["name"].startswith("r1") for event in events)
    assert json.loads(run("trace", "export", trace)[1])["traceEvents"] == events


def test_an_export_never_overwrites_its_own_trace(ask: Run, run: Run, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    ask("--record", trace, "hello")
    before = trace.read_bytes()
    assert "is the trace itself" in refused(run("trace", "export", trace, "--output", trace))
    assert trace.read_bytes() == before
    kept = tmp_path / "kept"
    kept.write_text("kept")
    assert "is not a trace" in refused(run("trace", "export", kept, "--output", tmp_path / "other"))
    assert not (tmp_path / "other").exists()
