"""Random numbers are a pure function of their key, uniform, and independent between keys."""

from __future__ import annotations

import itertools

import numpy
from scipy.stats import chisquare, kstest

from mini_infer.sampling.random import Purpose, uniform

KNOWN = (0.9582277020238681, 0.31136076088942, 0.7611784982123606)


def test_numbers_are_the_same_in_every_process_and_version():
    assert uniform(0, 0, 0, Purpose.SAMPLE) == KNOWN[0]
    assert uniform(1234, 2, 77, Purpose.ACCEPT) == KNOWN[1]
    assert uniform(2**64 - 1, 1, 10**6, Purpose.RESIDUAL) == KNOWN[2]
    assert uniform(-1, 1, 10**6, Purpose.RESIDUAL) == KNOWN[2]


def test_every_part_of_the_key_changes_the_number():
    base = (5, 0, 9, Purpose.SAMPLE)
    others = [(6, 0, 9, Purpose.SAMPLE), (5, 1, 9, Purpose.SAMPLE), (5, 0, 10, Purpose.SAMPLE)]
    others += [(5, 0, 9, purpose) for purpose in Purpose if purpose is not Purpose.SAMPLE]
    assert len({uniform(*key) for key in [base, *others]}) == 7


def test_numbers_are_uniform_along_each_part_of_the_key():
    runs = [
        [uniform(3, 0, i, Purpose.SAMPLE) for i in range(20_000)],
        [uniform(i, 0, 7, Purpose.DRAFT) for i in range(20_000)],
        [uniform(3, i, 7, Purpose.RESIDUAL) for i in range(20_000)],
    ]
    for run in runs:
        assert all(0.0 <= u < 1.0 for u in run)
        assert kstest(run, "uniform").pvalue > 1e-4


def test_numbers_of_neighbouring_keys_are_independent():
    seeds = {
        "position": lambda i: (uniform(1, 0, i, Purpose.SAMPLE), uniform(1, 0, i + 1, Purpose.SAMPLE)),
        "choice": lambda i: (uniform(1, 0, i, Purpose.SAMPLE), uniform(1, 1, i, Purpose.SAMPLE)),
        "seed": lambda i: (uniform(i, 0, 4, Purpose.SAMPLE), uniform(i + 1, 0, 4, Purpose.SAMPLE)),
        "purpose": lambda i: (uniform(1, 0, i, Purpose.ACCEPT), uniform(1, 0, i, Purpose.RESIDUAL)),
    }
    for pair in seeds.values():
        pairs = numpy.array([pair(i) for i in range(20_000)])
        cells = (pairs * 8).astype(int)
        counts = [
            int(((cells[:, 0] == a) & (cells[:, 1] == b)).sum()) for a, b in itertools.product(range(8), repeat=2)
        ]
        assert chisquare(counts).pvalue > 1e-4
