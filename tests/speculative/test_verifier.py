"""The verifier alone: exact where all can be enumerated, chi-square where not, and by hand at the edges."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from fractions import Fraction

import pytest
import torch

from mini_infer.sampling.distribution import Categorical, Distributions, Group
from mini_infer.sampling.random import Purpose
from mini_infer.speculative import verifier
from mini_infer.speculative.verifier import Round, verify
from tests.sampling import naive

GRID = 12  # every number up to 4 divides it: acceptance ratios and residuals of quarters are multiples of 1/12


def target(rows) -> Distributions:
    probs = torch.tensor(rows, dtype=torch.float64)
    return Distributions([Group(range(len(rows)), probs)], {}, {}, probs[:0])


def categorical(probs) -> Categorical:
    return Categorical(torch.tensor(probs, dtype=torch.float64))


def numbers(**fixed):
    """Numbers by purpose; a list is read by position."""
    table = {Purpose[name.upper()]: value for name, value in fixed.items()}
    return lambda j, purpose: table[purpose][j] if isinstance(table[purpose], list) else table[purpose]


def quarters(rng: random.Random, vocab_size: int) -> list[Fraction]:
    """A random distribution of multiples of 1/4: most tokens have none."""
    counts = Counter(rng.randrange(vocab_size) for _ in range(4))
    return [Fraction(counts[i], 4) for i in range(vocab_size)]


def enumerate_outputs(p_of, q_of, vocab_size, num_drafts):
    """The exact probability of every output, as a sum over all drafts and a grid of midpoints for every number.

    `p_of` and `q_of` give the distribution after a prefix; a `q_of` of None is a proposer that names token 1.
    """
    midpoints = [(2 * i + 1) / (2 * GRID) for i in range(GRID)]
    rows, rounds, weights = [], [], []
    one_hot = [Fraction(int(i == 1)) for i in range(vocab_size)]
    for drafts in itertools.product(range(vocab_size), repeat=num_drafts):
        q = [q_of(drafts[:j]) if q_of else one_hot for j in range(num_drafts)]
        weight = Fraction(1)
        for j, draft in enumerate(drafts):
            weight *= q[j][draft]
        if not weight:
            continue
        p = [[float(x) for x in p_of(drafts[:j])] for j in range(num_drafts + 1)]
        proposal = [categorical([float(x) for x in row]) for row in q] if q_of else None
        for accept in itertools.product(midpoints, repeat=num_drafts):
            for last in midpoints:
                number = numbers(accept=list(accept), residual=last, sample=last)
                rounds.append(Round(len(rows), drafts, proposal, number))
                rows += p
                weights.append(weight / GRID ** (num_drafts + 1))
    outputs: Counter[tuple[int, ...]] = Counter()
    for outcome, weight in zip(verify(target(rows), rounds), weights, strict=True):
        outputs[outcome.tokens] += weight
    return outputs


def is_exact(outputs, p_of, vocab_size, num_drafts) -> bool:
    """Wherever an output goes on after a prefix, it goes on as the target's distribution says, exactly."""
    for length in range(num_drafts + 1):
        for prefix in itertools.product(range(vocab_size), repeat=length):
            after = [
                sum(w for out, w in outputs.items() if out[: length + 1] == (*prefix, x)) for x in range(vocab_size)
            ]
            if any(after[x] != p_of(prefix)[x] * sum(after) for x in range(vocab_size)):
                return False
    return True


def random_models(seed, vocab_size):
    """Two models that answer a prefix with quarters, each in its own way."""
    known = {}

    def model(name):
        return lambda prefix: known.setdefault(
            (name, prefix), quarters(random.Random(f"{seed} {name} {prefix}"), vocab_size)
        )

    return model("p"), model("q")


CASES = [(5, 1, seed) for seed in range(8)] + [(3, 2, 0), (4, 2, 1), (4, 2, 2)]


@pytest.mark.parametrize(("vocab_size", "num_drafts", "seed"), CASES)
def test_the_sum_over_all_paths_is_the_target_distribution(vocab_size, num_drafts, seed):
    p_of, q_of = random_models(seed, vocab_size)
    outputs = enumerate_outputs(p_of, q_of, vocab_size, num_drafts)
    assert sum(outputs.values()) == 1
    assert is_exact(outputs, p_of, vocab_size, num_drafts)


@pytest.mark.parametrize("num_drafts", [1, 2])
def test_edge_pairs_are_exact_too(num_drafts):
    p_of, _ = random_models(5, 4)
    half = Fraction(1, 2)
    left, right = (lambda _: [half, half, 0, 0]), (lambda _: [0, 0, half, half])
    assert is_exact(enumerate_outputs(p_of, p_of, 4, num_drafts), p_of, 4, num_drafts)  # q = p
    assert is_exact(enumerate_outputs(left, right, 4, num_drafts), left, 4, num_drafts)  # disjoint
    assert is_exact(enumerate_outputs(p_of, None, 4, num_drafts), p_of, 4, num_drafts)  # one-hot
    every = lambda _: [Fraction(1, 4)] * 4  # noqa: E731
    assert is_exact(enumerate_outputs(every, None, 4, num_drafts), every, 4, num_drafts)


