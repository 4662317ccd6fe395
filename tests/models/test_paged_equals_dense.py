"""The paged, batched, chunked forward pass against the dense one-request reference, in float64: no tolerance of ids."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from mini_infer.batch import Span
from mini_infer.cache.kv_store import KVStore
from mini_infer.models import attention
from mini_infer.models.attention import AttentionGroup
from mini_infer.models.transformer import RMSNorm
from tests.support.checkpoints import tiny_model
from tests.support.dense import dense_greedy, dense_logits
from tests.support.paged import PagedDriver

attention_group = attention._group  # as it is, for the sabotage below

ARCHS = ("qwen2", "qwen3", "llama")


def _ids(length: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(384) for _ in range(length)]


def _assert_same(logits: torch.Tensor, reference: torch.Tensor) -> None:
    torch.testing.assert_close(logits, reference, atol=1e-9, rtol=0)
    assert torch.equal(logits.argmax(-1), reference.argmax(-1))


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("chunk", [1, 2, 5, 15, 16, 17, 32, 33, 100])
def test_chunk_sizes(arch: str, chunk: int) -> None:
    model, config = tiny_model(arch)
    ids = _ids(67, 1)
    driver = PagedDriver(model, config)
    got = [driver.step([("a", ids[i : i + chunk])])["a"] for i in range(0, len(ids), chunk)]
    _assert_same(torch.cat(got), dense_logits(model, config, ids))


@pytest.mark.parametrize("block_size", [1, 8, 16, 32])
@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 31, 32, 33])
def test_lengths_at_block_edges(block_size: int, length: int) -> None:
    model, config = tiny_model("qwen2")
    ids = _ids(length + 3, length)
    driver = PagedDriver(model, config, num_blocks=64, block_size=block_size)
    got = [driver.step([("a", ids[:length])])["a"]]
    got += [driver.step([("a", [token])])["a"] for token in ids[length:]]
    _assert_same(torch.cat(got), dense_logits(model, config, ids))


@pytest.mark.parametrize("arch", ARCHS)
def test_random_mixes_of_chunks_verifies_and_decodes(arch: str) -> None:
    model, config = tiny_model(arch)
    rng = random.Random(7)
    driver = PagedDriver(model, config, num_blocks=128)
    ids = {f"s{i}": _ids(rng.choice([5, 16, 40, 90, 150, 300]), i) for i in range(8)}
    got: dict[str, list[torch.Tensor]] = {name: [] for name in ids}
    done = dict.fromkeys(ids, 0)
    while any(done[name] < len(tokens) for name, tokens in ids.items()):
        left = [name for name in ids if done[name] < len(ids[name])]
        parts = []
        for name in rng.sample(left, rng.randint(1, len(left))):
            part = ids[name][done[name] :][: rng.choice([1, 1, 3, 5, 16, 17, 64])]
            parts.append((name, part))
            done[name] += len(part)
        for name, logits in driver.step(parts).items():
            got[name].append(logits)
    for name, tokens in ids.items():
        _assert_same(torch.cat(got[name]), dense_logits(model, config, tokens))


def test_four_requests_at_once_give_what_each_gives_alone() -> None:
    model, config = tiny_model("llama")
    prompts = {f"r{i}": _ids(length, i) for i, length in enumerate((1, 16, 33, 130))}
    driver = PagedDriver(model, config)
    answers: dict[str, list[int]] = {name: [] for name in prompts}
    parts = list(prompts.items())
    for _ in range(12):
        step = driver.step(parts)
        for name, logits in step.items():
            answers[name].append(int(logits[-1].argmax()))
        parts = [(name, answers[name][-1:]) for name in prompts]
    for name, prompt in prompts.items():
        assert answers[name] == dense_greedy(model, config, prompt, 12)


def test_rejected_rows_leave_no_trace() -> None:
    model, config = tiny_model("qwen3")
    ids = _ids(40, 3)
    driver = PagedDriver(model, config)
    driver.step([("a", ids[:30])])
    driver.step([("a", [1, 2, 3, 4, 5])])
    driver.trim("a", 30)
    got = driver.step([("a", ids[30:])])["a"]
    _assert_same(got, dense_logits(model, config, ids)[30:])


@pytest.mark.parametrize("length", [15, 16, 17, 40])
def test_a_fork_copies_its_last_block_before_anyone_writes(length: int) -> None:
    model, config = tiny_model("qwen2")
    ids = _ids(length, 5)
    driver = PagedDriver(model, config)
    driver.step([("a", ids)])
    copies = driver.fork("a", "b")
    got = {"a": [], "b": []}
    for tails in ((7, 8), (9, 10)):
        step = driver.step([("a", tails[:1]), ("b", tails[1:])], copies)
        copies = ()
        for name, logits in step.items():
            got[name].append(logits)
    _assert_same(torch.cat(got["a"]), dense_logits(model, config, [*ids, 7, 9])[-2:])
    _assert_same(torch.cat(got["b"]), dense_logits(model, config, [*ids, 8, 10])[-2:])


def test_only_rows_asked_for_come_back() -> None:
    model, config = tiny_model("qwen2")
    driver = PagedDriver(model, config)
    batch = driver.batch([("a", _ids(20, 0)), ("b", _ids(7, 1))])
    whole = driver.runner.run(batch)
    some = driver.runner.run(dataclasses.replace(batch, logit_rows=(19, 26)))
    assert torch.equal(some, whole[[19, 26]])
    assert driver.runner.run(dataclasses.replace(batch, logit_rows=())).shape == (0, 64)


def test_nan_rows_of_others_and_of_padding_do_not_leak() -> None:
    """Every block that belongs to someone else, and the unwritten rest of one's own, is NaN."""
    model, config = tiny_model("qwen2")
    driver = PagedDriver(model, config)
    driver.runner.kv.data.fill_(float("nan"))
    short, long = _ids(3, 1), _ids(100, 2)
    got = driver.step([("short", short), ("long", long)])
    for token in (5, 6):  # decodes of lengths 4 and 101 share a bucket and so a padded gather
        step = driver.step([("short", [token]), ("long", [token])])
        got = {name: torch.cat((got[name], step[name])) for name in got}
    _assert_same(got["short"], dense_logits(model, config, [*short, 5, 6]))
    _assert_same(got["long"], dense_logits(model, config, [*long, 5, 6]))


