"""The prefix index: which block holds the rows of which tokens after which prefix, and why a lookup ended.

A block's key is `blake2b(parent key, its tokens)`; the first block's parent is the root, a digest of all else that the
rows depend on (model, types) and of the request's `cache_salt`. Keys are stable across processes. Only full blocks,
all of whose rows are computed, are ever published, and their rows are never written again.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from mini_infer.cache.block_pool import BlockPool
from mini_infer.observe.events import BlockMove, Miss

EVICTED_KEPT = 1024
"""How many evicted keys are remembered, to tell `EVICTED` from `NEVER_SEEN`."""

CHILDREN_COMPARED = 8
"""How many of a key's most recent children a miss is compared with."""

DIFF_SHOWN = 8
"""How many tokens of each side a `DIFF` shows."""


def root_key(identity: str, salt: str = "") -> bytes:
    """The parent of first blocks. The parts are length-prefixed, so no two (identity, salt) pairs coincide."""
    parts = (identity.encode(), salt.encode())
    return blake2b(b"".join(struct.pack("<Q", len(p)) + p for p in parts), digest_size=16).digest()


def block_key(parent: bytes, tokens: Sequence[int]) -> bytes:
    return blake2b(parent + struct.pack(f"<{len(tokens)}Q", *tokens), digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class Entry:
    """A published block."""

    block: int
    key: bytes
    parent: bytes
    tokens: tuple[int, ...]
    unsalted: bytes | None  # of a first block: its key under no root, by which other salts are recognised


class PrefixCache:
    """Index over the blocks of one pool. `enabled=False` publishes nothing and never hits."""

    def __init__(self, pool: BlockPool, enabled: bool = True) -> None:
        self.pool = pool
        self.enabled = enabled
        self.entries: dict[bytes, Entry] = {}
        self._children: dict[bytes, dict[bytes, None]] = {}  # parent -> its published children, oldest first
        self._unsalted: dict[bytes, int] = {}  # first blocks by tokens alone -> how many are published
        self._evicted: OrderedDict[bytes, int] = OrderedDict()  # key -> step
        self.step = 0  # the current step, set by the scheduler; dates the evictions
        pool.on_evict = self._forget_evicted

    def match(self, keys: Sequence[bytes], tokens: Sequence[int]) -> list[int]:
        """The blocks of the longest published prefix of `keys`; tokens are compared, so a collision is no hit."""
        blocks: list[int] = []
        size = self.pool.block_size
        for i, key in enumerate(keys):
            entry = self.entries.get(key)
            if entry is None or entry.tokens != tuple(tokens[i * size : (i + 1) * size]):
                break
            blocks.append(entry.block)
        return blocks

    def publish(self, block: int, key: bytes, parent: bytes, tokens: tuple[int, ...], seq_id: str, index: int) -> bool:
        """Make a computed block findable: `index` is its place in the table of `seq_id`.

        Of two blocks with one key the first stays canonical; the newcomer stays unhashed (returns False).
        """
        if not self.enabled or key in self.entries or self.pool.key[block] is not None:
            return False
        unsalted = block_key(b"", tokens) if index == 0 else None
        self.pool.set_key(block, key)
        self.entries[key] = Entry(block, key, parent, tokens, unsalted)
        self._children.setdefault(parent, {})[key] = None
        if unsalted is not None:
            self._unsalted[unsalted] = self._unsalted.get(unsalted, 0) + 1
        self._evicted.pop(key, None)
        if self.pool.moves is not None:
            self.pool.moves.append(BlockMove("hash", block, seq_id, index, key.hex(), parent.hex()))
        return True

    def unpublish(self, block: int) -> None:
        """Forget a block whose rows cannot be trusted."""
        key = self.pool.key[block]
        if key is None:
            return
        self._remove(key)
        self.pool.clear_key(block)
        if self.pool.moves is not None:
            self.pool.moves.append(BlockMove("unhash", block))

    def clear(self) -> None:
        """Forget every prefix; running sequences keep their blocks."""
        for entry in list(self.entries.values()):
            self.unpublish(entry.block)
        self._evicted.clear()

    def explain(self, keys: Sequence[bytes], root: bytes, tokens: Sequence[int], matched: int) -> Miss | None:
        """Why a lookup of `tokens` that matched `matched` blocks (of at most `(len(tokens) - 1) // size`) ended."""
        if not self.enabled:
            return None
        size = self.pool.block_size
        at = matched * size
        if len(tokens) - at < size:
            return Miss("PARTIAL", at)
        key = keys[matched]
        ours = tuple(tokens[at : at + size])
        entry = self.entries.get(key)
        if entry is not None and entry.tokens == ours:
            return Miss("LAST_TOKEN", at)  # cached, but one token must be computed to have logits
        if key in self._evicted:
            return Miss("EVICTED", at, step=self._evicted[key])
        if matched == 0 and block_key(b"", ours) in self._unsalted:
            return Miss("SALT", at)
        children = self._children.get(keys[matched - 1] if matched else root)
        if not children:
            return Miss("NEVER_SEEN", at)
        recent = [k for k, _ in zip(reversed(children), range(CHILDREN_COMPARED), strict=False)]
        theirs = max((self.entries[k].tokens for k in recent), key=lambda t: _common(ours, t))
        n = _common(ours, theirs)
        return Miss("DIFF", at + n, ours[n : n + DIFF_SHOWN], theirs[n : n + DIFF_SHOWN])

    def _forget_evicted(self, block: int) -> None:
        key = self.pool.key[block]
        assert key is not None
        self._remove(key)
        self._evicted[key] = self.step
        if len(self._evicted) > EVICTED_KEPT:
            self._evicted.popitem(last=False)

    def _remove(self, key: bytes) -> None:
        entry = self.entries.pop(key)
        siblings = self._children[entry.parent]
        del siblings[key]
        if not siblings:
            del self._children[entry.parent]
        if entry.unsalted is not None:
            self._unsalted[entry.unsalted] -= 1
            if not self._unsalted[entry.unsalted]:
                del self._unsalted[entry.unsalted]


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
