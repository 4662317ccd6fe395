"""The sampler: distributions per parameter, seeds and choices, faults, and log-probabilities."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
import torch

from mini_infer.sampling import sampler as sampler_module
from mini_infer.sampling.params import SamplingParams
from mini_infer.sampling.prompt_logprobs import NonFiniteLogits, prompt_logprobs
from mini_infer.sampling.random import Purpose, uniform
from mini_infer.sampling.rows import SampleRow
from mini_infer.sampling.sampler import Sampler
from tests.sampling import naive

VOCAB = 32
TOKENS = [3, 3, 8, 30, 1, 4, 4, 4, 9, 1]  # four of the prompt, six of the output
LOGITS = torch.randn(VOCAB, generator=torch.Generator().manual_seed(11), dtype=torch.float64) * 1.5
DRAWS = 6_000


def sample_row(params, row=0, *, seed=0, choice=0, position=None, tokens=TOKENS, num_prompt=4, stop_ids=(4, 9)):
    position = len(tokens) if position is None else position
    return SampleRow(f"r{row}", row, params, seed, choice, position, num_prompt, tokens, frozenset(stop_ids))


def draws(params, seed, count=DRAWS, **row):
    rows = [sample_row(params, seed=seed, position=position, **row) for position in range(count)]
    return [verdict.tokens[0] for verdict in Sampler().resolve(LOGITS[None], rows)]


# Each parameter, and what a faulty sampler would make of it, told as other arguments.
PARAMETERS = {
    "neutral": ({}, {"temperature": 0.8}, {}),
    "temperature below 1": ({"temperature": 0.6}, {"temperature": 0.36}, {}),
    "temperature above 1": ({"temperature": 1.7}, {"temperature": 1.0}, {}),
    "top_k keeps one more": ({"top_k": 5}, {"top_k": 6}, {}),
    "top_p is taken for 1": ({"top_p": 0.7}, {"top_p": 1.0}, {}),
    "top_p of the mass before top_k": ({"top_k": 4, "top_p": 0.8}, {"top_p": 1.0}, {}),
    "min_p is halved": ({"min_p": 0.2}, {"min_p": 0.1}, {}),
    "repetition without the prompt": ({"repetition_penalty": 2.5}, {}, {"tokens": TOKENS[4:], "num_prompt": 0}),
    "presence counts the prompt": ({"presence_penalty": 2.0}, {}, {"num_prompt": 0}),
    "presence is as frequency": ({"presence_penalty": -1.5}, {"presence_penalty": 0, "frequency_penalty": -1.5}, {}),
    "frequency counts once": ({"frequency_penalty": -0.8}, {"presence_penalty": -0.8, "frequency_penalty": 0}, {}),
    "frequency counts the prompt": ({"frequency_penalty": -1.0}, {}, {"num_prompt": 0}),
    "bias on a neighbour": ({"logit_bias": {7: 4.0}}, {"logit_bias": {8: 4.0}}, {}),
    "min_tokens one early": ({"min_tokens": 7}, {"min_tokens": 6}, {}),
    "all together": (
        {"temperature": 0.9, "top_k": 20, "top_p": 0.9, "min_p": 0.02, "repetition_penalty": 1.2,
         "presence_penalty": 0.4, "frequency_penalty": 0.3, "logit_bias": {2: 1.5}, "min_tokens": 9},
        {"temperature": 1.1}, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", PARAMETERS)
def test_draws_follow_the_distribution_of_the_parameter_and_a_fault_shows(name):
    asked, fault, faulty_row = PARAMETERS[name]
    params = SamplingParams(**asked)
    expected = naive.distribution(LOGITS.tolist(), params, TOKENS, 4, (4, 9))
    for seed in range(3):
        assert naive.p_value(draws(params, seed), expected) > 1e-4
    sabotaged = SamplingParams(**asked | fault)
    assert naive.p_value(draws(sabotaged, 0, **faulty_row), expected) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tokens_equal_the_naive_inversion_of_the_same_number(dtype):
    rng = random.Random(0)
    logits = torch.randn(40, VOCAB, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype) * 2
    rows = []
    for row in range(40):
        params = SamplingParams(
            temperature=rng.choice([0, 0.7, 1.3]),
            top_p=rng.choice([None, 0.85]),
            top_k=rng.choice([None, 6]),
            repetition_penalty=rng.choice([None, 1.4]),
            min_tokens=rng.choice([0, 20]),
        )
        rows.append(sample_row(params, row, seed=row, choice=row % 3))
    for row, verdict in zip(rows, Sampler().resolve(logits, rows), strict=True):
        probs = naive.distribution(logits[row.row].tolist(), row.params, TOKENS, 4, (4, 9))
        u = uniform(row.seed, row.choice, row.position, Purpose.SAMPLE)
        assert verdict.tokens == (naive.draw(probs, u),)


def test_a_row_alone_and_in_a_batch_gives_the_same_token():
    logits = torch.randn(9, 5000, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    params = [
        SamplingParams(temperature=t, top_p=p, top_k=k) for t in (0, 0.8, 1.4) for p, k in ((1, 0), (0.9, 0), (1, 7))
    ]
    rows = [sample_row(p, row, seed=100 + row) for row, p in enumerate(params)]
    together = Sampler().resolve(logits, rows)
    for row, verdict in zip(rows, together, strict=True):
        assert Sampler().resolve(logits[row.row : row.row + 1], [replace(row, row=0)]) == [verdict]
    assert Sampler().resolve(logits, rows[::-1]) == together[::-1]
    assert Sampler().resolve(logits, rows) == together


def test_choices_of_one_row_differ_and_come_again():
    logits = torch.zeros(1, 1000, dtype=torch.float64)
    rows = [sample_row(SamplingParams(temperature=1, seed=3, n=4), seed=3, choice=choice) for choice in range(4)]
    first = [v.tokens for v in Sampler().resolve(logits, rows)]
    assert len(set(first)) == 4
    alone = [Sampler().resolve(logits, [row])[0].tokens for row in rows]
    assert alone == first


def test_a_seed_without_its_choice_index_is_noticed(monkeypatch):
    real = sampler_module.uniform
    monkeypatch.setattr(
        sampler_module, "uniform", lambda seed, choice, position, purpose: real(seed, 0, position, purpose)
    )
    with pytest.raises(AssertionError):
        test_choices_of_one_row_differ_and_come_again()


def random_seeds(count):
    rng = random.Random(9)
    return [rng.getrandbits(64) for _ in range(count)]


def test_M06_other_seeds_give_other_answers():
    logits = torch.zeros(1, 50, dtype=torch.float64)
    answers = set()
    for seed in random_seeds(8):
        rows = [sample_row(SamplingParams(temperature=1), seed=seed, position=position) for position in range(12)]
        answers.add(tuple(v.tokens for v in Sampler().resolve(logits, rows)))
    assert len(answers) == 8


@pytest.mark.parametrize("temperature", [0, 1.0, 2.0])
def test_M09_bias_bans_forces_and_leaves_the_neighbour_alone(temperature):
    logits = LOGITS.expand(3, VOCAB).clone()
    best = int(LOGITS.argmax())
    ban, force = {best: -100}, {7: 100}
    for position in range(300):
        rows = [
            sample_row(
                SamplingParams(temperature=temperature, logit_bias=ban), 0, position=position, tokens=[], num_prompt=0
            ),
            sample_row(SamplingParams(temperature=temperature, logit_bias=force, top_k=3), 1, position=position),
            sample_row(SamplingParams(temperature=temperature), 2, position=position),
        ]
        banned, forced, twin = Sampler().resolve(logits, rows)
        assert banned.tokens != (best,)
        assert forced.tokens == (7,)
        assert [twin] == Sampler().resolve(logits, rows[2:])


def test_M13_a_row_that_is_not_finite_ends_alone():
    logits = torch.randn(5, 40, generator=torch.Generator().manual_seed(8))
    params = SamplingParams(temperature=0.9, top_p=0.9, repetition_penalty=1.1, logprobs=2)
    rows = [sample_row(params, row, seed=row) for row in range(5)]
    healthy = Sampler().resolve(logits, rows)
    for bad in (torch.nan, torch.inf):
        poisoned = logits.clone()
        poisoned[1, 17] = bad
        poisoned[3] = torch.nan
        verdicts = Sampler().resolve(poisoned, rows)
        for index in (1, 3):
            assert verdicts[index].tokens == ()
            assert verdicts[index].non_finite
            assert "not finite" in verdicts[index].error
        assert [verdicts[index] for index in (0, 2, 4)] == [healthy[index] for index in (0, 2, 4)]


def test_a_row_with_every_token_masked_ends_alone():
    logits = torch.randn(2, 40, generator=torch.Generator().manual_seed(8))
    rows = [
        sample_row(SamplingParams(min_tokens=50, temperature=0), 0, stop_ids=range(40)),
        sample_row(SamplingParams(min_tokens=50, temperature=0), 1, stop_ids=[*range(1, 40), 77]),
    ]
    masked, healthy = Sampler().resolve(logits, rows)
    assert "banned" in masked.error
    assert not masked.non_finite
    assert masked.tokens == ()
    assert healthy.tokens == (0,)


def test_logits_wider_than_the_vocabulary_are_cut():
    logits = torch.tensor([[1.0, 2.0, 0.0, 9.0]])
    row = sample_row(SamplingParams(temperature=0, logprobs=4), tokens=[0], num_prompt=1)
    assert Sampler().resolve(logits, [row])[0].tokens == (3,)
    verdict = Sampler(vocab_size=3).resolve(logits, [row])[0]
    assert verdict.tokens == (1,)
    assert len(verdict.logprobs[0].top) == 3
    assert Sampler(vocab_size=7).resolve(logits, [row])[0].tokens == (3,)


def test_a_cut_head_samples_as_one_of_that_width():
    logits = torch.randn(4, 40, generator=torch.Generator().manual_seed(6))
    params = SamplingParams(temperature=0.8, top_p=0.9, repetition_penalty=1.5, logit_bias={2: 3.0}, min_tokens=99)
    for order in ([0, 1, 2, 3], [2, 0, 0]):
        rows = [sample_row(params, row, seed=row) for row in order]
        assert Sampler(32).resolve(logits, rows) == Sampler().resolve(logits[:, :32].contiguous(), rows)


def test_an_impossible_token_has_a_finite_logprob():
    logits = torch.tensor([[1.0, -torch.inf, 0.0]])
    row = sample_row(SamplingParams(temperature=0, logprobs=3), tokens=[0], num_prompt=1)
    (found,) = Sampler().resolve(logits, [row])[0].logprobs
    assert found.top[-1] == (1, -9999.0)


def test_nothing_to_do_is_done():
    assert Sampler().resolve(torch.empty(0, 40), []) == []


def test_M17_logprobs_are_absent_empty_or_as_many_as_asked_for():
    rows = [sample_row(SamplingParams(temperature=0.7, logprobs=n), choice=i) for i, n in enumerate((None, 0, 3, 20))]
    off, none, three, twenty = Sampler().resolve(LOGITS[None], rows)
    assert off.logprobs == ()
    assert [len(v.logprobs) for v in (none, three, twenty)] == [1, 1, 1]
    assert [len(v.logprobs[0].top) for v in (none, three, twenty)] == [0, 3, 20]
    for verdict in (none, three, twenty):
        assert verdict.logprobs[0].token_id == verdict.tokens[0]


def test_logprobs_are_of_the_raw_distribution():
    shaped = SamplingParams(
        temperature=0.2, top_k=2, repetition_penalty=3.0, logit_bias={int(LOGITS.argmin()): 100}, logprobs=5
    )
    (verdict,) = Sampler().resolve(LOGITS[None], [sample_row(shaped)])
    (found,) = verdict.logprobs
    expected = LOGITS.log_softmax(-1).tolist()
    order = sorted(range(VOCAB), key=lambda i: -expected[i])
    assert verdict.tokens == (order[-1],)
    assert found.rank == VOCAB
    assert found.logprob == pytest.approx(expected[order[-1]], abs=1e-12)
    assert [token for token, _ in found.top] == order[:5]
    assert [value for _, value in found.top] == pytest.approx([expected[i] for i in order[:5]], abs=1e-12)


def test_equal_logits_share_a_rank_and_are_listed_by_id():
    logits = torch.tensor([[0.0, 2.0, 2.0, 1.0, 2.0]], dtype=torch.bfloat16)
    row = sample_row(SamplingParams(temperature=0, logprobs=3), tokens=[0], num_prompt=1)
    (found,) = Sampler().resolve(logits, [row])[0].logprobs
    assert (found.token_id, found.rank, [token for token, _ in found.top]) == (1, 1, [1, 2, 4])
    assert found.logprob == pytest.approx(math.log(math.e**2 / (3 * math.e**2 + math.e + 1)), abs=1e-6)


def test_prompt_logprobs_are_those_of_the_whole_prompt_64_rows_at_a_time():
    generator = torch.Generator().manual_seed(2)
    hidden = torch.randn(150, 8, generator=generator, dtype=torch.float64)
    head = torch.randn(60, 8, generator=generator, dtype=torch.float64)
    tokens = torch.randint(0, 60, (150,), generator=generator).tolist()
    seen = []

    def logits_of(rows):
        seen.append(rows.shape[0])
        return rows @ head.T

    found = prompt_logprobs(hidden, tokens, 2, logits_of)
    assert seen == [64, 64, 22]
    expected = (hidden @ head.T).log_softmax(-1)
    for row, (token, one) in enumerate(zip(tokens, found, strict=True)):
        assert one.token_id == token
        assert one.logprob == pytest.approx(float(expected[row, token]), abs=1e-12)
        assert one.rank == int((expected[row] > expected[row, token]).sum()) + 1
        assert [i for i, _ in one.top] == expected[row].topk(2).indices.tolist()
    assert prompt_logprobs(hidden, [], 2, logits_of) == []
    hidden[100] = torch.nan
    with pytest.raises(NonFiniteLogits):
        prompt_logprobs(hidden, tokens, 2, logits_of)