def test_blocks_that_held_nan_serve_the_next_request_once_zeroed() -> None:
    model, config = tiny_model("qwen2")
    driver = PagedDriver(model, config, num_blocks=3)
    driver.step([("bad", _ids(40, 0))])
    driver.runner.kv.data[:, :, driver.tables["bad"]] = float("nan")
    driver.runner.zero_blocks(driver.tables["bad"])
    driver.trim("bad", 0)
    assert driver.runner.kv.data.isfinite().all()
    _assert_same(driver.step([("next", _ids(40, 1))])["next"], dense_logits(model, config, _ids(40, 1)))


def test_a_poisoned_sequence_fails_alone() -> None:
    model, config = tiny_model("qwen2")
    driver = PagedDriver(model, config)
    driver.step([("bad", _ids(20, 0)), ("good", _ids(90, 1))])
    driver.runner.kv.data[:, :, driver.tables["bad"]] = float("nan")
    step = driver.step([("bad", [1]), ("good", [1])])
    assert step["bad"].isnan().all()
    _assert_same(step["good"], dense_logits(model, config, [*_ids(90, 1), 1])[-1:])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_other_precisions_stay_near(dtype: torch.dtype) -> None:
    model, config = tiny_model("qwen3", dtype)
    ids = _ids(50, 4)
    driver = PagedDriver(model, config)
    got = torch.cat([driver.step([("a", ids[:47])])["a"], *(driver.step([("a", [t])])["a"] for t in ids[47:])])
    assert got.dtype == dtype
    reference, _ = tiny_model("qwen3")
    error = (got.double() - dense_logits(reference, config, ids)).abs().max()
    assert error < {torch.float16: 0.3, torch.bfloat16: 3.0, torch.float32: 1e-3}[dtype]


def test_weights_take_no_gradient_and_a_batch_of_another_block_size_is_refused() -> None:
    model, config = tiny_model("qwen2")
    assert not any(p.requires_grad for p in model.parameters())
    driver = PagedDriver(model, config, block_size=8)
    batch = driver.batch([("a", [1, 2, 3])])
    with pytest.raises(ValueError, match="blocks of 16"):
        driver.runner.run(dataclasses.replace(batch, block_size=16))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_norm_rounds_before_the_weight(dtype: torch.dtype) -> None:
    norm = RMSNorm(64, 1e-5, dtype, "cpu")
    generator = torch.Generator().manual_seed(0)
    norm.weight.copy_(torch.rand(64, generator=generator) + 0.5)
    x = (torch.randn(50, 64, generator=generator) * 30).to(dtype)
    wide = x.to(torch.promote_types(dtype, torch.float32))
    expected = norm.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(dtype)
    assert torch.equal(norm(x), expected)


def _no_copy(store: KVStore, pairs: object) -> None:
    """Leaves the fork's block as it was."""


def _no_zero(store: KVStore, blocks: object) -> None:
    """Leaves NaN where it is."""


def _padding_at_slot_zero(spans: list[Span], *rest: Any) -> AttentionGroup:
    group = attention_group(spans, *rest)
    lengths = torch.tensor([[span.kv_len] for span in spans])
    slots = group.slots.masked_fill(torch.arange(group.slots.shape[1]) >= lengths, 0)
    return dataclasses.replace(group, slots=slots, gather=attention.by_head(slots, group.room.shape[2]))


@pytest.mark.parametrize(
    ("where", "name", "fault", "test"),
    [
        (KVStore, "copy", _no_copy, lambda: test_a_fork_copies_its_last_block_before_anyone_writes(17)),
        (KVStore, "zero", _no_zero, test_blocks_that_held_nan_serve_the_next_request_once_zeroed),
        (attention, "_group", _padding_at_slot_zero, test_nan_rows_of_others_and_of_padding_do_not_leak),
    ],
)
def test_sabotage_is_seen(
    monkeypatch: pytest.MonkeyPatch, where: object, name: str, fault: object, test: Callable[[], None]
) -> None:
    """Each of these faults makes the test beside it fail."""
    monkeypatch.setattr(where, name, fault)
    with pytest.raises(AssertionError):
        test()