def swapped(p, rounds):
    return {key: (of_q, of_p) for key, (of_p, of_q) in REAL_PROBABILITIES(p, rounds).items()}


def draw_from_p(p, rejected):
    return {r.first: p.draw({r.first + j: r.number(j, Purpose.RESIDUAL)})[r.first + j] for r, j in rejected}


def always_accept(p, rounds):
    return dict.fromkeys(REAL_PROBABILITIES(p, rounds), (1.0, 0.0))


REAL_PROBABILITIES = verifier._probabilities
SABOTAGE = {
    "p and q swapped": ("_probabilities", swapped),
    "residual is p": ("_replacements", draw_from_p),
    "always accept": ("_probabilities", always_accept),
}


@pytest.mark.parametrize("fault", SABOTAGE)
def test_the_enumeration_notices_a_sabotaged_verifier(monkeypatch, fault):
    monkeypatch.setattr(verifier, *SABOTAGE[fault])
    p_of, q_of = random_models(3, 5)
    assert p_of(()) != q_of(())
    assert not is_exact(enumerate_outputs(p_of, q_of, 5, 1), p_of, 5, 1)


P = [[0.3, 0.25, 0.2, 0.15, 0.1, 0.0], [0.05, 0.05, 0.6, 0.1, 0.1, 0.1], [0.5, 0.0, 0.5, 0.0, 0.0, 0.0], [1 / 6] * 6]
Q = [[0.1, 0.1, 0.3, 0.2, 0.2, 0.1], [0.5, 0.1, 0.1, 0.1, 0.1, 0.1], [0.25, 0.25, 0.2, 0.1, 0.1, 0.1]]
Q_ZEROS = [[0.0, 0.5, 0.0, 0.5, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0, 0.0, 0.0]]


@pytest.mark.parametrize(("p", "q", "count"), [(P, Q, 60_000), (P, Q_ZEROS, 20_000), (P, None, 20_000)])
def test_P01_every_position_follows_the_target(p, q, count):
    rng = random.Random(0)
    proposal = [categorical(row) for row in q] if q else None
    rounds = [
        Round(
            4 * i,
            tuple(rng.choices(range(6), row)[0] for row in q) if q else (0, 2, 2),
            proposal,
            lambda j, purpose: rng.random(),
        )
        for i in range(count)
    ]
    probs = torch.tensor(p, dtype=torch.float64).repeat(count, 1)
    outcomes = verify(Distributions([Group(range(4 * count), probs)], {}, {}, probs[:0]), rounds)
    for position in range(4):
        tokens = [o.tokens[position] for o in outcomes if len(o.tokens) > position]
        assert len(tokens) > 500
        assert naive.p_value(tokens, p[position]) > 0.001


def test_a_wide_vocabulary_follows_the_target_whatever_the_form_of_p_and_q():
    """p sparse and q dense and narrower, and the other way round, on 300 tokens."""
    generator = torch.Generator().manual_seed(0)
    count = 20_000
    wide = torch.randn(300, generator=generator, dtype=torch.float64).mul(1.5).softmax(0)
    ids = torch.randperm(300, generator=generator)[:40].sort().values
    few = torch.randn(40, generator=generator, dtype=torch.float64).softmax(0)
    narrow = torch.randn(280, generator=generator, dtype=torch.float64).softmax(0)
    for p, q in [(Categorical(few, ids), Categorical(narrow)), (Categorical(wide), Categorical(few, ids))]:
        drafts = torch.multinomial(q.dense(300), count, replacement=True, generator=generator).tolist()
        u = torch.rand(count, 3, generator=generator, dtype=torch.float64).tolist()
        group = Group(
            range(2 * count), p.probs.expand(2 * count, -1), None if p.ids is None else p.ids.expand(2 * count, -1)
        )
        rounds = [
            Round(2 * i, (drafts[i],), (q,), lambda j, purpose, mine=u[i]: mine[purpose % 3]) for i in range(count)
        ]
        outcomes = verify(Distributions([group], {}, {}, wide[None, :300][:0]), rounds)
        first = [o.tokens[0] for o in outcomes]
        assert naive.p_value(first, p.dense(300).tolist()) > 1e-4
        assert naive.p_value([o.tokens[1] for o in outcomes if len(o.tokens) == 2], p.dense(300).tolist()) > 1e-4


