"""From the word a user gives to a folder, with the hub library replaced."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import errors
from huggingface_hub.utils.tqdm import are_progress_bars_disabled

from mini_infer.errors import UserError
from mini_infer.models.hub import resolve

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
}
INDEX = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}


class FakeHub:
    """Stands for `snapshot_download`: lays those of `files` that the patterns allow, and notes its calls."""

    def __init__(self, folder: Path, files: dict[str, bytes]) -> None:
        self.folder = folder / "snapshots" / COMMIT
        self.files = files
        self.calls: list[dict[str, Any]] = []
        self.raises: Exception | None = None

    def __call__(self, repo_id: str, **options: Any) -> str:
        self.calls.append({"repo_id": repo_id, "silent": are_progress_bars_disabled(), **options})
        if self.raises is not None:
            raise self.raises
        wanted = huggingface_hub.utils.filter_repo_objects(
            self.files, allow_patterns=options["allow_patterns"], ignore_patterns=options["ignore_patterns"]
        )
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in wanted:
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_bytes(self.files[name])
        return str(self.folder)

    def fetched(self) -> set[str]:
        return {str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file()}


@pytest.fixture
def make_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeHub]:
    def make(**files: Any) -> FakeHub:
        named = {
            name: value if isinstance(value, bytes) else json.dumps(value).encode() for name, value in files.items()
        }
        hub = FakeHub(tmp_path / "cache", named)
        monkeypatch.setattr(huggingface_hub, "snapshot_download", hub)
        return hub

    monkeypatch.chdir(tmp_path)
    return make


def line(source: str | Path, revision: str | None = None) -> str:
    """The one line a user sees."""
    with pytest.raises(UserError) as caught:
        resolve(source, revision)
    text = str(caught.value)
    assert "\n" not in text and len(text) < 400
    return text


def failing(status: int = 404, kind: type[errors.HfHubHTTPError] = errors.HfHubHTTPError) -> errors.HfHubHTTPError:
    response = SimpleNamespace(status_code=status, headers={}, request=None)
    return kind(f"{status} Client Error.\n\nSee https://example.invalid", response=response)


def chained(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


def named(name: str, *bases: type) -> Exception:
    """An error of an HTTP library that need not be the one installed."""
    kind = Exception
    for base in reversed(bases or ("TransportError", "HTTPError")):
        kind = type(str(base), (kind,), {})
    return type(name, (kind,), {})("[Errno -2] Name or service not known\nmore")


# Folders and what looks like one.


def test_an_existing_folder_wins_over_a_repository_of_that_name(
    make_hub: Callable[..., FakeHub], tmp_path: Path
) -> None:
    hub = make_hub(**{"config.json": CONFIG})
    (tmp_path / "owner" / "name").mkdir(parents=True)
    assert resolve("owner/name") == Path("owner/name")
    assert resolve(tmp_path / "owner") == tmp_path / "owner"
    assert resolve(f"  {tmp_path}/owner ") == tmp_path / "owner"
    assert not hub.calls


def test_the_home_folder_may_be_written_as_a_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "weights").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert resolve("~/weights") == tmp_path / "weights"


@pytest.mark.parametrize(
    "source", ["./x", "../x", "/no/x", "/x", "~/no-such-folder", "a/b/c", "models\\qwen", "C:/models", "owner/name/"]
)
def test_what_looks_like_a_path_is_never_asked_of_the_hub(make_hub: Callable[..., FakeHub], source: str) -> None:
    hub = make_hub()
    assert line(source) == f"{source}: no such folder"
    assert not hub.calls


@pytest.mark.parametrize("source", ["", " ", "qwen", "owner/na me", "owner/", "ownér!/x"])
def test_what_is_neither_a_folder_nor_a_repository(make_hub: Callable[..., FakeHub], source: str) -> None:
    hub = make_hub()
    assert "owner/name" in line(source)
    assert not hub.calls


def test_a_web_address_is_answered_with_the_repository_name(make_hub: Callable[..., FakeHub]) -> None:
    make_hub()
    assert line("https://huggingface.co/Qwen/Qwen2.5-0.5B-Instruct/tree/main").endswith("as Qwen/Qwen2.5-0.5B-Instruct")


def test_a_file_is_answered_with_the_folder_to_give(make_hub: Callable[..., FakeHub], tmp_path: Path) -> None:
    make_hub()
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert "give the folder" in line(tmp_path / "model.safetensors")


def test_a_path_object_is_never_asked_of_the_hub(make_hub: Callable[..., FakeHub]) -> None:
    hub = make_hub()
    assert line(Path("owner/name")) == "owner/name: no such folder"
    assert not hub.calls


@pytest.mark.parametrize("source", ["/" + "x" * 5000, "./a\0b", "~no-such-user/x"])
def test_names_no_system_can_have_are_no_folders(make_hub: Callable[..., FakeHub], source: str) -> None:
    make_hub()
    with pytest.raises(UserError, match="no such folder"):
        resolve(source)


def test_a_folder_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "closed"
    folder.mkdir()
    if os.name == "posix" and os.geteuid() != 0:
        folder.chmod(0)
    else:  # the superuser may look everywhere
        monkeypatch.setattr(os, "access", lambda path, mode: path != str(folder))
    assert line(folder) == f"{folder}: permission denied; make the folder readable, or give another"
    folder.chmod(0o700)


def test_a_revision_of_a_folder_is_refused_rather_than_ignored(
    make_hub: Callable[..., FakeHub], tmp_path: Path
) -> None:
    make_hub()
    assert "revision (v2)" in line(tmp_path, "v2")


# What is fetched.


def test_only_what_the_engine_reads_is_fetched(make_hub: Callable[..., FakeHub]) -> None:
    hub = make_hub(
        **{
            "config.json": CONFIG,
            "generation_config.json": {},
            "tokenizer.json": {},
            "tokenizer_config.json": {},
            "chat_template.jinja": b"x",
            "additional_chat_templates/tool_use.jinja": b"x",
            "model.safetensors": b"x",
            "consolidated.safetensors": b"x",
            "pytorch_model.bin": b"x",
            "model.gguf": b"x",
            "onnx/config.json": {},
            "original/model.safetensors": b"x",
            "tokenizer/old.json": {},
            "README.md": b"x",
        }
    )
    assert resolve("owner/name") == hub.folder
    assert hub.fetched() == {
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "additional_chat_templates/tool_use.jinja",
        "model.safetensors",
    }


def test_of_a_sharded_checkpoint_only_the_files_of_the_index_are_fetched(make_hub: Callable[..., FakeHub]) -> None:
    shards = set(INDEX["weight_map"].values())
    others = {"old.safetensors": b"x", "model.safetensors": b"x"}
    hub = make_hub(
        **{"config.json": CONFIG, "model.safetensors.index.json": INDEX, **dict.fromkeys(shards, b"x"), **others}
    )
    resolve("owner/name")
    assert hub.fetched() == {"config.json", "model.safetensors.index.json", *shards}


def test_an_unusual_name_of_the_only_weights_file_is_found(make_hub: Callable[..., FakeHub]) -> None:
    hub = make_hub(**{"config.json": CONFIG, "weights.safetensors": b"x", "old/weights.safetensors": b"x"})
    resolve("owner/name")
    assert hub.fetched() == {"config.json", "weights.safetensors"}


def test_the_weights_are_of_the_commit_the_configuration_is_of(make_hub: Callable[..., FakeHub]) -> None:
    hub = make_hub(**{"config.json": CONFIG, "model.safetensors": b"x"})
    resolve("owner/name", "my-branch")
    assert [(call["repo_id"], call["revision"]) for call in hub.calls] == [
        ("owner/name", "my-branch"),
        ("owner/name", COMMIT),
    ]


def test_an_unsupported_model_is_refused_before_its_weights_are_fetched(make_hub: Callable[..., FakeHub]) -> None:
    config = {**CONFIG, "model_type": "mamba", "architectures": ["MambaForCausalLM"]}
    hub = make_hub(**{"config.json": config, "model.safetensors": b"x"})
    assert "amba" in line("owner/name")
    assert "model.safetensors" not in hub.fetched()


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"model.gguf": b"x"}, "has no config.json"),
        ({"adapter_config.json": {}, "adapter_model.safetensors": b"x"}, "adapter"),
        ({"config.json": CONFIG, "pytorch_model.bin": b"x"}, "no *.safetensors weights"),
        ({"config.json": CONFIG, "model.safetensors.index.json": INDEX}, "model-00001-of-00002.safetensors"),
    ],
)
def test_repositories_of_other_kinds(make_hub: Callable[..., FakeHub], files: dict[str, Any], words: str) -> None:
    make_hub(**files)
    text = line("owner/name")
    assert "owner/name" in text and words in text


# What can go wrong at the hub.


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (failing(403, errors.GatedRepoError), ["gated", "accept its terms at", "/owner/name", "HF_TOKEN"]),
        (failing(403, errors.DisabledRepoError), ["disabled"]),
        (failing(404, errors.RevisionNotFoundError), ["no revision 'v9'"]),
        (failing(404, errors.RepositoryNotFoundError), ["no repository owner/name", "spelling", "HF_TOKEN"]),
        (failing(401), ["refused access (401)", "HF_TOKEN"]),
        (failing(503), ["answered 503", "wait a while"]),
        (failing(429), ["answered 429", "wait a while"]),
        (failing(404, errors.RemoteEntryNotFoundError), ["answered 404"]),
        (errors.HFValidationError("Repo id must use alphanumeric chars"), ["not a name a repository can have"]),
        (errors.LocalEntryNotFoundError("Cannot find\nmore"), ["connect once", "give a folder"]),
        (errors.OfflineModeIsEnabled("offline"), ["HF_HUB_OFFLINE", "give a folder"]),
        (chained(errors.LocalEntryNotFoundError("x"), errors.OfflineModeIsEnabled("y")), ["HF_HUB_OFFLINE"]),
        (chained(errors.LocalEntryNotFoundError("x"), failing(503)), ["answered 503"]),
        (chained(errors.LocalEntryNotFoundError("x"), failing(403)), ["refused access (403)"]),
        (chained(errors.LocalEntryNotFoundError("x"), named("ConnectError")), ["connect once"]),
        (chained(errors.LocalEntryNotFoundError("x"), failing(403, errors.GatedRepoError)), ["gated"]),
        (ConnectionResetError("reset"), ["connect once"]),
        (TimeoutError("timed out"), ["connect once"]),
        (named("ConnectError"), ["connect once"]),
        (named("ReadTimeout", "RequestException"), ["connect once"]),
        (OSError(28, "No space left on device", "/cache/blob"), ["No space left on device", "/cache/blob", "HF_HOME"]),
        (PermissionError(13, "Permission denied", "/cache"), ["Permission denied", "HF_HOME"]),
        (errors.FileMetadataError("no etag"), ["could not be fetched", "no etag", "try again"]),
        (RuntimeError("Data processing error\ntrace"), ["could not be fetched", "Data processing error"]),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_every_failure_of_the_hub_is_one_line(
    make_hub: Callable[..., FakeHub], error: Exception, words: list[str]
) -> None:
    make_hub().raises = error
    text = line("owner/name", "v9")
    assert "owner/name" in text
    for word in words:
        assert word in text


def test_an_interrupted_fetch_is_not_an_error_of_ours(make_hub: Callable[..., FakeHub]) -> None:
    make_hub().raises = KeyboardInterrupt()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        resolve("owner/name")


@pytest.mark.parametrize("progress", [True, False])
def test_progress_bars_are_shown_only_on_request(make_hub: Callable[..., FakeHub], progress: bool) -> None:
    hub = make_hub(**{"config.json": CONFIG, "model.safetensors": b"x"})
    before = are_progress_bars_disabled()
    resolve("owner/name", progress=progress)
    assert {call["silent"] for call in hub.calls} == {before if progress else True}
    assert are_progress_bars_disabled() == before
