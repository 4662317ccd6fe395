"""An explicitly seeded answer is the same token for token with drafts and without, whatever K and company (float64);
unseeded ones share a batch with greedy ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mini_infer.sampling.params import SamplingParams
from tests.engine.test_exact_sampled import KINDS, sampled
from tests.support.engines import choices, expected, preempt_when, prompt, run_all, tiny_engine
from tests.support.speculation import DRAFTS, SpecRun, spec_all, spec_engine, totals

SHAPES = (
    {"temperature": 1.0},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 1.2, "top_k": 20, "frequency_penalty": 0.5},
    {"temperature": 0.9, "min_p": 0.05, "repetition_penalty": 1.2},
)


def seeded_200() -> list[tuple[list[int], SamplingParams]]:
    shape = [SamplingParams(max_tokens=10, **more) for more in SHAPES]
    return [(prompt(1 + seed % 23, seed=seed), replace(shape[seed % 4], seed=seed)) for seed in range(200)]


@pytest.mark.parametrize("draft", DRAFTS)
def test_200_seeds_give_the_same_answers_whatever_k_and_batch(draft):
    jobs = seeded_200()
    if "plain" not in _PLAIN:
        _PLAIN["plain"] = [r.token_ids for r in run_all(tiny_engine(max_running=50), jobs)]
    plain = _PLAIN["plain"]
    assert len(set(plain)) > 190
    engine = spec_engine(draft, (4, 0, 1, 8, 2), max_running=50, num_blocks=200)
    assert [r.token_ids for r in spec_all(engine, jobs)] == plain
    if draft in ("good", "near"):
        assert totals(engine)["accepted"] > 0.2 * totals(engine)["drafted"] > 100
    for (ids, params), want in list(zip(jobs, plain, strict=True))[::20]:  # in other company, and against the reference
        alone, *_ = spec_all(spec_engine(draft, (3, 5)), [(ids, params), jobs[7]])
        assert alone.token_ids == want == tuple(expected(ids, params))


_PLAIN: dict[str, list[tuple[int, ...]]] = {}


@pytest.mark.parametrize("draft", DRAFTS)
def test_every_parameter_at_once_in_a_small_pool(draft):
    jobs = [(prompt(5 + 6 * i, seed=i), sampled(kind, seed=i, count=30)) for i, kind in enumerate(KINDS)]
    engine = spec_engine(draft, (4, 8, 1), num_blocks=30, block_size=4, max_running=8, max_chunk=12)
    for (ids, params), result in zip(jobs, spec_all(engine, jobs), strict=True):
        assert list(result.token_ids) == expected(ids, params)
    assert totals(engine)["preemptions"] >= 3


@pytest.mark.parametrize("draft", DRAFTS)
def test_a_seeded_answer_preempted_at_every_step(draft):
    ids, params = prompt(20), sampled("top_p", count=16)
    want = tuple(expected(ids, params))
    for at in range(2, 14):
        engine = spec_engine(draft, 3, max_chunk=9)
        preempt_when(engine, lambda seq, e=engine, at=at: e.scheduler.step + 1 == at)
        (result,) = spec_all(engine, [(ids, params)])
        assert result.token_ids == want, f"preempted in step {at}"


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("length", [15, 16, 17])
def test_4_choices_of_one_seed(draft, length):
    ids, params = prompt(length, seed=3), sampled(n=4, count=20)
    want = [tuple(expected(ids, params, choice=choice)) for choice in range(4)]
    assert len(set(want)) == 4
    for options in ({}, {"max_chunk": length - 1}):  # the last chunk is then one row, from which all four are drawn
        engine = spec_engine(draft, 4, **options)
        for _ in range(2):
            assert choices(spec_all(engine, [(ids, params)])[0]) == want


def test_choices_of_an_unseeded_request_are_independent_of_each_other():
    """All of them are drawn from the last row of the prompt, which is a chunk of its own here."""
    params = SamplingParams(temperature=1, top_k=4, max_tokens=2, n=2)
    engine = spec_engine("good", 4, max_chunk=15, max_running=100, num_blocks=400, entropy_seed=3)
    pairs = [choices(r) for r in spec_all(engine, [(prompt(16), params)] * 400)]
    first = [a[0] for pair in pairs for a in pair]
    alike = sum(a[0] == b[0] for a, b in pairs)
    chance = sum((first.count(token) / len(first)) ** 2 for token in set(first))
    assert abs(alike - 400 * chance) < 4 * (400 * chance * (1 - chance)) ** 0.5


@pytest.mark.parametrize("draft", DRAFTS)
def test_P03_greedy_tiny_and_usual_temperatures_in_one_batch(draft):
    ids = prompt(12)
    run = SpecRun(spec_engine(draft, 4, entropy_seed=0))
    for temperature in (0, 0.7, 1e-6):
        run.add(ids, SamplingParams(temperature=temperature, max_tokens=40))
    cold, _, tiny = run.finish()
    assert list(cold.token_ids) == list(tiny.token_ids) == expected(ids, SamplingParams(temperature=0, max_tokens=40))
    assert all(r.finish_reason == "length" and len(r.token_ids) == 40 for r in run.results.values())
    for r in run.rounds:
        assert 0 <= r.kept <= 4
        for column in (r.p, r.q, r.u):
            assert column is None or all(0 <= x <= 1 for x in column)
        assert (r.p is None) == (r.gap is not None)
        assert r.gap is None or all(g >= 0 for g in r.gap)
    assert any(r.p is None for r in run.rounds) or draft == "ngram"


def test_a_round_of_a_sampled_request_is_reported_with_what_it_was_judged_by():
    run = SpecRun(spec_engine("near", 4, entropy_seed=1))
    run.add(prompt(9), SamplingParams(temperature=1, max_tokens=60))
    (result,) = run.finish()
    accepted = 0
    for r in run.rounds:
        assert len(r.p) == len(r.q) == len(r.u) == len(r.draft)
        for j, (p, q, u) in enumerate(zip(r.p, r.q, r.u, strict=True)):
            assert (j < r.kept) == (u * q < p) or abs(u * q - p) < 1e-3  # four digits are reported
        assert r.bonus == (r.kept == r.drafted)
        assert len(r.draft) == r.kept + (not r.bonus)
        assert r.token is not None
        accepted += r.kept
    assert accepted == result.usage.accepted
    assert len(run.rounds) == result.usage.rounds == result.usage.steps - 1 - (result.usage.off_reason is not None)
