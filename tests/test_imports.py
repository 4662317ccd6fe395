"""What is light stays light: run-time imports in fresh interpreters, and the contracts of pyproject.toml."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEAVY = {"torch", "numpy", "transformers", "huggingface_hub"}
WITHOUT_TORCH = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for folder in ("scheduler", "cache", "observe", "text", "commands")
    for path in sorted((ROOT / "mini_infer" / folder).rglob("*.py"))
    if path.stem != "kv_store"
]
WITHOUT_TORCH += ["mini_infer.sampling.params", "mini_infer.sampling.rows", "mini_infer.config", "mini_infer.memory"]
WITHOUT_TORCH += ["mini_infer.cli", "mini_infer.engine", "mini_infer.llm", "mini_infer.service"]


def loaded(code: str) -> set[str]:
    """The heavy packages that are loaded after `code` ran in a fresh interpreter."""
    code = f"{code}\nimport sys\nprint('loaded', *sys.modules.keys() & {HEAVY})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.splitlines()[-1].split()[1:])


def test_the_package_itself_loads_nothing_heavy() -> None:
    assert (
        loaded("import mini_infer; mini_infer.__version__, mini_infer.EngineConfig, mini_infer.SamplingParams") == set()
    )


def test_the_public_names_are_resolved_on_first_use() -> None:
    names = "LLM, EngineConfig, InferenceEngine, SamplingParams, __version__"
    assert loaded(f"from mini_infer import {names}") <= {"numpy"}  # the tokenizer library brings it
    with pytest.raises(subprocess.CalledProcessError):
        loaded("from mini_infer import Nonsense")


def test_all_that_decides_and_reports_together_loads_no_torch() -> None:
    assert "torch" not in loaded("\n".join(f"import {module}" for module in WITHOUT_TORCH))


@pytest.mark.parametrize("args", [["--help"], ["--version"], ["generate", "--help"], ["info", "-h"], ["trace"], []])
def test_help_loads_nothing_heavy(args: list[str]) -> None:
    assert _command(args, code=0) == set()


@pytest.mark.parametrize(
    "args",
    [
        ["generate", "x", "--no-such-option"],
        ["generate", "x", "--temperature", "-1", "--model", "."],
        ["generate", "x", "--kv-blocks", "1", "--model", "."],
        ["generate"],
        ["generate", "", "--model", "."],
        ["nonsense"],
    ],
)
def test_what_is_refused_at_once_loads_nothing_heavy(args: list[str]) -> None:
    assert _command(args, code=2) == set()


@pytest.mark.parametrize("args", [["tui", "--help"], ["tui", "--replay", "no-such-file"]])
def test_the_playground_is_not_loaded_before_it_is_shown(args: list[str]) -> None:
    """What a replay needs is light; without a terminal nothing more is loaded."""
    assert "torch" not in _command(args, code=0 if "--help" in args else 2)


def test_the_playground_loads_no_torch_and_the_rest_no_textual() -> None:
    assert "torch" not in loaded("import tui.app, tui.run, tui.client.replay")
    with pytest.raises(subprocess.CalledProcessError):
        code = "import mini_infer.cli, mini_infer.api.server, mini_infer.commands.tui, tui.model.observer, sys"
        loaded(f"{code}\nassert 'textual' in sys.modules")


def _command(args: list[str], code: int) -> set[str]:
    """Runs the command line in a fresh interpreter, expects that exit code, and returns what is loaded then."""
    run = f"try:\n    main({args})\nexcept SystemExit as end:\n    assert end.code == {code}"
    return loaded(f"from mini_infer.cli import main\n{run}")


def test_import_contracts() -> None:
    linter = shutil.which("lint-imports", path=str(Path(sys.executable).parent)) or shutil.which("lint-imports")
    if linter is None:
        pytest.skip('lint-imports is not installed: pip install -e ".[dev]"')
    done = subprocess.run([linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