def test_outcomes_by_hand():
    p = target([[0.5, 0.5, 0.0], [0.2, 0.8, 0.0], [0.0, 0.0, 1.0]])
    q = [categorical([1.0, 0.0, 0.0]), categorical([0.0, 1.0, 0.0])]

    def judge(drafts, accept, residual=0.5, sample=0.5):
        return verify(p, [Round(0, drafts, q, numbers(accept=accept, residual=residual, sample=sample))])[0]

    all_kept = judge((0, 1), [0.49, 0.79])
    assert all_kept.tokens == (0, 1, 2)
    assert [(j.draft, j.accepted, j.p, j.q, j.u) for j in all_kept.judged] == [
        (0, True, 0.5, 1.0, 0.49),
        (1, True, 0.8, 1.0, 0.79),
    ]
    second_rejected = judge((0, 1), [0.49, 0.81])
    assert second_rejected.tokens == (0, 0)  # max(0, p - q) leaves only token 0
    assert [j.accepted for j in second_rejected.judged] == [True, False]
    first_rejected = judge((0, 1), [0.5, 0.0])  # u < p / q is strict
    assert first_rejected.tokens == (1,)
    assert len(first_rejected.judged) == 1
    assert judge((), []).tokens in [(0,), (1,)]


def test_a_round_is_the_same_alone_and_in_a_batch_of_different_lengths():
    rng = random.Random(1)
    generator = torch.Generator().manual_seed(1)
    rows, rounds = 0, []
    for i, length in enumerate([0, 3, 1, 8, 2, 0, 4]):
        q = [Categorical(torch.randn(50, generator=generator, dtype=torch.float64).softmax(0)) for _ in range(length)]
        drafts = tuple(int(one.probs.argmax()) for one in q)
        fixed = {(j, purpose): rng.random() for j in range(9) for purpose in Purpose}
        rounds.append(
            Round(rows, drafts, q if i % 3 else None, lambda j, purpose, f=fixed: f[j, purpose], coupled=i == 3)
        )
        rows += length + 1
    probs = torch.randn(rows, 50, generator=generator, dtype=torch.float64).softmax(-1)
    p = Distributions([Group(range(rows), probs)], {}, {}, probs[:0])
    together = verify(p, rounds)
    assert [verify(p, [one])[0] for one in rounds] == together
    assert verify(p, rounds[::-1]) == together[::-1]
    assert all(1 <= len(o.tokens) <= len(r.drafts) + 1 for o, r in zip(together, rounds, strict=True))


def test_q_equal_to_p_is_always_accepted():
    generator = torch.Generator().manual_seed(2)
    probs = torch.randn(400, 40, generator=generator, dtype=torch.float64).softmax(-1)
    p = Distributions([Group(range(400), probs)], {}, {}, probs[:0])
    rounds = [
        Round(
            2 * i,
            (int(torch.multinomial(probs[2 * i], 1, generator=generator)),),
            (p[2 * i],),
            numbers(accept=1 - 2**-53, sample=0.5),
        )
        for i in range(200)
    ]
    assert all(len(o.tokens) == 2 for o in verify(p, rounds))


def test_a_residual_of_nothing_falls_back_to_p():
    """Rounding can reject a draft although p = q everywhere, or p < q by a hair."""
    p = target([[0.25, 0.75], [0.5, 0.5]])
    q = [categorical([0.25 + 1e-12, 0.75 + 1e-12])]
    outcome = verify(p, [Round(0, (0,), q, numbers(accept=1 - 2**-53, residual=0.9))])[0]
    assert outcome.tokens == (1,)
    assert not outcome.judged[0].accepted


def test_the_coupled_rule_emits_what_plain_sampling_would():
    p = target([[0.5, 0.5, 0.0], [0.2, 0.8, 0.0], [0.0, 0.0, 1.0]])
    rows = [0.7, 0.1, 0.3]
    plain = [p.draw({j: u})[j] for j, u in enumerate(rows)]
    assert plain == [1, 0, 2]
    for drafts, expected in [((1, 0), (1, 0, 2)), ((1, 1), (1, 0)), ((0, 0), (1,)), ((1,), (1, 0)), ((), (1,))]:
        outcome = verify(p, [Round(0, drafts, None, numbers(sample=rows), coupled=True)])[0]
        assert outcome.tokens == expected
        assert [j.accepted for j in outcome.judged] == [True] * (len(expected) - 1) + [False] * (
            len(drafts) >= len(expected)
        )
        assert all(j.u == rows[i] and j.q == 1.0 for i, j in enumerate(outcome.judged))


def test_greedy_rounds_are_argmax_equality_without_numbers():
    p = Distributions([], {0: 5, 1: 6, 2: 7}, {}, torch.empty(0, 9))

    def no_number(j, purpose):
        raise AssertionError("a greedy round asked for a random number")

    for drafts, expected in [((5, 6), (5, 6, 7)), ((5, 7), (5, 6)), ((4, 6), (5,))]:
        outcome = verify(p, [Round(0, drafts, None, no_number)])[0]
        assert outcome.tokens == expected
        assert all(j.p is j.q is j.u is None for j in outcome.judged)
