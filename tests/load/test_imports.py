"""The load generator is light: no torch, no engine, no arrays."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "numpy", "transformers", "litestar", "textual", "mini_infer.engine", "mini_infer.models.transformer")


def loaded(code: str) -> set[str]:
    code = f"{code}\nimport sys\nprint('loaded', *sys.modules.keys() & {set(HEAVY)})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.splitlines()[-1].split()[1:])


def test_all_of_it_together_loads_nothing_heavy() -> None:
    modules = sorted(path.stem for path in (ROOT / "mini_infer" / "load").glob("*.py") if path.stem != "__init__")
    assert "client" in modules
    assert loaded("\n".join(f"import mini_infer.load.{module}" for module in modules)) == set()


def test_its_command_loads_nothing_heavy() -> None:
    run = "from mini_infer.cli import main\ntry:\n    main({})\nexcept SystemExit as end:\n    assert end.code == {}"
    assert loaded(run.format(["load", "--help"], 0)) == set()
    assert (
        loaded(run.format(["load", "--url", "http://127.0.0.1:1", "--requests", "1", "--concurrency", "1"], 1)) == set()
    )
