"""The comparison with other servers: two of our own stand in for them."""

from __future__ import annotations

import json
import sys

import pytest
from click.testing import CliRunner

from mini_infer.bench.peers import OURS, Round, main, prompts, running, summary
from mini_infer.errors import UserError
from tests.support.checkpoints import write_checkpoint


def test_prompts_are_the_same_for_a_seed_and_all_different():
    asks = prompts(5, "a", 7)
    assert asks == prompts(5, "a", 7) != prompts(5, "b", 7)
    assert len({ask.prompt for ask in asks}) == 5
    assert all(ask.max_tokens == 7 and ask.ignore_eos for ask in asks)


def test_ratios_are_those_of_pairs():
    speeds = [(OURS, 10.0), ("x", 5.0), ("x", 10.0), (OURS, 10.0), (OURS, 30.0), ("x", 10.0)]
    text = summary([Round(name, 4, speed, 0.5) for name, speed in speeds])
    assert "| x | 4 | 10.0 | 10.0 | 2.00 (1.00 … 3.00) | 0.50 / 0.50 |" in text


def test_a_server_that_ends_is_said(tmp_path):
    command = f'{sys.executable} -c "raise SystemExit(3)"'
    with (
        pytest.raises(UserError, match="bad ended before it served; its words are in"),
        running({"bad": command}, tmp_path),
    ):
        pass


def test_two_servers_in_turn(tmp_path):
    folder = write_checkpoint(tmp_path / "model", "qwen2")
    other = f"{sys.executable} -m mini_infer serve --model {{model}} --port {{port}} --dtype {{dtype}} --threads 1"
    args = ["--model", str(folder), "--dtype", "float32", "--command", f"other={other}", "--streams", "2"]
    args += ["--pairs", "2", "--output-tokens", "3", "--logs", str(tmp_path / "logs"), "--json", str(tmp_path / "out")]
    done = CliRunner().invoke(main, args, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "| other | 2 |" in done.output
    rounds = json.loads((tmp_path / "out").read_text())
    assert [r["server"] for r in rounds] == [OURS, "other", "other", OURS]


def test_what_is_missing_is_said():
    assert "at least one of" in CliRunner().invoke(main, ["--model", "x"]).output
    assert "--gguf" in CliRunner().invoke(main, ["--model", "x", "--llama-server", "y"]).output
