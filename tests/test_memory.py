"""Sizing of the KV cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from mini_infer import memory
from mini_infer.config import EngineConfig
from mini_infer.errors import UserError
from mini_infer.memory import device_memory, kv_block_count, pick_device, size_text

GB = 10**9


@pytest.mark.parametrize(
    ("options", "free", "context", "blocks"),
    [
        (EngineConfig(), 100 * GB, 32768, 4096),  # the cap
        (EngineConfig(), None, 32768, 4096),
        (EngineConfig(), 4 * GB, 32768, 1000),  # a quarter of what is free
        (EngineConfig(max_running=4), 100 * GB, 100, 28),  # four contexts of seven blocks
        (EngineConfig(), 3_000_000, 32768, 2),  # never fewer
        (EngineConfig(kv_blocks=7), 7_000_000, 32768, 7),
        (EngineConfig(kv_memory=5_999_999), 5_000_000, 32768, 5),
    ],
)
def test_the_size_of_the_kv_cache(options: EngineConfig, free: int | None, context: int, blocks: int) -> None:
    resolved = options.resolve("cpu")
    assert kv_block_count(resolved, block_bytes=10**6, free_bytes=free, max_model_len=context) == blocks


def test_a_kv_memory_without_room_for_two_blocks_is_refused() -> None:
    options = EngineConfig(kv_memory=100).resolve("cpu")
    with pytest.raises(UserError, match="--kv-memory 100 is too small: two blocks need 128 bytes"):
        kv_block_count(options, block_bytes=64, free_bytes=None, max_model_len=64)


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        (EngineConfig(kv_blocks=7), "--kv-blocks 7 needs 7.00 MB"),
        (EngineConfig(kv_memory="8MB"), "--kv-memory 8000000 needs 8.00 MB"),  # type: ignore[arg-type]
    ],
)
def test_a_cache_beyond_the_free_memory_is_refused(options: EngineConfig, asked: str) -> None:
    with pytest.raises(UserError, match=f"{asked} of memory beside the weights, but 6.00 MB are free"):
        kv_block_count(options.resolve("cpu"), block_bytes=10**6, free_bytes=6 * 10**6, max_model_len=64)


def test_a_machine_without_room_for_two_blocks_is_told_so() -> None:
    with pytest.raises(UserError, match=r"the KV cache needs 2.00 MB .* but 0 B are free"):
        kv_block_count(EngineConfig().resolve("cpu"), block_bytes=10**6, free_bytes=0, max_model_len=64)


def test_a_container_limit_is_the_total(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit, used = tmp_path / "max", tmp_path / "current"
    limit.write_text("3000000\n")
    used.write_text("1000000\n")
    monkeypatch.setattr(memory, "_CGROUPS", ((limit, used), (tmp_path / "none", tmp_path / "none")))
    assert device_memory("cpu") == memory.Memory(3_000_000, 2_000_000)
    (tmp_path / "memory.stat").write_text("anon 100\ninactive_file 400000\nactive_file 100000\n")
    assert device_memory("cpu").free == 2_400_000  # cached files are given up on demand
    (tmp_path / "memory.stat").write_text("inactive_file 1\ntotal_inactive_file 500000\n")
    assert device_memory("cpu").free == 2_500_000  # the older interface: with its children
    limit.write_text("max\n")
    assert device_memory("cpu").total > 3_000_000


def test_the_device_is_the_first_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert (pick_device("auto"), pick_device("cpu")) == ("cuda", "cpu")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: False)
    assert pick_device("auto") == "cpu"
    for absent in ("cuda", "mps"):
        with pytest.raises(UserError, match=f"--device {absent} is not available .*: use --device cpu"):
            pick_device(absent)


def test_sizes_for_people() -> None:
    sizes = (3_810_000_000, 25_276_510_208, 953_000_000, 12_345, 17)
    assert [size_text(n) for n in sizes] == ["3.81 GB", "25.3 GB", "953 MB", "12.3 kB", "17 B"]
