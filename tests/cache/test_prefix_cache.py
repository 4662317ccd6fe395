"""The prefix index: what is found, what stays canonical, and the true reason where a hit ends."""

from __future__ import annotations

import os
import subprocess
import sys

from mini_infer.cache.block_pool import BlockPool
from mini_infer.cache.prefix_cache import EVICTED_KEPT, PrefixCache, block_key, root_key
from mini_infer.observe.events import BlockMove, Miss

SIZE = 4
ROOT = root_key("model")


def make(num_blocks: int = 16, enabled: bool = True) -> PrefixCache:
    return PrefixCache(BlockPool(num_blocks, SIZE), enabled)


def keys_of(tokens: list[int], root: bytes = ROOT, size: int = SIZE) -> list[bytes]:
    keys = [root]
    for i in range(len(tokens) // size):
        keys.append(block_key(keys[-1], tokens[i * size : (i + 1) * size]))
    return keys[1:]


def publish(cache: PrefixCache, tokens: list[int], root: bytes = ROOT, size: int = SIZE) -> list[int]:
    """Compute every full block of `tokens` anew, publish it and let go of it; the last block first."""
    chain = [root, *keys_of(tokens, root, size)]
    blocks = []
    for i in range(len(tokens) // size):
        blocks.append(cache.pool.take())
        cache.publish(blocks[-1], chain[i + 1], chain[i], tuple(tokens[i * size : (i + 1) * size]), "s", i)
    for block in reversed(blocks):
        cache.pool.drop(block)
    return blocks


def lookup(cache: PrefixCache, tokens: list[int], root: bytes = ROOT) -> tuple[list[int], Miss | None]:
    """What a new request of these tokens hits, and why no more."""
    keys = keys_of(tokens, root)
    hits = cache.match(keys[: (len(tokens) - 1) // SIZE], tokens)
    return hits, cache.explain(keys, root, tokens, len(hits))


# --- keys ---------------------------------------------------------------------------------------------------------


def test_a_key_depends_on_parent_tokens_model_and_salt():
    tokens = [1, 2, 3, 4]
    others = [
        block_key(ROOT, [1, 2, 3, 5]),
        block_key(block_key(ROOT, tokens), tokens),
        block_key(root_key("model", "salt"), tokens),
        block_key(root_key("other"), tokens),
    ]
    assert len({block_key(ROOT, tokens), *others}) == 5
    assert root_key("ab", "c") != root_key("a", "bc")  # the parts cannot run into each other


def test_keys_are_stable_across_processes():
    code = (
        "from mini_infer.cache.prefix_cache import block_key, root_key;"
        "print(block_key(root_key('model', 'salt'), [1, 2, 151935, 4]).hex())"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert found == {block_key(root_key("model", "salt"), [1, 2, 151935, 4]).hex()}


# --- match and publish --------------------------------------------------------------------------------------------


def test_match_finds_the_longest_published_prefix():
    cache = make()
    blocks = publish(cache, list(range(12)))
    assert cache.match(keys_of(list(range(12))), list(range(12))) == blocks
    other = [*range(8), 9, 9, 9, 9]
    assert cache.match(keys_of(other), other) == blocks[:2]
    assert cache.match(keys_of([5, *range(11)]), [5, *range(11)]) == []


def test_a_later_block_is_not_found_without_its_parent():
    cache = make()
    blocks = publish(cache, list(range(12)))
    cache.unpublish(blocks[1])
    assert cache.match(keys_of(list(range(12))), list(range(12))) == blocks[:1]


def test_of_two_blocks_with_one_key_the_first_stays_and_the_newcomer_is_unhashed():
    cache = make()
    (first,) = publish(cache, [1, 2, 3, 4])
    (second,) = publish(cache, [1, 2, 3, 4])
    assert first != second
    assert cache.pool.key[second] is None
    assert cache.match(keys_of([1, 2, 3, 4]), [1, 2, 3, 4]) == [first]
    assert cache.pool.free_list()[0] == second  # used first: nobody can find it


def test_a_collision_of_keys_is_no_hit():
    cache = make()
    ours, theirs = [1, 2, 3, 4, 0], [5, 6, 7, 8, 0]
    block = cache.pool.take()
    cache.publish(block, b"collides", ROOT, (5, 6, 7, 8), "s", 0)
    assert cache.match([b"collides"], theirs) == [block]
    assert cache.match([b"collides"], ours) == []
    assert cache.explain([b"collides"], ROOT, ours, 0) == Miss("DIFF", 0, (1, 2, 3, 4), (5, 6, 7, 8))


def test_a_block_is_not_published_twice_under_two_keys():
    cache = make()
    block = cache.pool.take()
    assert cache.publish(block, b"one", ROOT, (1, 2, 3, 4), "s", 0)
    assert not cache.publish(block, b"two", ROOT, (1, 2, 3, 4), "s", 0)
    assert list(cache.entries) == [b"one"]


def test_switched_off_it_keeps_nothing_and_says_nothing():
    cache = make(enabled=False)
    publish(cache, list(range(8)))
    assert cache.entries == {}
    assert lookup(cache, list(range(9))) == ([], None)
    assert set(cache.pool.key) == {None}


def test_its_changes_are_noted_for_observers():
    cache = make()
    cache.pool.moves = []
    (block,) = publish(cache, [1, 2, 3, 4])
    cache.unpublish(block)
    key = keys_of([1, 2, 3, 4])[0].hex()
    assert cache.pool.moves == [BlockMove("hash", block, "s", 0, key, ROOT.hex()), BlockMove("unhash", block)]


def test_clear_forgets_free_and_used_blocks_and_leaves_no_trace():
    cache = make(num_blocks=4)
    publish(cache, list(range(12)))
    held = cache.match(keys_of(list(range(12))), list(range(12)))[0]
    cache.pool.hold(held)
    publish(cache, [9] * 8)  # evicts two of the chain
    cache.clear()
    assert cache.entries == {}
    assert cache.pool.num_cached == 0
    assert cache.pool.ref[held] == 1
    assert lookup(cache, list(range(13)))[1] == Miss("NEVER_SEEN", 0)


# --- why it missed ------------------------------------------------------------------------------------------------


def test_never_seen():
    cache = make()
    assert lookup(cache, list(range(9))) == ([], Miss("NEVER_SEEN", 0))
    blocks = publish(cache, list(range(4)))
    assert lookup(cache, list(range(9))) == (blocks, Miss("NEVER_SEEN", 4))


def test_diff_names_the_first_token_that_differs_and_both_sides():
    cache = make()
    blocks = publish(cache, [1, 2, 3, 4, 5, 6, 7, 8])
    assert lookup(cache, [1, 2, 3, 4, 5, 6, 9, 8, 0]) == (blocks[:1], Miss("DIFF", 6, (9, 8), (7, 8)))
    assert lookup(cache, [0, 2, 3, 4, 5]) == ([], Miss("DIFF", 0, (0, 2, 3, 4), (1, 2, 3, 4)))


def test_diff_shows_the_closest_child_and_at_most_eight_tokens():
    cache = PrefixCache(BlockPool(16, 16))
    near, far = [1, 2, 3, *range(20, 33)], [1, 9, *range(20, 34)]
    publish(cache, near, size=16)
    publish(cache, far, size=16)
    ours = [1, 2, 4, *range(20, 33)]
    miss = cache.explain([block_key(ROOT, ours)], ROOT, ours, 0)
    assert miss == Miss("DIFF", 2, (4, *range(20, 27)), (3, *range(20, 27)))


def test_diff_compares_with_the_eight_most_recent_children():
    cache = make()
    publish(cache, [1, 2, 3, 0])
    for i in range(7):
        publish(cache, [1, 20 + i, 0, 0])
    assert lookup(cache, [1, 2, 3, 4, 5])[1] == Miss("DIFF", 3, (4,), (0,))
    publish(cache, [1, 30, 0, 0])  # now the closest is the ninth
    assert lookup(cache, [1, 2, 3, 4, 5])[1] == Miss("DIFF", 1, (2, 3, 4), (30, 0, 0))


def test_partial_where_less_than_a_block_is_left():
    cache = make()
    blocks = publish(cache, list(range(8)))
    assert lookup(cache, list(range(9))) == (blocks, Miss("PARTIAL", 8))
    assert lookup(cache, [0, 1, 2]) == ([], Miss("PARTIAL", 0))


def test_last_token_where_the_cap_alone_ended_the_hit():
    cache = make()
    blocks = publish(cache, list(range(8)))
    assert lookup(cache, list(range(8))) == (blocks[:1], Miss("LAST_TOKEN", 4))


def test_at_the_cap_a_block_that_is_not_there_is_no_last_token():
    cache = make()
    blocks = publish(cache, list(range(4)))
    assert lookup(cache, list(range(8))) == (blocks, Miss("NEVER_SEEN", 4))


def test_salt_where_others_have_the_same_first_block():
    cache = make()
    publish(cache, list(range(8)), root_key("model", "mine"))
    assert lookup(cache, list(range(9)), root_key("model", "yours")) == ([], Miss("SALT", 0))
    assert lookup(cache, [9, *range(8)], root_key("model", "yours")) == ([], Miss("NEVER_SEEN", 0))


def test_salt_is_said_no_more_once_the_other_block_is_gone():
    cache = make(num_blocks=2)
    publish(cache, list(range(4)), root_key("model", "mine"))
    publish(cache, [8] * 8, root_key("model", "mine"))
    assert lookup(cache, list(range(5)), root_key("model", "yours"))[1] == Miss("NEVER_SEEN", 0)


def test_evicted_says_when():
    cache = make(num_blocks=2)
    publish(cache, list(range(8)))
    cache.step = 41
    publish(cache, [9] * 4)  # takes the last block of the chain
    cache.step = 50
    hits, miss = lookup(cache, list(range(9)))
    assert (len(hits), miss) == (1, Miss("EVICTED", 4, step=41))


def test_what_comes_back_is_not_called_evicted():
    cache = make(num_blocks=2)
    publish(cache, list(range(8)))
    publish(cache, [9] * 8)
    publish(cache, list(range(8)))
    assert lookup(cache, list(range(9)))[1] == Miss("PARTIAL", 8)


def test_what_was_unpublished_is_not_called_evicted():
    cache = make()
    for block in publish(cache, list(range(4))):
        cache.unpublish(block)
    assert lookup(cache, list(range(5)))[1] == Miss("NEVER_SEEN", 0)


def test_the_last_1024_evicted_keys_are_remembered():
    assert EVICTED_KEPT == 1024
    cache = make(num_blocks=1)
    prompts = [[i, i, i, i] for i in range(EVICTED_KEPT + 2)]
    for i, prompt in enumerate(prompts):
        cache.step = i
        publish(cache, prompt)  # evicts the one before
    forgotten, oldest, newest = prompts[0], prompts[1], prompts[-2]
    assert lookup(cache, [*forgotten, 0])[1].kind == "DIFF"
    assert lookup(cache, [*oldest, 0])[1] == Miss("EVICTED", 0, step=2)
    assert lookup(cache, [*newest, 0])[1] == Miss("EVICTED", 0, step=EVICTED_KEPT + 1)
    assert len(cache._evicted) == EVICTED_KEPT


def test_nothing_is_left_of_blocks_that_are_gone():
    cache = make(num_blocks=4)
    for i in range(3):
        publish(cache, [i] * 16)
    cache.clear()
    assert (cache.entries, cache._children, cache._unsalted, len(cache._evicted)) == ({}, {}, {}, 0)
