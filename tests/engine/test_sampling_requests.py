"""What a request may ask of sampling, through the whole engine."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from mini_infer.errors import UserError
from mini_infer.sampling.params import SamplingParams
from tests.support.checkpoints import VOCAB
from tests.support.engines import Run, choices, expected, expected_greedy, prompt, run_all, run_one, steer, tiny_engine

IDS = prompt(18, seed=8)


def ask(params, engine=None, ids=IDS):
    return run_one(engine or tiny_engine(), ids, params)


# --- temperature and filters ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_M01_tiny_temperatures(dtype):
    greedy = ask(SamplingParams(temperature=0, max_tokens=12), tiny_engine(dtype=dtype)).token_ids
    for temperature in (1e-3, 1e-4, 1e-5, 1e-8, 1e-30, 5e-324):
        result = ask(SamplingParams(temperature=temperature, max_tokens=12, seed=3), tiny_engine(dtype=dtype))
        assert (result.finish_reason, result.error) == ("length", None)
        if temperature <= 1e-5 or dtype == torch.float64:
            assert result.token_ids == greedy
    hot = ask(SamplingParams(temperature=2.0, max_tokens=12, seed=3), tiny_engine(dtype=dtype))
    assert hot.finish_reason == "length"
    for bad in (-0.1, 2.1, float("nan"), float("inf"), "hot", True):
        with pytest.raises(UserError, match="temperature"):
            SamplingParams(temperature=bad)


def test_M01_one_batch_with_every_temperature():
    jobs = [(IDS, SamplingParams(temperature=t, max_tokens=10, seed=5)) for t in (0, 1e-30, 1e-6, 1e-3, 0.7, 1, 2)]
    results = run_all(tiny_engine(), jobs)
    for (ids, params), result in zip(jobs, results, strict=True):
        assert list(result.token_ids) == expected(ids, params)
    assert results[0].token_ids == results[1].token_ids == results[2].token_ids


def test_M02_extreme_top_p():
    greedy = ask(SamplingParams(temperature=0, max_tokens=12)).token_ids
    for top_p in (0, 0.0, 1e-9):
        for seed in range(5):
            assert ask(SamplingParams(temperature=1, top_p=top_p, seed=seed, max_tokens=12)).token_ids == greedy
    free = SamplingParams(temperature=1, top_p=1, seed=5, max_tokens=12)
    assert list(ask(free).token_ids) == expected(IDS, SamplingParams(temperature=1, seed=5, max_tokens=12))
    for bad in (1.0001, -0.1, float("nan")):
        with pytest.raises(UserError, match="top_p"):
            SamplingParams(temperature=1, top_p=bad)


def test_M02_an_explicit_0_is_no_missing_value():
    """The checkpoint's defaults fill what is unset, never what is 0."""
    engine = tiny_engine(generation={"temperature": 1.9, "top_p": 0.99, "top_k": 50, "min_p": 0.3})
    greedy = expected_greedy(IDS, 12)
    assert list(ask(SamplingParams(temperature=0, max_tokens=12), engine).token_ids) == greedy
    assert list(ask(SamplingParams(top_p=0, seed=1, max_tokens=12), engine).token_ids) == greedy
    whole = SamplingParams(top_k=0, min_p=0, top_p=1, seed=1, max_tokens=12)
    assert list(ask(whole, engine).token_ids) == expected(IDS, SamplingParams(temperature=1.9, seed=1, max_tokens=12))


def test_defaults_of_the_checkpoint_fill_what_is_unset():
    generation = {"temperature": 0.6, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.2, "do_sample": True}
    engine = tiny_engine(generation=generation)
    named = {k: v for k, v in generation.items() if k != "do_sample"}
    filled = SamplingParams(**named, seed=3, max_tokens=14)
    assert list(ask(SamplingParams(seed=3, max_tokens=14), engine).token_ids) == expected(IDS, filled)
    partly = SamplingParams(**named | {"top_k": 3}, seed=3, max_tokens=14)
    assert list(ask(SamplingParams(top_k=3, seed=3, max_tokens=14), engine).token_ids) == expected(IDS, partly)
    # temperature 0 asks for the plain argmax: the repetition penalty is not filled in either
    assert list(ask(SamplingParams(temperature=0, max_tokens=14), engine).token_ids) == expected_greedy(IDS, 14)
    assert expected(IDS, SamplingParams(temperature=0, repetition_penalty=1.2, max_tokens=14)) != expected_greedy(
        IDS, 14
    )
    # without parameters at all a request is greedy
    run = Run(engine)
    request = engine.add_request(IDS, max_tokens=14)
    got = []
    while not engine.is_finished(request):
        got += [token for _, token in engine.step()]
    assert got == expected_greedy(IDS, 14)
    assert not run.results


def test_do_sample_false_of_the_checkpoint_is_greedy_for_who_names_no_temperature():
    engine = tiny_engine(generation={"do_sample": False, "temperature": 0.9})
    assert list(ask(SamplingParams(max_tokens=9), engine).token_ids) == expected_greedy(IDS, 9)
    sampled = SamplingParams(temperature=1, seed=2, max_tokens=9)
    assert list(ask(sampled, engine).token_ids) == expected(IDS, sampled)


def test_a_bad_default_of_the_checkpoint_is_named():
    with pytest.raises(UserError, match=r"generation_config\.json.*top_p"):
        tiny_engine(generation={"top_p": 7}).add_request(IDS, SamplingParams(seed=1))


