"""n-gram drafts: what followed the last few tokens before."""

from __future__ import annotations

import gc
import random

from mini_infer.cache.block_pool import BlockPool
from mini_infer.cache.block_table import BlockTable
from mini_infer.sampling.params import SamplingParams
from mini_infer.scheduler.sequence import Sequence
from mini_infer.speculative.adaptive import Fixed
from mini_infer.speculative.prompt_lookup import LONGEST, SHORTEST, PromptLookup, _Index


def lookup(tokens: list[int], k: int) -> list[int]:
    index = _Index()
    index.update(tokens)
    return list(index.lookup(tokens, k))


def naive(tokens: list[int], k: int) -> list[int]:
    """The same by looking at every place: the longest n-gram first, the latest place of it."""
    for n in range(min(LONGEST, len(tokens) - 1), SHORTEST - 1, -1):
        for at in range(len(tokens) - 1, n - 1, -1):
            if tokens[at - n : at] == tokens[-n:]:
                found = list(tokens)
                for i in range(k):
                    found.append(found[at + i])
                return found[len(tokens) :]
    return []


def sequence(tokens: list[int]) -> Sequence:
    table = BlockTable(BlockPool(2, 4), "a")
    return Sequence("a", "a", 0, tokens, 1, SamplingParams(), 0, 1, table, b"", 100)


def test_what_followed_the_same_tokens_is_proposed():
    assert lookup([1, 2, 3, 4, 5, 6, 1, 2, 3], 2) == [4, 5]
    assert lookup([1, 2, 3, 4], 3) == []
    assert lookup([7], 3) == lookup([], 3) == lookup([7, 7], 3) == []


def test_the_longest_match_wins_and_of_equals_the_latest():
    assert lookup([1, 2, 3, 9, 8, 2, 3, 7, 7, 1, 2, 3], 1) == [9]
    assert lookup([2, 3, 9, 2, 3, 8, 5, 2, 3], 1) == [8]


def test_a_repetition_that_reaches_the_end_goes_on():
    assert lookup([5, 1, 2, 1, 2, 1, 2], 5) == [1, 2, 1, 2, 1]
    assert lookup([4, 4, 4], 8) == [4] * 8


def test_it_equals_a_search_of_every_place_however_the_tokens_come():
    rng = random.Random(0)
    for _ in range(300):
        tokens = [rng.randrange(rng.choice((2, 3, 6))) for _ in range(rng.randrange(60))]
        index, known = _Index(), 0
        while known < len(tokens):
            known = min(len(tokens), known + rng.randrange(1, 6))
            index.update(tokens[:known])
            for k in (1, 4, 8):
                assert list(index.lookup(tokens[:known], k)) == naive(tokens[:known], k)


def test_an_index_grows_with_its_sequence_and_goes_with_it():
    proposer = PromptLookup(Fixed(4))
    seq = sequence([1, 2, 3, 1, 2])
    assert proposer.wants(seq) == (4, None)
    seq.tokens += [9, 1, 2]
    assert proposer._drafts(seq, 2) == (9, 1)
    assert proposer.wants(sequence([1, 2, 3])) == (0, "NO_MATCH")
    assert proposer.wants(sequence([1, 2, 3])) == (0, "NO_MATCH")
    gc.collect()
    assert len(proposer._indexes) == 1
    del seq
    gc.collect()
    assert len(proposer._indexes) == 0


def test_each_token_is_entered_once():
    tokens = [i % 50 for i in range(2000)]
    index, entered = _Index(), 0

    class Counting(dict):
        def __setitem__(self, key: object, value: object) -> None:
            nonlocal entered
            entered += 1
            super().__setitem__(key, value)

    index.ends = Counting()
    for end in range(1, len(tokens) + 1):
        index.update(tokens[:end])
    assert entered <= (LONGEST - SHORTEST + 1) * len(tokens)
