"""The tensors behind the block ids."""

from __future__ import annotations

import torch

from mini_infer.cache.kv_store import KVStore


def numbered(num_blocks: int = 6) -> KVStore:
    store = KVStore(2, num_blocks, 4, 3, 8, torch.float32, "cpu")
    store.data += torch.arange(1.0, num_blocks + 1)[:, None, None, None]
    return store


def test_it_starts_as_zeros_and_layers_are_views() -> None:
    store = KVStore(2, 5, 4, 3, 8, torch.float64, "cpu")
    assert store.data.shape == (2, 2, 5, 4, 3, 8)
    assert store.data.dtype == torch.float64
    assert not store.data.any()
    keys, values = store.layer(1)
    assert keys.shape == values.shape == (20, 3, 8)
    keys[7] = 1.0  # block 1, offset 3
    values[8] = 2.0  # block 2, offset 0
    assert store.data[1, 0, 1, 3].eq(1).all()
    assert store.data[1, 1, 2, 0].eq(2).all()
    assert store.data.sum() == 24 + 48


def test_copy_moves_whole_blocks_in_every_layer() -> None:
    store = numbered()
    store.copy([(0, 5), (2, 4)])
    for layer in store.data.flatten(0, 1):
        assert layer[:, 0, 0, 0].tolist() == [1, 2, 3, 4, 3, 1]


def test_copy_reads_all_before_it_writes_any() -> None:
    store = numbered()
    store.copy([(0, 1), (1, 2), (2, 0)])
    assert store.data[0, 0, :, 0, 0, 0].tolist() == [3, 1, 2, 4, 5, 6]


def test_zero_clears_nan_in_every_layer() -> None:
    store = numbered()
    store.data[:, :, [1, 3]] = float("nan")
    store.zero([3, 1])
    for layer in store.data.flatten(0, 1):
        assert layer[:, 0, 0, 0].tolist() == [1, 0, 3, 0, 5, 6]
    assert store.data.isfinite().all()


def test_nothing_to_do_is_nothing_done() -> None:
    store = numbered()
    before = store.data.clone()
    store.copy([])
    store.zero([])
    assert torch.equal(store.data, before)


def test_bytes_per_block_is_what_a_block_takes() -> None:
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        store = KVStore(3, 7, 16, 2, 64, dtype, "cpu")
        each = KVStore.bytes_per_block(3, 16, 2, 64, dtype)
        assert each * 7 == store.data.numel() * store.data.element_size()
