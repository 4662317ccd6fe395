"""`shape_logits` against the blackboard version, and what it promises about ties, width, batch and precision."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mini_infer.sampling import distribution, filters
from mini_infer.sampling.distribution import invert, shape_logits
from mini_infer.sampling.filters import largest
from mini_infer.sampling.params import SamplingParams
from mini_infer.sampling.rows import RowContext
from tests.sampling import naive


def context(params, row=0, tokens=(), num_prompt=0, stop_ids=(), drafts=()):
    return RowContext(row, params.shaping, list(tokens), num_prompt, frozenset(stop_ids), tuple(drafts))


def dense(logits, contexts):
    dists = shape_logits(logits, contexts)
    return torch.stack([dists[key].dense(logits.shape[1]) for key in range(len(contexts))])


def random_params(rng: random.Random, vocab_size: int) -> SamplingParams:
    def maybe(value):
        return value if rng.random() < 0.5 else None

    return SamplingParams(
        temperature=rng.choice([None, 0.0, 1e-4, 0.3, 0.7, 1.0, 1.8, 2.0]),
        top_p=maybe(rng.choice([0.0, 1e-9, 0.3, 0.777, 0.95, 1.0])),
        top_k=maybe(rng.choice([-1, 0, 1, 2, 5, vocab_size - 1, vocab_size, 10**9])),
        min_p=maybe(rng.choice([0.0, 0.01, 0.2, 1.0])),
        repetition_penalty=maybe(rng.choice([0.1, 0.7, 1.0, 1.3, 10.0])),
        presence_penalty=maybe(rng.uniform(-2, 2)),
        frequency_penalty=maybe(rng.uniform(-2, 2)),
        logit_bias={rng.randrange(vocab_size): rng.uniform(-100, 100) for _ in range(rng.randrange(3))},
        min_tokens=rng.choice([0, 0, 3]),
    )


def is_knife_edge(logits, params, tokens, num_prompt, stop_ids) -> bool:
    """Some leading mass equals top_p but for rounding, or a weight its min-p floor: either side is right."""
    p = naive.distribution(logits, SamplingParams(**loose(params, top_p=1.0, min_p=0.0)), tokens, num_prompt, stop_ids)
    mass = 0.0
    for i in sorted(range(len(p)), key=lambda i: (-p[i], i)):
        if p[i] != max(p) and abs(p[i] - params.shaping.min_p * max(p)) < 1e-9 * max(p) and params.shaping.min_p > 0:
            return True
        if 0.0 < params.shaping.top_p < 1.0 and abs(mass - params.shaping.top_p) < 1e-12:
            return True
        mass += p[i]
    return False


def loose(params, **changes):
    return {name: getattr(params, name) for name in params.__dataclass_fields__} | changes


@given(st.integers(0, 2**32), st.sampled_from([2, 3, 31, 66, 80]))
@settings(max_examples=150, deadline=None)
def test_any_batch_of_parameters_equals_the_naive_reference(seed, vocab_size):
    rng = random.Random(seed)
    # few different values: ties everywhere
    values = [rng.uniform(-6, 6) for _ in range(rng.choice([2, 7, 500]))]
    batch, contexts, expected = [], [], []
    for row in range(rng.randrange(1, 7)):
        logits = [rng.choice(values) for _ in range(vocab_size)]
        params = random_params(rng, vocab_size)
        tokens = [rng.randrange(vocab_size) for _ in range(rng.randrange(8))]
        num_prompt = rng.randrange(len(tokens) + 1)
        stop_ids = {rng.randrange(vocab_size - 1)}
        drafts = [rng.randrange(vocab_size) for _ in range(rng.randrange(3))]
        assume(not is_knife_edge(logits, params, tokens + drafts, num_prompt, stop_ids))
        batch.append(logits)
        contexts.append(context(params, row, tokens, num_prompt, stop_ids, drafts))
        expected.append(naive.distribution(logits, params, tokens + drafts, num_prompt, stop_ids))
    found = dense(torch.tensor(batch, dtype=torch.float64), contexts)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("spread", [0.0, 0.3, 2.0, 8.0])
@pytest.mark.parametrize(
    "wanted",
    [{"top_k": 50}, {"top_k": 1500}, {"top_p": 0.90001}, {"top_p": 0.99901}, {"min_p": 0.2}, {"top_k": 19_999},
     {"top_k": 700, "top_p": 0.6001, "min_p": 0.01}, {"top_p": 0.90001, "min_p": 0.5}],
)  # fmt: skip
def test_wide_vocabularies_equal_the_naive_reference(spread, wanted):
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(20_000, generator=generator, dtype=torch.float64) * spread
    params = SamplingParams(temperature=0.9, **wanted)
    expected = torch.tensor(naive.distribution(logits.tolist(), params), dtype=torch.float64)
    torch.testing.assert_close(dense(logits[None], [context(params)])[0], expected, rtol=1e-9, atol=1e-15)


def test_cuts_between_equal_logits_keep_the_lowest_ids():
    logits = torch.zeros(1, 5000)
    logits[0, 4000:] = 1.0
    for count in (10, 64, 65, 999):
        probs = dense(logits, [context(SamplingParams(top_k=count))])[0]
        assert probs.nonzero()[:, 0].tolist() == list(range(4000, 4000 + count))
    # half of the mass of the thousand best
    best = 1000 * torch.e / (1000 * torch.e + 4000)
    probs = dense(logits, [context(SamplingParams(top_p=float(best / 2) - 1e-6))])[0]
    assert probs.nonzero()[:, 0].tolist() == list(range(4000, 4500))
    for greedy in ({"temperature": 0}, {"top_k": 1}, {"top_p": 0}, {"temperature": 0, "presence_penalty": 1}):
        assert shape_logits(logits, [context(SamplingParams(**greedy))]).certain == {0: 4000}
    assert largest(logits, 3)[1].tolist() == [[4000, 4001, 4002]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("temperature", [1e-3, 1e-4, 2e-5, 1e-5, 1e-8, 1e-30, 0.0])
def test_M01_tiny_temperatures_neither_overflow_nor_change_the_best_token(dtype, temperature):
    generator = torch.Generator().manual_seed(0)
    logits = (torch.randn(8, 300, generator=generator, dtype=torch.float64) * 10).to(dtype)
    logits[:, 5] = 60000.0 if dtype is torch.float16 else 1e30
    logits[4:, 7] = -logits[4:, 5]
    best = logits.argmax(-1).tolist()
    contexts = [context(SamplingParams(temperature=temperature), row) for row in range(8)]
    filtered = [
        context(SamplingParams(temperature=temperature, top_p=0.9, top_k=4, min_p=0.1), row) for row in range(8)
    ]
    for some in (contexts, filtered):
        dists = shape_logits(logits, some)
        assert not dists.faults
        assert torch.isfinite(dense(logits, some)).all()
        assert [dists.draw({key: 0.999})[key] for key in range(8)] == best
        if temperature <= 1e-5:
            assert dists.certain == dict(enumerate(best))


def test_M02_top_p_0_keeps_only_the_best_token_and_1_keeps_all():
    logits = torch.tensor([[1.0, 3.0, 2.0, 0.0]])
    for top_p in (0, 1e-9):
        assert dense(logits, [context(SamplingParams(top_p=top_p))])[0].tolist() == [0.0, 1.0, 0.0, 0.0]
    assert torch.equal(dense(logits, [context(SamplingParams(top_p=1))])[0], logits[0].softmax(-1))


def test_M11_extreme_penalties_stay_finite():
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        logits = torch.tensor([[5.0, -5.0, 0.0, 30.0]], dtype=dtype)
        for penalty in (5e-324, 1e-300, 1e-40, 1e-9, 1.0, 2.0, 1e9, 1e300, 1.7e308):
            for temperature in (0.0, 1e-4, 1.0):
                params = SamplingParams(temperature=temperature, repetition_penalty=penalty, presence_penalty=2)
                probs = dense(logits, [context(params, tokens=[0, 1, 2, 0], num_prompt=2)])
                assert torch.isfinite(probs).all()
                assert probs.sum() == pytest.approx(1.0, abs=1e-3)


def test_M11_a_penalty_of_1_changes_nothing():
    logits = torch.randn(1, 50, generator=torch.Generator().manual_seed(1))
    with_penalty = dense(logits, [context(SamplingParams(repetition_penalty=1.0), tokens=range(50), num_prompt=9)])
    assert torch.equal(with_penalty, dense(logits, [context(SamplingParams())]))


def test_M16_bf16_logits_are_sampled_in_float32():
    generator = torch.Generator().manual_seed(0)
    logits = (torch.randn(1, 512, generator=generator) * 0.05).to(torch.bfloat16)
    params = SamplingParams(temperature=1, top_p=0.999)
    found = shape_logits(logits, [context(params)])[0]
    assert found.probs.dtype == torch.float32
    u = torch.rand(20_000, generator=generator, dtype=torch.float64).tolist()
    drawn = invert(found.dense(512).expand(20_000, 512), u).tolist()
    assert len(set(drawn)) >= 505
    assert naive.p_value(drawn, naive.distribution(logits[0].double().tolist(), params)) > 1e-4


def test_a_row_is_the_same_alone_and_in_any_batch():
    rng = random.Random(7)
    generator = torch.Generator().manual_seed(7)
    logits = torch.randn(12, 40_000, generator=generator, dtype=torch.float64) * 3
    contexts = [context(random_params(rng, 40_000), row, tokens=[row, 3, 3], num_prompt=1) for row in range(12)]
    together = dense(logits, contexts)
    for key, one in enumerate(contexts):
        alone = RowContext(0, one.shaping, one.tokens, one.num_prompt, one.stop_ids)
        assert torch.equal(dense(logits[key : key + 1], [alone])[0], together[key])
    backwards = dense(logits, contexts[::-1])
    assert torch.equal(backwards.flip(0), together)


def test_many_rows_are_shaped_in_parts_with_the_same_result(monkeypatch):
    logits = torch.randn(30, 100, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    rng = random.Random(2)
    contexts = [context(random_params(rng, 100), row, tokens=[row, 3], num_prompt=1) for row in range(30)]
    whole = dense(logits, contexts)
    for at_once in (1, 700):
        monkeypatch.setattr(distribution, "_LOGITS_AT_ONCE", at_once)
        assert torch.equal(dense(logits, contexts), whole)


def test_logits_are_read_only():
    for dtype in (torch.float32, torch.float64):
        logits = torch.randn(3, 40, generator=torch.Generator().manual_seed(2), dtype=dtype)
        before = logits.clone()
        params = SamplingParams(temperature=0.5, top_k=4, repetition_penalty=1.2, logit_bias={3: -100}, min_tokens=4)
        shape_logits(logits, [context(params, row, tokens=[1, 2], num_prompt=1, stop_ids=[5]) for row in range(3)])
        shape_logits(logits, [context(SamplingParams(temperature=0.5), row) for row in range(3)])
        assert torch.equal(logits, before)


def test_no_sort_of_the_whole_vocabulary_where_the_best_few_will_do(monkeypatch):
    widths = []
    real_sort = torch.sort
    monkeypatch.setattr(
        filters.torch, "sort", lambda x, **options: (widths.append(x.shape[-1]), real_sort(x, **options))[1]
    )
    logits = torch.randn(16, 50_000, generator=torch.Generator().manual_seed(0)) * 3
    params = [SamplingParams(top_k=20), SamplingParams(top_k=40, top_p=0.8), SamplingParams(temperature=0.7, top_p=0.9)]
    dense(logits, [context(params[row % 3], row) for row in range(16)])
    assert widths
    assert max(widths) <= 1024


def test_a_masked_vocabulary_needs_no_wide_sort_either(monkeypatch):
    real_sort = torch.sort

    def narrow_sort(x, **options):
        assert x.shape[-1] <= 64
        return real_sort(x, **options)

    monkeypatch.setattr(filters.torch, "sort", narrow_sort)
    logits = torch.full((2, 30_000), -torch.inf)
    logits[:, 20_000:20_010] = torch.arange(10.0)
    for params in (SamplingParams(top_k=20), SamplingParams(top_k=9_000, top_p=0.95), SamplingParams(top_p=0.999999)):
        found = dense(logits, [context(params), context(params, 1)])
        expected = torch.tensor(naive.distribution(list(map(float, range(10))), params), dtype=torch.float32)
        torch.testing.assert_close(found[1, 20_000:20_010], expected)
        assert found.count_nonzero() == 2 * expected.count_nonzero()


def test_a_cut_that_a_tie_leaves_open_is_looked_at_more_widely():
    """bf16 logits tie often: the 64 largest may be any of many equals."""
    logits = torch.zeros(1, 30_000, dtype=torch.bfloat16)
    logits[0, 29_000:] = 2.0
    probs = dense(logits, [context(SamplingParams(top_k=3))])[0]
    assert probs.nonzero()[:, 0].tolist() == [29_000, 29_001, 29_002]


def test_inversion_never_gives_a_token_of_probability_0():
    almost_one = 1.0 - 2.0**-53
    probs = torch.tensor([[0.0, 0.3, 0.0, 0.7, 0.0], [0.0, 1.0, 0.0, 0.0, 0.0]])
    assert invert(probs, [0.0, 0.0]).tolist() == [1, 1]
    assert invert(probs, [almost_one, almost_one]).tolist() == [3, 1]
    assert invert(probs, [0.2999, 0.5]).tolist() == [1, 1]
    assert invert(probs, [0.3001, 0.5]).tolist() == [3, 1]
    tiny = torch.full((1, 100_000), 1e-9)
    tiny[0, 99_999] = 0.0
    assert invert(tiny, [almost_one]).tolist() == [99_998]


def test_rows_without_a_distribution_are_named_and_harm_no_other():
    logits = torch.randn(6, 40, generator=torch.Generator().manual_seed(4))
    healthy = dense(logits[:1], [context(SamplingParams(top_k=5))])
    logits[1, 3], logits[2, 4], logits[3], logits[4, 9] = torch.nan, torch.inf, -torch.inf, -torch.inf
    params = SamplingParams(top_k=5)
    masked = context(SamplingParams(min_tokens=1), 5, stop_ids=range(40))
    dists = shape_logits(logits, [context(params, row) for row in range(5)] + [masked])
    assert dists.faults == {1: "non-finite", 2: "non-finite", 3: "non-finite", 5: "masked"}
    assert torch.equal(dists[0].dense(40), healthy[0])
    assert dists[4].dense(40)[9] == 0
    with pytest.raises(KeyError):
        dists.draw({1: 0.5})


@pytest.mark.parametrize("width", [1, 30, 512, 513, 1024, 5000])
def test_inversion_by_stretches_equals_one_running_sum(width):
    generator = torch.Generator().manual_seed(width)
    probs = torch.rand(40, width, generator=generator, dtype=torch.float64)
    probs[20:] *= torch.rand(20, width, generator=generator) < 0.002  # whole stretches of nothing
    probs[:, -1] += 1e-3
    u = [0.0, 1.0 - 2.0**-53, *torch.rand(38, generator=generator, dtype=torch.float64).tolist()]
    for row, (found, number) in enumerate(zip(invert(probs, u).tolist(), u, strict=True)):
        assert probs[row, found] > 0
        assert found == naive.draw((probs[row] / probs[row].sum()).tolist(), number)
    assert invert(probs[:0], []).tolist() == []
