"""EngineConfig: defaults, limits, and what it says when a value cannot work."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from mini_infer.config import EngineConfig, option_name, parse_size
from mini_infer.errors import UserError


def test_defaults_are_the_documented_ones() -> None:
    config = EngineConfig()
    assert (config.model, config.device, config.dtype) == ("demo", "auto", "auto")
    assert (config.block_size, config.prefix_cache) == (16, True)
    assert all(f.metadata["help"] for f in dataclasses.fields(config))


def test_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        EngineConfig().block_size = 8  # type: ignore[misc]


@pytest.mark.parametrize(
    ("device", "running", "batch", "chunk"), [("cpu", 16, 256, 128), ("mps", 16, 256, 128), ("cuda", 64, 2048, 1024)]
)
def test_resolve_fills_the_limits_of_a_step(device: str, running: int, batch: int, chunk: int) -> None:
    done = EngineConfig().resolve(device)
    assert (done.device, done.max_running, done.max_batch_tokens, done.max_chunk) == (device, running, batch, chunk)
    assert done.resolve(device) == done


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"max_running": 400}, (400, 400, 200)),  # the default budget makes room for each running sequence
        ({"max_batch_tokens": 4}, (4, 4, 2)),
        ({"max_batch_tokens": 1}, (1, 1, 1)),
        ({"max_chunk": 300}, (16, 300, 300)),
        ({"max_chunk": 1}, (16, 256, 1)),
        ({"max_running": 2, "max_batch_tokens": 2, "max_chunk": 2}, (2, 2, 2)),
    ],
)
def test_defaults_make_room_for_what_was_given(given: dict[str, int], expected: tuple[int, int, int]) -> None:
    done = EngineConfig(**given).resolve("cpu")  # type: ignore[arg-type]
    assert (done.max_running, done.max_batch_tokens, done.max_chunk) == expected


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"max_running": 0}, "--max-running is 0: it must be at least 1"),
        ({"kv_blocks": 1}, "--kv-blocks is 1: it must be at least 2"),
        ({"block_size": 0}, "--block-size is 0"),
        ({"block_size": None}, "--block-size is None"),
        ({"threads": -1}, "--threads is -1"),
        ({"threads": 1025}, "--threads is 1025: it must be at most 1024"),
        ({"model": "mod\udce8le"}, "--model is 'mod\\udce8le': give PATH|REPO, in UTF-8"),
        ({"draft": "\udce8"}, "--draft is"),
        ({"revision": "\udce8"}, "--revision is"),
        ({"max_model_len": 1}, "--max-model-len is 1"),
        ({"max_running": True}, "--max-running is True: it must be a whole number"),
        ({"max_running": "4"}, "--max-running is '4': it must be a whole number"),
        ({"dtype": "float8"}, "--dtype is 'float8': it must be one of auto, bfloat16, float16, float32, float64"),
        ({"device": "tpu"}, "--device is 'tpu': it must be one of auto, cpu, cuda, mps"),
        ({"prefix_cache": 1}, "--prefix-cache is 1: it must be True or False"),
        ({"model": " "}, "--model is ' ': give PATH|REPO"),
        ({"kv_memory": "lots"}, "not a size: 'lots'"),
        ({"kv_memory": 0}, "--kv-memory is 0"),
        ({"kv_blocks": 64, "kv_memory": 10**9}, "--kv-blocks and --kv-memory"),
        ({"max_batch_tokens": 8, "max_running": 9}, "--max-batch-tokens 8 is below --max-running 9"),
        ({"max_batch_tokens": 8, "max_chunk": 9}, "--max-chunk 9 is above --max-batch-tokens 8"),
    ],
)
def test_a_value_that_cannot_work_is_named(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as caught:
        EngineConfig(**given)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1000", 1000),
        ("1.5GB", 1_500_000_000),
        ("512MiB", 512 * 2**20),
        ("512 mib", 512 * 2**20),
        ("2g", 2 * 10**9),
        ("1KiB", 1024),
        (".5kb", 500),
        ("3B", 3),
        ("1TiB", 2**40),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size
    assert EngineConfig(kv_memory=text).kv_memory == size  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "1XB", "1.5.2GB", "nan", "1e9", "1GBB"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(UserError, match="not a size"):
        parse_size(text)


def test_option_names() -> None:
    assert option_name("max_batch_tokens") == "--max-batch-tokens"
