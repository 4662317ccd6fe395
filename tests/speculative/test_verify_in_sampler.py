"""Speculation through the sampler, on two toy models whose logits depend on the last token alone."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from mini_infer.sampling import sampler as sampler_module
from mini_infer.sampling.distribution import shape_logits
from mini_infer.sampling.params import SamplingParams
from mini_infer.sampling.random import Purpose, uniform
from mini_infer.sampling.rows import RowContext, SampleRow
from mini_infer.sampling.sampler import Sampler
from mini_infer.speculative import verifier
from tests.sampling import naive

VOCAB = 8
PROMPT = [1, 2, 1]
GENERATOR = torch.Generator().manual_seed(21)
TARGET = torch.randn(VOCAB, VOCAB, generator=GENERATOR, dtype=torch.float64) * 1.5
DRAFT = TARGET + torch.randn(VOCAB, VOCAB, generator=GENERATOR, dtype=torch.float64)
STOP = frozenset([0])


def sample_rows(sequences, params, seeds, drafts):
    rows, place = [], 0
    for i, tokens in enumerate(sequences):
        rows.append(
            SampleRow(f"s{i}", place, params[i], seeds[i], 0, len(tokens), len(PROMPT), tokens, STOP, drafts[i])
        )
        place += 1 + len(drafts[i])
    return rows


def propose(sequences, params, seeds, ks):
    """Drafts of every sequence and the distributions they were drawn from, one token for all at a time."""
    drafts = [() for _ in sequences]
    q = {f"s{i}": [] for i in range(len(sequences))}
    for j in range(max(ks)):
        active = [i for i, k in enumerate(ks) if j < k]
        logits = DRAFT[[(drafts[i] or sequences[i])[-1] for i in active]]
        contexts = [
            RowContext(g, params[i].shaping, sequences[i], len(PROMPT), STOP, drafts[i]) for g, i in enumerate(active)
        ]
        dists = shape_logits(logits, contexts)
        purposes = [Purpose.DRAFT if params[i].seed is None else Purpose.SAMPLE for i in active]
        at = [len(sequences[i]) + j for i in active]
        drawn = dists.draw({g: uniform(seeds[i], 0, at[g], purposes[g]) for g, i in enumerate(active)})
        for g, i in enumerate(active):
            drafts[i] += (drawn[g],)
            q[f"s{i}"].append(dists[g])
    return drafts, q


def step(sequences, params, seeds, ks, **options):
    drafts, q = propose(sequences, params, seeds, ks) if max(ks) else ([()] * len(sequences), {})
    rows = sample_rows(sequences, params, seeds, drafts)
    after = [token for tokens, drafted in zip(sequences, drafts, strict=True) for token in (tokens[-1], *drafted)]
    return Sampler().resolve(TARGET[after], rows, q, **options)


def generate(params, seeds, ks, length):
    sequences = [list(PROMPT) for _ in params]
    while unfinished := [i for i, s in enumerate(sequences) if len(s) < len(PROMPT) + length]:
        verdicts = step(*([part[i] for i in unfinished] for part in (sequences, params, seeds, ks)))
        for i, verdict in zip(unfinished, verdicts, strict=True):
            sequences[i] += verdict.tokens
    return [s[len(PROMPT) :][:length] for s in sequences]


SHAPED = SamplingParams(
    temperature=0.9, top_p=0.9, frequency_penalty=1.5, repetition_penalty=1.3, logit_bias={3: 1.0}, min_tokens=2
)


def joint(params, length):
    """The exact distribution of the first `length` tokens, from the naive reference."""
    probs = {(): 1.0}
    for _ in range(length):
        longer = {}
        for prefix, weight in probs.items():
            tokens = [*PROMPT, *prefix]
            step_probs = naive.distribution(TARGET[tokens[-1]].tolist(), params, tokens, len(PROMPT), STOP)
            longer |= {(*prefix, x): weight * step_probs[x] for x in range(VOCAB)}
        probs = longer
    return probs


def p_value_of_three(seed_base, count=4_000):
    """20,000 take too long here; the end-to-end test of the engine draws them."""
    params = [SHAPED] * count
    answers = generate(params, [seed_base * 10**6 + i for i in range(count)], [i % 3 + 1 for i in range(count)], 3)
    cells = {tokens: i for i, tokens in enumerate(itertools.product(range(VOCAB), repeat=3))}
    expected = joint(SHAPED, 3)
    return naive.p_value([cells[tuple(answer)] for answer in answers], [expected[tokens] for tokens in cells])


@pytest.mark.parametrize("seed_base", range(3))
def test_unseeded_answers_with_speculation_follow_the_target(seed_base):
    assert p_value_of_three(seed_base) > 1e-4


REAL_PROBABILITIES = verifier._probabilities
REAL_CONTEXT = SampleRow.context
SABOTAGE = {
    "always accept": (verifier, "_probabilities", lambda p, r: dict.fromkeys(REAL_PROBABILITIES(p, r), (1.0, 0.0))),
    "residual is p": (
        verifier,
        "_replacements",
        lambda p, rejected: {
            r.first: p.draw({r.first + j: r.number(j, Purpose.RESIDUAL)})[r.first + j] for r, j in rejected
        },
    ),
    "p and q swapped": (
        verifier,
        "_probabilities",
        lambda p, r: {key: (b, a) for key, (a, b) in REAL_PROBABILITIES(p, r).items()},
    ),
    "penalties ignore the drafts": (
        SampleRow,
        "context",
        lambda row, judged=0: replace(REAL_CONTEXT(row, judged), drafts=()),
    ),
}


@pytest.mark.parametrize("fault", SABOTAGE)
def test_a_sabotaged_verifier_is_noticed(monkeypatch, fault):
    monkeypatch.setattr(*SABOTAGE[fault])
    assert p_value_of_three(0) < 1e-6


def test_seeded_answers_are_the_same_whatever_k_and_batch():
    params = [replace(SHAPED, seed=seed, top_k=(0, 3)[seed % 2]) for seed in range(200)]
    seeds = list(range(200))
    without = generate(params, seeds, [0] * 200, 12)
    assert len({tuple(answer) for answer in without}) > 150
    for ks in ([1] * 200, [4] * 200, [i % 9 for i in range(200)]):
        assert generate(params, seeds, ks, 12) == without
    assert [generate([p], [s], [3], 12)[0] for p, s in zip(params[:20], seeds[:20], strict=True)] == without[:20]


def test_greedy_answers_are_the_same_with_speculation():
    params = [
        SamplingParams(temperature=0),
        SamplingParams(temperature=0, repetition_penalty=1.5, presence_penalty=0.7, min_tokens=4),
        SamplingParams(temperature=1.0, top_k=1, frequency_penalty=0.8, seed=5),
        SamplingParams(temperature=0, logit_bias={3: 2.0}),
    ]
    without = generate(params, [0] * 4, [0] * 4, 15)
    for k in range(1, 9):
        assert generate(params, [0] * 4, [k] * 4, 15) == without
    assert generate(params, [0] * 4, [3, 0, 8, 1], 15) == without


def test_P03_temperatures_0_and_1e_6_beside_a_sampled_request():
    params = [SamplingParams(temperature=t) for t in (0, 0.7, 1e-6)]
    sequences = [list(PROMPT) for _ in params]
    plain = generate(params[:1], [0], [0], 20)[0]
    while min(len(s) for s in sequences) < len(PROMPT) + 20:
        verdicts = step(sequences, params, [1, 2, 3], [4, 4, 4])
        for tokens, verdict in zip(sequences, verdicts, strict=True):
            assert verdict.error is None
            assert 0 <= sum(j.accepted for j in verdict.judged) == len(verdict.tokens) - 1 <= 4
            tokens += verdict.tokens
    assert sequences[0][len(PROMPT) :][:20] == sequences[2][len(PROMPT) :][:20] == plain


def test_one_batch_mixes_every_rule_and_length():
    params = [
        SamplingParams(temperature=0),
        SHAPED,
        replace(SHAPED, seed=4),
        SamplingParams(temperature=2, top_k=5),
    ] * 2
    ks = [2, 3, 1, 4, 0, 0, 0, 0]
    sequences = [list(PROMPT) for _ in params]
    together = step(sequences, params, list(range(8)), ks)
    for i in range(8):
        (alone,) = step(sequences[i : i + 1], params[i : i + 1], [i], ks[i : i + 1])
        assert replace(alone, seq_id=together[i].seq_id) == together[i]


def test_logprobs_come_one_per_token_from_the_raw_rows():
    params = replace(SHAPED, logprobs=2)
    sequences = [list(PROMPT)] * 50
    for verdict in step(sequences, [params] * 50, list(range(50)), [3] * 50):
        assert len(verdict.logprobs) == len(verdict.tokens)
        last = PROMPT[-1]
        for token, found in zip(verdict.tokens, verdict.logprobs, strict=True):
            assert found.token_id == token
            assert found.logprob == pytest.approx(float(TARGET[last].log_softmax(-1)[token]), abs=1e-12)
            assert [i for i, _ in found.top] == TARGET[last].topk(2).indices.tolist()
            last = token


def test_gaps_of_greedy_rounds_are_filled_in_where_asked_for():
    plain, shaped = SamplingParams(temperature=0), SamplingParams(temperature=0, presence_penalty=1.2)
    for params in (plain, shaped):
        rows = sample_rows([list(PROMPT)], [params], [0], [(4, 5)])
        logits = TARGET[[PROMPT[-1], 4, 5]]
        (verdict,) = Sampler().resolve(logits, rows, explain=True)
        scores = naive.edited(logits[0].tolist(), params, PROMPT, len(PROMPT))
        assert verdict.judged[0].gap == pytest.approx(max(scores) - scores[4])
        assert Sampler().resolve(logits, rows)[0].judged[0].gap is None
    both = sample_rows([list(PROMPT)] * 2, [plain, shaped], [0, 0], [(4,), (4,)])
    explained = Sampler().resolve(TARGET[[1, 4, 1, 4]], both, explain=True)
    assert [v.judged[0].gap for v in explained] == [
        Sampler().resolve(TARGET[[1, 4]], [replace(row, row=0)], explain=True)[0].judged[0].gap for row in both
    ]


@pytest.mark.parametrize("params", [SamplingParams(temperature=0), SHAPED, replace(SHAPED, seed=1)])
def test_a_round_ends_before_a_row_that_is_not_finite(params):
    greedy = generate([SamplingParams(temperature=0)], [0], [0], 3)[0]
    for bad in range(4):
        logits = TARGET[[PROMPT[-1], *greedy]].clone()
        logits[bad, 3] = torch.nan
        rows = sample_rows([list(PROMPT)], [params], [1], [tuple(greedy)])
        (verdict,) = Sampler().resolve(logits, rows)
        if bad == 0:
            assert verdict.non_finite
            assert verdict.tokens == ()
        else:
            assert verdict.error is None
            assert 1 <= len(verdict.tokens) <= bad
            if params.is_plain_greedy:
                assert verdict.tokens == tuple(greedy[:bad])


def test_without_drafts_nothing_speculative_is_called(monkeypatch):
    def never(*args):
        raise AssertionError("the verifier was called")

    monkeypatch.setattr(sampler_module, "verify", never)
    assert all(
        v.tokens for v in step([list(PROMPT)] * 3, [SHAPED, SHAPED, SamplingParams(temperature=0)], [0] * 3, [0] * 3)
    )
