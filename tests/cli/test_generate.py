"""`mini-infer generate` answers: what it prints where, and what reaches the engine."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from mini_infer.cli import cli
from mini_infer.commands import generate as generate_command
from mini_infer.config import EngineConfig, option_name
from mini_infer.engine import InferenceEngine
from mini_infer.sampling.params import SamplingParams
from tests.support.command import Run, feed, refused

KEYS = ["text", "token_ids", "finish_reason", "usage", "timings", "speculation"]


def test_json_is_one_object_on_one_line(ask: Run) -> None:
    code, out, err = ask("--json", "hello")
    assert (code, err) == (0, "") and out.count("\n") == 1 and out.isascii()
    answer = json.loads(out)
    assert list(answer) == KEYS
    assert len(answer["token_ids"]) == answer["usage"]["completion_tokens"] == 8
    assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"] + 8
    assert (answer["finish_reason"], answer["speculation"]["proposer"]) == ("length", "none")
    assert 0 < answer["timings"]["ttft_s"] <= answer["timings"]["total_s"]


def test_the_streamed_text_is_the_text_of_the_object(ask: Run) -> None:
    answer = json.loads(ask("--json", "hello")[1])
    code, out, err = ask("hello")
    assert (code, out, err) == (0, answer["text"] + "\n", "mini-infer: the answer was cut at --max-tokens 8\n")


def test_the_prompt_is_one_user_message_and_raw_is_as_it_stands(ask: Run) -> None:
    def prompt_tokens(*args: str) -> int:
        return int(json.loads(ask("--json", *args)[1])["usage"]["prompt_tokens"])

    message = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert prompt_tokens("hello") == prompt_tokens("--raw", message) > prompt_tokens("--raw", "hello")


def test_a_dash_reads_standard_input(ask: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = json.loads(ask("--json", "hello")[1])["token_ids"]
    for data in (b"hello", b"hello\n", b"hello\r\n", b"\xef\xbb\xbfhello\n"):
        feed(monkeypatch, data)
        assert json.loads(ask("--json", "-")[1])["token_ids"] == expected
    feed(monkeypatch, b"hello\n")
    assert json.loads(ask("--json", "--raw", "-")[1]) != json.loads(ask("--json", "--raw", "hello")[1])


def test_a_prompt_that_starts_with_a_dash_goes_after_two(ask: Run) -> None:
    assert ask("--", "-5 + 3")[0] == 0
    assert "goes after --" in refused(ask("-5 + 3"))


def test_seeded_answers_repeat(ask: Run) -> None:
    first, second, other = (
        json.loads(ask("--json", "--temperature", 1, "--seed", seed, "hello")[1])["token_ids"] for seed in (1, 1, 2)
    )
    assert first == second != other


def test_every_parameter_arrives(run: Run, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(generate_command, "run", lambda *args, **options: seen.append((args, options)) or 0)
    engine = "--device cpu --dtype float64 --kv-memory 1.5GB --block-size 8 --no-prefix-cache --max-model-len 99"
    engine += " --max-running 3 --max-batch-tokens 30 --max-chunk 7 --threads 2 --revision v1"
    drawn = "--temperature 0.5 --top-p 0.9 --top-k 7 --min-p 0.1 --repetition-penalty 1.1 --presence-penalty -1"
    drawn += " --frequency-penalty 0.3 --seed -4 --max-tokens 5 --min-tokens 2 --stop a --stop b --stop-token-ids 3"
    drawn += " --ignore-eos --logit-bias 7=-100 --logit-bias 8=1.5"
    assert run("generate", "hi", "--model", "m", *engine.split(), *drawn.split(), "--record", "f")[0] == 0
    (prompt, options, params), rest = seen[0]
    assert prompt == "hi" and rest == {"raw": False, "as_json": False, "record": Path("f")}
    assert options == EngineConfig(
        model="m",
        revision="v1",
        device="cpu",
        dtype="float64",
        kv_memory=1_500_000_000,
        block_size=8,
        prefix_cache=False,
        max_model_len=99,
        max_running=3,
        max_batch_tokens=30,
        max_chunk=7,
        threads=2,
    )
    assert params == SamplingParams(
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        min_p=0.1,
        repetition_penalty=1.1,
        presence_penalty=-1,
        frequency_penalty=0.3,
        seed=-4,
        max_tokens=5,
        min_tokens=2,
        stop=["a", "b"],
        stop_token_ids=[3],
        ignore_eos=True,
        logit_bias={7: -100, 8: 1.5},
    )


def test_what_is_not_given_is_left_to_the_defaults(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(generate_command, "run", lambda *args, **options: seen.append(args) or 0)
    assert run("generate", "hi")[0] == 0
    assert seen == [("hi", EngineConfig(), SamplingParams())]


@pytest.mark.parametrize("command", ["generate", "info"])
def test_every_engine_knob_is_an_option(command: str) -> None:
    offered = {option for param in cli.commands[command].params for option in param.opts}
    knobs = [knob for knob in fields(EngineConfig) if knob.name != "entropy_seed"]
    assert {option_name(knob.name) for knob in knobs} <= offered
    assert "--entropy-seed" not in offered


# --- long prompts, cut answers ------------------------------------------------------------------------------------


def test_the_progress_says_how_much_of_a_long_prompt_is_read(ask: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    class Told:
        def __init__(self, text: Any, *_: object, **__: object) -> None:
            self.text = text

        def __enter__(self) -> Told:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def stop(self) -> None:
            pass

    waits: list[Told] = []

    def wait(text: Any, *args: object, **options: object) -> Told:
        waits.append(Told(text, *args, **options))
        return waits[-1]

    step = InferenceEngine.step

    def stepped(self: InferenceEngine) -> Any:
        told.append(waits[-1].text())
        report = step(self)
        told.append(waits[-1].text())
        return report

    monkeypatch.setattr(generate_command, "Waiting", wait)
    monkeypatch.setattr(InferenceEngine, "step", stepped)
    assert ask("--raw", "--json", "--max-batch-tokens", 10, "--max-chunk", 10, "--max-running", 1, "a" * 25)[0] == 0
    told = list(dict.fromkeys(told))
    assert told[:4] == [*(f"reading the prompt: {n} of 25 tokens" for n in (0, 10, 20)), "answering: 1 tokens"]
    assert told[-1] == "answering"  # the request has ended


def test_an_answer_that_is_cut_says_what_cut_it(ask: Run) -> None:
    assert ask("hello")[2] == "mini-infer: the answer was cut at --max-tokens 8\n"
    code, _, err = ask("--max-model-len", 30, "--max-tokens", 100, "--ignore-eos", "hello")
    assert code == 0 and "the answer was cut after" in err and "the context or the KV cache is full" in err
    assert ask("--json", "hello")[2] == ""  # the object says it


def test_a_context_beyond_the_checkpoints_is_said_once(ask: Run, run: Run, caplog: pytest.LogCaptureFixture) -> None:
    assert ask("--max-model-len", 4096, "hello")[0] == 0
    [warning] = [record.getMessage() for record in caplog.records]
    assert warning == "--max-model-len 4096 is above the context of the checkpoint, which stays: 128 tokens"
