"""What must always hold between a scheduler, its pool and its index; run after every step in tests."""

from __future__ import annotations

from collections import Counter

from mini_infer.cache.prefix_cache import block_key
from mini_infer.scheduler.continuous import ContinuousScheduler
from mini_infer.scheduler.integrity import IntegrityError, check_idle
from mini_infer.scheduler.sequence import Status


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise IntegrityError(message)


def check_integrity(scheduler: ContinuousScheduler) -> None:
    """The whole check, O(pool + tokens). Raises `IntegrityError`."""
    check_idle(scheduler)
    _check_pool(scheduler)
    _check_index(scheduler)
    _check_sequences(scheduler)


def _check_pool(scheduler: ContinuousScheduler) -> None:
    pool = scheduler.pool
    free = pool.free_list()
    _require(len(free) == len(set(free)) == pool.num_free, f"the free list holds {len(free)}, counted {pool.num_free}")
    cached = [pool.key[b] is not None for b in free]
    _require(sum(cached) == pool.num_cached, f"{sum(cached)} free blocks have a key, counted {pool.num_cached}")
    _require(cached == sorted(cached), "an unhashed block stands behind a hashed one in the free list")
    held = Counter(b for s in scheduler.sequences.values() for b in s.table.blocks)
    for block in range(pool.num_blocks):
        _require(pool.ref[block] == held[block], f"block {block}: {pool.ref[block]} references, {held[block]} tables")
    in_use = {b for b in range(pool.num_blocks) if pool.ref[b]}
    _require(not in_use & set(free), f"blocks {sorted(in_use & set(free))} are both free and referenced")
    _require(len(in_use) + len(free) == pool.num_blocks, "free + cached + in use is not all blocks")


def _check_index(scheduler: ContinuousScheduler) -> None:
    pool, entries = scheduler.pool, scheduler.prefix.entries
    for key, entry in entries.items():
        _require(pool.key[entry.block] == key, f"the index names block {entry.block}, which has another key")
        _require(
            block_key(entry.parent, entry.tokens) == key, f"block {entry.block}: its key is not that of its tokens"
        )
    keyed = sum(k is not None for k in pool.key)
    _require(keyed == len(entries), f"{keyed} blocks have a key, the index holds {len(entries)}")


def _check_sequences(scheduler: ContinuousScheduler) -> None:
    size = scheduler.size
    for seq in scheduler.sequences.values():
        name = seq.seq_id
        _require(seq.num_computed_draft <= seq.num_computed, f"{name}: the draft is ahead of the target")
        _require(seq.num_computed <= seq.num_tokens, f"{name}: {seq.num_computed} computed of {seq.num_tokens}")
        if seq.status is Status.WAITING:
            _require(not seq.table.blocks and not seq.num_computed, f"{name} waits, but holds blocks or rows")
            continue
        covered = len(seq.table) * size
        _require(covered >= seq.num_computed, f"{name}: its table covers {covered} of {seq.num_computed} rows")
        most = -(-max(seq.num_tokens, seq.num_computed) // size)
        _require(len(seq.table) <= most, f"{name}: {len(seq.table)} blocks for {seq.num_tokens} tokens")
        for i, block in enumerate(seq.table.blocks):
            entry = scheduler.prefix.entries.get(scheduler.pool.key[block] or b"")
            if entry is not None:
                _require(
                    (i + 1) * size <= seq.num_computed, f"{name}: block {block} is published before it is computed"
                )
                tokens = tuple(seq.tokens[i * size : (i + 1) * size])
                _require(entry.tokens == tokens, f"{name}: block {block} is published with other tokens")
    waiting, running = list(scheduler.queue), scheduler.running
    for group in (waiting, running):
        _require([s.order for s in group] == sorted(s.order for s in group), "sequences are out of order")
    names = [s.seq_id for s in (*waiting, *running)]
    _require(sorted(names) == sorted(scheduler.sequences), "a sequence is in no list, or in two")
    _require(scheduler.seats <= scheduler.max_running, f"{scheduler.seats} seats taken of {scheduler.max_running}")