# --- bias and penalties ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0, 1.0])
def test_M09_bias_bans_and_forces_from_the_first_token_on_and_leaves_the_twin_alone(temperature):
    first = expected_greedy(IDS, 1)[0]
    base = {"temperature": temperature, "seed": 6, "max_tokens": 20}
    banned, forced, twin = run_all(
        tiny_engine(),
        [
            (IDS, SamplingParams(**base, logit_bias={first: -100})),
            (IDS, SamplingParams(**base, logit_bias={"7": 100})),
            (IDS, SamplingParams(**base)),
        ],
    )
    assert first not in banned.token_ids
    assert forced.token_ids == (7,) * 20
    assert list(twin.token_ids) == expected(IDS, SamplingParams(**base))


def test_M09_bias_comes_before_the_filters():
    """A token that top_k would cut is chosen when its bias lifts it."""
    rare = min(set(range(VOCAB)) - set(IDS), key=lambda token: token)
    for filters in ({"top_k": 1}, {"top_p": 0.01}, {"min_p": 0.9}):
        params = SamplingParams(temperature=1, seed=1, max_tokens=5, logit_bias={rare: 100}, **filters)
        assert ask(params).token_ids == (rare,) * 5


@pytest.mark.parametrize("token", [VOCAB, 10**6])
def test_ids_beyond_the_vocabulary_are_refused(token):
    for params in (SamplingParams(logit_bias={token: 1}), SamplingParams(stop_token_ids=[token])):
        with pytest.raises(UserError, match=str(VOCAB - 1)):
            tiny_engine().add_request(IDS, params)


def test_M11_extreme_penalties():
    neutral = expected_greedy(IDS, 12)
    assert list(ask(SamplingParams(temperature=0, repetition_penalty=1.0, max_tokens=12)).token_ids) == neutral
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        for more in (
            *({"repetition_penalty": p} for p in (1e-9, 2.0, 1e9, 1e308)),
            *({f"{name}_penalty": v} for name in ("frequency", "presence") for v in (-2, 2)),
        ):
            for temperature in (0, 1):
                params = SamplingParams(temperature=temperature, seed=1, max_tokens=6, logprobs=1, **more)
                result = ask(params, tiny_engine(dtype=dtype))
                assert result.finish_reason == "length", (dtype, more)
                assert all(abs(t.logprob) < 1e4 for t in result.logprobs)
    for name, bad in (("repetition_penalty", 0), ("repetition_penalty", -1), ("frequency_penalty", 3),
                      ("presence_penalty", -2.5), ("presence_penalty", float("nan"))):  # fmt: skip
        with pytest.raises(UserError, match=name):
            SamplingParams(**{name: bad})


def test_penalties_count_prompt_and_output_as_documented_through_a_preemption():
    """Presence and frequency see the output only, however often its rows are computed again."""
    jobs = [
        (prompt(6, seed=i), SamplingParams(temperature=0, presence_penalty=1.5, frequency_penalty=0.7,
                                           repetition_penalty=1.1, max_tokens=40))
        for i in range(6)
    ]  # fmt: skip
    engine = tiny_engine(num_blocks=24, block_size=4, max_running=6)
    for (ids, params), result in zip(jobs, run_all(engine, jobs), strict=True):
        assert list(result.token_ids) == expected(ids, params)
    assert engine.scheduler.preemptions >= 5


# --- many draws -----------------------------------------------------------------------------------------------------


def test_M16_a_near_uniform_bfloat16_distribution_is_drawn_from_whole():
    """20,000 draws at top_p 0.999: sums in half precision would never get there, or stop short."""
    engine = tiny_engine(num_blocks=256, dtype=torch.bfloat16, max_running=100, max_batch_tokens=200)
    resolve = engine.sampler.resolve
    flat = (torch.arange(VOCAB) % 5 * 0.01).to(torch.bfloat16)

    def near_uniform(logits, rows, *args, **kwargs):
        return resolve(flat.expand(len(logits), VOCAB), rows, *args, **kwargs)

    engine.sampler.resolve = near_uniform
    for seed in range(100):
        engine.add_request([1, 2], SamplingParams(temperature=1, top_p=0.999, seed=seed, max_tokens=200))
    drawn = Counter[int]()
    while engine.has_work:
        drawn.update(token for _, token in engine.step())
    assert sum(drawn.values()) == 20_000
    assert len(drawn) >= VOCAB - 1
    assert max(drawn.values()) < 2 * 20_000 / VOCAB


# --- n and seeds ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, -1, 2**64 + 3, 10**30])
def test_any_whole_number_is_a_seed(seed):
    params = SamplingParams(temperature=1, seed=seed, max_tokens=8)
    assert ask(params).token_ids == ask(params).token_ids
    assert list(ask(params).token_ids) == expected(IDS, params, seed=seed % 2**64)


def test_n_is_bounded_by_the_seats():
    engine = tiny_engine(max_running=3)
    assert len(choices(ask(SamplingParams(temperature=1, seed=1, n=3, max_tokens=2), engine))) == 3
    with pytest.raises(UserError, match="at most 3"):
        engine.add_request(IDS, SamplingParams(n=4))


def test_choices_end_each_in_its_own_way():
    engine = tiny_engine(text="chatml", eos=(5,))
    steer(engine, lambda row: [[9, 5], [9, 9, 9, 9], [5], [9, 8, 5]][row.choice])
    result = ask(SamplingParams(temperature=0, n=4, max_tokens=4), engine)
    assert choices(result) == [(9, 5), (9, 9, 9, 9), (5,), (9, 8, 5)]
    assert [c.finish_reason for c in result.choices] == ["stop", "length", "stop", "stop"]
    assert (result.usage.prompt_tokens, result.usage.completion_tokens) == (18, 10)
