"""What a user can mend is one line and exit code 2; what is our fault is one line and exit code 1."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from mini_infer.commands import generate as generate_command
from tests.support.checkpoints import write_checkpoint
from tests.support.command import Run, feed, refused


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
    assert "the argument 'caf\\udce9' is not UTF-8" in refused(ask("caf\udce9"))


@pytest.mark.parametrize(
    "args",
    [
        *(
            ["generate", "hi", option, "x\udce4"]
            for option in ("--stop", "--model", "--draft", "--revision", "--record")
        ),
        ["generate", "\udce4"],
        ["generate", "hi", "--stop", "a", "--stop=\udce4"],
        *(["serve", option, "\udcff"] for option in ("--served-model-name", "--api-key", "--host", "--cors-origin")),
        ["info", "--model", "\udce4"],
        ["\udce4"],
    ],
)
def test_M2_an_argument_that_is_no_text_is_refused(run: Run, args: list[str]) -> None:
    said = refused(run(*args))
    assert "is not UTF-8" in said and "\\udc" in said


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


def test_an_unexpected_error_is_one_line_too(ask: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("two\nlines")

    monkeypatch.setattr(generate_command, "build_engine", broken)
    assert ask("hi") == (1, "", "mini-infer: RuntimeError: two lines (run with --debug for the trace)\n")
    code, _, err = ask("--debug", "hi")
    assert code == 1 and err.startswith("Traceback")


def test_an_answer_that_fails_is_said_once_and_exits_1(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def poison(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return tensors | {"model.norm.weight": torch.full_like(tensors["model.norm.weight"], torch.nan)}

    folder = write_checkpoint(tmp_path, edit=poison)
    code, out, err = run("generate", "hi", "--model", folder, "--json", "--temperature", 0)
    assert code == 1 and json.loads(out)["finish_reason"] == "error"
    assert err.startswith("mini-infer: ") and err.count("\n") == 1
    assert not caplog.records


def test_a_tokenizer_of_another_model_is_named_with_the_remedy(run: Run, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, vocab_size=100)
    said = refused(run("generate", "hi", "--model", folder))
    assert f"{folder / 'tokenizer.json'} has " in said and "config.json a vocab_size of 100" in said
    assert "the tokenizer of another model; fetch both files again" in said


def test_a_prompt_that_no_context_holds_is_refused_at_once(ask: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    feed(monkeypatch, b"x" * 9_000_000)
    assert "the messages have over 8,000,000 characters" in refused(ask("-"))


def test_a_bad_default_of_the_checkpoint_is_named_with_its_folder(run: Run, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, generation={"top_p": 7})
    assert f"{folder}: generation_config.json: top_p must be" in refused(run("generate", "hi", "--model", folder))
