"""The command line as a user meets it: what it prints where, and with which exit code it ends."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch

from mini_infer.cli import cli, main
from mini_infer.commands import generate as generate_command
from mini_infer.commands import terminal
from mini_infer.config import EngineConfig, option_name
from mini_infer.engine import InferenceEngine
from mini_infer.errors import UserError
from mini_infer.sampling.params import SamplingParams
from mini_infer.version import __version__
from tests.support.checkpoints import write_checkpoint

Run = Callable[..., tuple[int, str, str]]
SPECULATION = "proposer rounds drafted accepted acceptance by_position tokens_per_step time_saved_s off_reason"
KEYS = ["text", "token_ids", "finish_reason", "usage", "timings", "speculation"]


@pytest.fixture(scope="module")
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


def feed(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))


def refused(result: tuple[int, str, str]) -> str:
    """The one line of an error a user can mend."""
    code, out, err = result
    assert code == 2 and out == ""
    assert err.startswith("mini-infer: ") and err.endswith("\n") and err.count("\n") == 1, err
    return err


# --- answers ------------------------------------------------------------------------------------------------------


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


# --- refusals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["generate"], "Missing argument 'PROMPT' (see mini-infer generate --help)"),
        (["generate", "two", "words"], "unexpected extra argument (words)"),
        (["generate", "hi", "--max-tokens", "0"], "--max-tokens"),
        (["generate", "hi", "--temperature", "-1"], "temperature must be a number from 0 to 2"),
        (["generate", "hi", "--temperature", "nan"], "temperature must be a number from 0 to 2"),
        (["generate", "hi", "--top-k", "1.5"], "--top-k"),
        (["generate", "hi", "--stop", ""], "stop must be texts of at least one character"),
        (["generate", "hi", "--logit-bias", "5:1"], "'5:1' is not ID=BIAS"),
        (["generate", "hi", "--dtype", "fp8"], "'fp8' is not one of"),
        (["generate", "hi", "--kv-blocks", "1"], "--kv-blocks is 1: it must be at least 2"),
        (["generate", "hi", "--kv-memory", "lots"], "not a size: 'lots'"),
        (["generate", "hi", "--model", "no/such/folder"], "no/such/folder: no such folder"),
        (["generate", "hi", "--model", ""], "--model is ''"),
        (["generate", "hi", "--quantize", "int8"], "such option"),  # a word is offered once it works
        (["info", "--kv-blocks", "64", "--kv-memory", "1GB"], "give only one of them"),
        (["info", "--model", "./nothing"], "no such folder"),
        (["trace", "export", "nothing.jsonl"], "nothing.jsonl cannot be read"),
        (["trace", "nonsense"], "No such command 'nonsense' (see mini-infer trace --help)"),
        (["serve", "--port", "99999"], "--port is 99999"),
    ],
)
def test_what_a_user_can_mend_is_one_line(run: Run, args: list[str], said: str) -> None:
    assert said in refused(run(*args))


@pytest.mark.parametrize("prompt", ["", " ", "\n\t"])
def test_an_empty_prompt_is_refused(ask: Run, monkeypatch: pytest.MonkeyPatch, prompt: str) -> None:
    assert "the prompt is empty" in refused(ask(prompt))
    feed(monkeypatch, prompt.encode())
    assert "the prompt is empty" in refused(ask("-"))


def test_what_is_not_utf_8_is_refused(ask: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    feed(monkeypatch, b"caf\xe9 au lait")
    assert "standard input is not UTF-8 (byte 0xe9 at offset 3)" in refused(ask("-"))
    assert "the prompt is not UTF-8" in refused(ask("caf\udce9"))


def test_endless_or_closed_input_is_refused(ask: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate_command, "LONGEST_INPUT", 4)
    feed(monkeypatch, b"hello")
    assert "standard input is longer than 4 bytes" in refused(ask("-"))
    monkeypatch.setattr("sys.stdin", None)
    assert "standard input is closed" in refused(ask("-"))


def test_a_prompt_longer_than_the_context_is_refused(ask: Run) -> None:
    assert "but the context length is 128 tokens" in refused(ask("word " * 200))
    assert "but the context length is 32 tokens" in refused(ask("word " * 20, "--max-model-len", 32))
    assert "but the room in the KV cache is 32 tokens" in refused(ask("word " * 20, "--kv-blocks", 2))


def test_a_cache_beyond_the_memory_is_refused(ask: Run) -> None:
    assert "--kv-blocks 1000000000 needs" in refused(ask("hi", "--kv-blocks", 10**9))


def test_a_folder_without_weights_is_refused(run: Run, tiny: Path, tmp_path: Path) -> None:
    for file in tiny.iterdir():
        if file.suffix != ".safetensors":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    for command in (["generate", "hi"], ["info"]):
        assert "no weights here" in refused(run(*command, "--model", tmp_path))


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ raise_exception('only parrots may speak') }}", "only parrots may speak"),
        ("{% for %}", "template"),
        (None, "template"),
    ],
)
def test_a_template_that_fails_is_refused(run: Run, tmp_path: Path, template: str | None, said: str) -> None:
    folder = write_checkpoint(tmp_path / "model")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": template}))
    assert said in refused(run("generate", "hi", "--model", folder))


def test_a_recording_that_cannot_be_written_is_refused(ask: Run, tmp_path: Path) -> None:
    assert "cannot be written" in refused(ask("--record", tmp_path / "no" / "such.jsonl", "hi"))
    assert "cannot be written" in refused(ask("--record", tmp_path, "hi"))


def test_debug_shows_the_trace_and_the_line(run: Run) -> None:
    for args in (
        ["generate", "hi", "--model", "nowhere", "--debug"],
        ["--debug", "generate", "hi", "--model", "nowhere"],
    ):
        code, out, err = run(*args)
        assert (code, out) == (2, "")
        assert err.startswith("Traceback") and "\nmini-infer: " in err and "no such folder" in err


# --- what goes wrong on our side ----------------------------------------------------------------------------------


def test_an_unexpected_error_is_one_line_too(ask: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("two\nlines")

    monkeypatch.setattr(generate_command, "build_engine", broken)
    assert ask("hi") == (1, "", "mini-infer: RuntimeError: two lines (run with --debug for the trace)\n")
    code, _, err = ask("--debug", "hi")
    assert code == 1 and err.startswith("Traceback")


def test_an_answer_that_fails_is_said_and_exits_1(run: Run, tmp_path: Path) -> None:
    def poison(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return tensors | {"model.norm.weight": torch.full_like(tensors["model.norm.weight"], torch.nan)}

    folder = write_checkpoint(tmp_path, edit=poison)
    code, out, err = run("generate", "hi", "--model", folder, "--json", "--temperature", 0)
    assert code == 1 and json.loads(out)["finish_reason"] == "error"
    assert err.startswith("mini-infer: ") and err.count("\n") == 1


# --- Ctrl+C, pipes, terminals -------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("args", [["--help"], ["info"], ["generate", "hi", "--max-tokens", "400", "--ignore-eos"]])
def test_a_closed_pipe_ends_quietly(tmp_path: Path, args: list[str]) -> None:
    if args[0] == "generate":
        args = [*args, "--model", str(write_checkpoint(tmp_path))]
    read, written = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "mini_infer", *args]
    done = subprocess.run(command, stdout=written, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(written)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_full_disk_is_one_line() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "mini_infer", "--help"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "No space left" in done.stderr


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_control_characters_are_harmless_on_a_terminal_and_kept_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "a\x1b[2Jb\tc\nd\x9be\rf 日本"
    for screen, shown in ((Terminal(), "a\ufffd[2Jb\tc\nd\ufffde\ufffdf 日本"), (io.StringIO(), text)):
        monkeypatch.setattr("sys.stdout", screen)
        terminal.write(text)
        assert screen.getvalue() == shown


def test_waiting_is_told_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for screen in (Terminal(), io.StringIO()):
        monkeypatch.setattr("sys.stderr", screen)
        with terminal.Waiting("loading torch", after_s=0.0) as waiting:
            waiting._thread.join(0.2)
        shown = screen.getvalue()
        assert ("loading torch" in shown and shown.endswith("\r\x1b[K")) if screen.isatty() else shown == ""


def test_a_short_wait_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", screen := Terminal())
    with terminal.Waiting("loading torch", after_s=60.0):
        pass
    assert screen.getvalue() == ""


# --- info, trace, help --------------------------------------------------------------------------------------------


def test_info_of_the_embedded_model_is_diagnostics_too(run: Run) -> None:
    code, out, err = run("info", "--device", "cpu")
    assert (code, err) == (0, "")
    for part in (f"mini-infer  {__version__}", f"torch       {torch.__version__}", "CUDA", "threads", "plan of demo"):
        assert part in out
    machine = json.loads(run("info", "--device", "cpu", "--json")[1])
    assert machine["plan"]["draft"] == "demo" and machine["torch"] == torch.__version__
    assert machine["cuda_available"] is torch.cuda.is_available() and machine["total_memory"] > 2**28


def test_info_plans_the_memory_of_a_model(run: Run, tiny: Path) -> None:
    args = ("info", "--device", "cpu", "--model", tiny, "--dtype", "float64", "--kv-blocks", 10)
    plan = json.loads(run(*args, "--json")[1])["plan"]
    assert plan["kv_bytes_per_block"] == 2 * 2 * 16 * 2 * 16 * 8  # layers, K and V, rows, heads, head_dim, bytes
    assert (plan["kv_blocks"], plan["kv_tokens"]) == (10, 160)
    assert plan["kv_memory"] == 10 * plan["kv_bytes_per_block"]
    stored = (tiny / "model.safetensors").stat().st_size
    assert 1.9 * stored < plan["weights"] < 2 * stored  # stored in float32, held in float64
    assert (plan["max_model_len"], plan["dtype"], plan["architecture"]) == (128, "float64", "qwen2")
    out = run(*args)[1]
    assert f"Memory plan of {tiny}" in out and "10 blocks of 16: 160 tokens" in out


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


def test_version_and_help(run: Run) -> None:
    assert run("--version") == (0, f"mini-infer {__version__}\n", "")
    code, out, _ = run()
    assert code == 0 and all(name in out for name in ("generate", "info", "trace"))
    assert run("--help")[1] == run("-h")[1] == out
    assert "export" in run("trace")[1]


def test_python_m_is_the_same_command() -> None:
    command = [sys.executable, "-m", "mini_infer", "--version"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == f"mini-infer {__version__}\n"


def test_errors_of_click_and_ours_are_told_apart_by_nobody(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise UserError("line one\n  line two")

    monkeypatch.setattr(generate_command, "run", refuse)
    assert refused(run("generate", "hi")) == "mini-infer: line one line two\n"
