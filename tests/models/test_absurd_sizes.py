"""Sizes in config.json that no model has: a line naming file and field, at once and without a tensor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mini_infer.errors import UserError
from mini_infer.models import loader
from mini_infer.models.config import ModelConfig
from mini_infer.models.loader import inspect_checkpoint
from tests.support.checkpoints import write_checkpoint

HUGE = (9_000_000_000, 10**21, 10**400)
SIZES = (
    "hidden_size intermediate_size num_hidden_layers num_attention_heads head_dim vocab_size max_position_embeddings"
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("tiny"), "qwen3")


def line(folder: Path, keys: dict[str, Any]) -> str:
    """What loading a copy of the configuration with other keys says."""
    path = folder / "config.json"
    before = path.read_text()
    try:
        path.write_text(json.dumps(json.loads(before) | keys))
        with pytest.raises(UserError) as caught:
            inspect_checkpoint(folder)
    finally:
        path.write_text(before)
    text = str(caught.value)
    assert str(folder) in text and "\n" not in text and len(text) < 500, text
    return text


@pytest.fixture
def forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """No model is laid out, not even without memory."""

    def refuse(*_: object) -> None:
        raise AssertionError("laid out")

    monkeypatch.setattr(loader, "Transformer", refuse)


@pytest.mark.usefixtures("forbidden")
@pytest.mark.parametrize("value", HUGE, ids=["9e9", "1e21", "1e400"])
@pytest.mark.parametrize("key", SIZES.split())
def test_M3_a_size_beyond_any_model_is_named(tiny: Path, key: str, value: int) -> None:
    said = line(tiny, {key: value})
    assert f"{tiny / 'config.json'}: {key} is {str(value)[:190]}" in said and "at most" in said


@pytest.mark.usefixtures("forbidden")
@pytest.mark.parametrize("layers", [1000, 10**6, 2**31 - 1])
def test_M3_layers_that_the_weights_cannot_hold_are_named(tiny: Path, layers: int) -> None:
    said = line(tiny, {"num_hidden_layers": layers})
    assert f"num_hidden_layers is {layers}, but there are only" in said and "not of one model" in said


@pytest.mark.parametrize(
    "keys",
    [
        {"hidden_size": 2**28},
        {"intermediate_size": 2**28, "hidden_size": 2**28},
        {"vocab_size": 2**31 - 1, "hidden_size": 2**28},
        {"num_attention_heads": 2**14, "num_key_value_heads": 2**14, "head_dim": 2**14, "hidden_size": 2**28},
    ],
)
def test_M3_the_largest_sizes_allowed_overflow_nowhere(tiny: Path, keys: dict[str, int]) -> None:
    assert "has the shape" in line(tiny, {"head_dim": 16, **keys})


@pytest.mark.parametrize(
    ("scaling", "key"),
    [
        ({"rope_type": "yarn", "factor": 1e300, "original_max_position_embeddings": 64}, "factor"),
        ({"rope_type": "yarn", "factor": 1e6, "original_max_position_embeddings": 10**6}, "factor"),
        ({"rope_type": "yarn", "factor": 10**400, "original_max_position_embeddings": 64}, "factor"),
        ({"rope_type": "linear", "factor": 10**400}, "factor"),
        ({"rope_type": "yarn", "factor": 2, "original_max_position_embeddings": 10**21}, "original_max_position"),
    ],
)
def test_M3_a_context_beyond_any_model_is_named(tiny: Path, scaling: dict[str, Any], key: str) -> None:
    assert key in line(tiny, {"rope_scaling": scaling})


@pytest.mark.parametrize("key", ["rms_norm_eps", "rope_theta"])
def test_M3_a_number_that_is_none_is_named(tiny: Path, key: str) -> None:
    assert f"{key} is 1000" in line(tiny, {key: 10**400})


def test_what_is_huge_and_harmless_is_no_obstacle(tiny: Path) -> None:
    config = json.loads((tiny / "config.json").read_text())
    harmless = {"sliding_window": 2**63 - 1, "max_window_layers": 10**12, "use_sliding_window": True}
    assert ModelConfig.from_dict(config | harmless, {"top_k": 10**12}).generation == {"top_k": 10**12}


@pytest.mark.parametrize(
    ("in_config", "in_generation", "source", "unknown"),
    [(999_999, None, "config.json", "999999"), (5, [5, -1, 10**9], "generation_config.json", "-1, 1000000000")],
)
def test_end_tokens_outside_the_vocabulary_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, in_config: Any, in_generation: Any, source: str, unknown: str
) -> None:
    generation = {} if in_generation is None else {"eos_token_id": in_generation}
    folder = write_checkpoint(tmp_path, eos_token_id=in_config, generation=generation)
    if in_generation is None:
        (folder / "generation_config.json").unlink(missing_ok=True)
    caplog.clear()
    config, _, _ = inspect_checkpoint(folder)
    [told] = [record.getMessage() for record in caplog.records]
    assert told.startswith(f"{folder / source}: eos_token_id names {unknown}, ")
    assert config.eos_token_ids == ((5,) if in_config == 5 else ())


def test_an_empty_folder_is_called_empty(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no weights here \(no model\.safetensors: the folder is empty\)"):
        inspect_checkpoint(tmp_path)
