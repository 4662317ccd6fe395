"""Parameters are checked once, by name, value and range, and filled from a checkpoint's defaults."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest

from mini_infer.errors import UserError
from mini_infer.sampling.params import SamplingParams


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("temperature", [0, 0.0, 1e-30, 1, 2.0], [-0.1, 2.1, math.nan, math.inf, "1", True, [1], 10**400]),
        ("top_p", [0, 1e-9, 0.5, 1, 1.0], [1.0001, -0.1, math.nan, "0.5", False]),
        ("top_k", [-1, 0, 1, 10**30], [-2, 1.0, "5", True, math.nan]),
        ("min_p", [0, 0.05, 1], [-0.01, 1.01, math.nan, "0"]),
        ("repetition_penalty", [1e-9, 1.0, 2, 1e9], [0, -1, 0.0, math.nan, math.inf, 10**400, "1", True]),
        ("presence_penalty", [-2, 0, 2.0], [-2.01, 3, math.nan, "1"]),
        ("frequency_penalty", [-2, 0, 2.0], [-2.01, 3, math.inf, True]),
        ("seed", [0, -1, 2**64, 10**30], [1.0, "1", True, math.nan]),
        ("n", [1, 4], [0, -1, 1.0, "1", True]),
        ("max_tokens", [1, 10**9], [0, -5, 1.5, "12", True]),
        ("min_tokens", [0, 5], [-1, 1.0, "0"]),
        ("stop_token_ids", [[], [3], (0, 1)], [[-1], ["3"], "3", 3, [1.0], [True]]),
        ("ignore_eos", [True, False], [0, 1, "true"]),
        ("logprobs", [0, 20], [-1, 21, True, 1.0, "3"]),
        ("prompt_logprobs", [0, 20], [-1, 21, True]),
        ("logit_bias", [{}, {7: 100}, {"7": -100.0}, [(1, 2.0)]],
         [{7: 101}, {7: -100.5}, {-1: 1}, {"x": 1}, {7: "1"}, {7: math.nan}, {True: 1}, {1.0: 1}, 5, {7: 1, "7": 2}]),
    ],
)  # fmt: skip
def test_values_in_range_are_taken_and_others_refused_by_name(name, good, bad):
    for value in good:
        SamplingParams(**{name: value})
    for value in bad:
        with pytest.raises(UserError, match=name) as refusal:
            SamplingParams(**{name: value})
        assert "\n" not in str(refusal.value)
        assert len(str(refusal.value)) < 200


def test_M01_temperatures_up_to_1e_5_are_greedy_and_2_is_legal():
    assert all(SamplingParams(temperature=t).is_plain_greedy for t in (0, 1e-30, 1e-8, 1e-5))
    assert not any(SamplingParams(temperature=t).is_greedy for t in (1e-4, 1e-3, 1.0, 2.0))


def test_M02_zero_is_a_value_and_not_unset():
    assert SamplingParams(temperature=1, top_p=0).is_plain_greedy
    assert SamplingParams(temperature=1, top_k=1).is_plain_greedy
    assert SamplingParams(temperature=1, top_p=1e-9).shaping.top_p == 1e-9
    checkpoint = {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.1}
    assert SamplingParams(temperature=0).with_defaults(checkpoint).is_plain_greedy
    assert SamplingParams(top_p=0.0).with_defaults(checkpoint).shaping.top_p == 0.0
    assert SamplingParams(top_k=0).with_defaults(checkpoint).shaping.top_k == 0


def test_M11_penalties_outside_their_range_are_refused():
    for value in (0, -1):
        with pytest.raises(UserError, match="repetition_penalty must be a finite number above 0"):
            SamplingParams(repetition_penalty=value)
    for name in ("frequency_penalty", "presence_penalty"):
        with pytest.raises(UserError, match=f"{name} must be a number from -2 to 2, not 3"):
            SamplingParams(**{name: 3})


def test_T12_empty_stop_texts_are_refused_and_none_is_none():
    for empty in ("", [""], ["a", ""]):
        with pytest.raises(UserError, match=r"stop must be texts of at least one character, not ''$"):
            SamplingParams(stop=empty)
    assert SamplingParams(stop=[]).stop == SamplingParams(stop=None).stop == ()
    assert SamplingParams(stop="ab").stop == ("ab",)
    assert SamplingParams(stop=["a", "b", "c", "d", "e"]).stop == ("a", "b", "c", "d", "e")
    for half in ("\udce4", ("\udce4",), ["a", "b\ud800c"]):
        with pytest.raises(UserError, match=r"stop must be text in UTF-8, of whole characters, not '.*\\u?d[c8]"):
            SamplingParams(stop=half)
    for wrong in (5, [5], {"a": 1}, b"a"):
        with pytest.raises(UserError, match="stop must be a text or a list of texts"):
            SamplingParams(stop=wrong)
    assert len(SamplingParams(stop=["x"] * 16).stop) == 16
    with pytest.raises(UserError, match="stop must be at most 16 texts, not 17"):
        SamplingParams(stop=["x"] * 17)


def test_token_limits_must_agree():
    assert SamplingParams(max_tokens=5, min_tokens=5).min_tokens == 5
    with pytest.raises(UserError, match=r"min_tokens must be at most max_tokens \(4\), not 5"):
        SamplingParams(max_tokens=4, min_tokens=5)
    assert SamplingParams(max_tokens=0, prompt_logprobs=0).max_tokens == 0
    with pytest.raises(UserError, match="max_tokens must be at least 1"):
        SamplingParams(max_tokens=0)


def test_stored_values_are_normal_hashable_and_equal():
    params = SamplingParams(logit_bias={"9": 1, 2: -3}, seed=-1, stop=["x"], stop_token_ids=[4])
    assert params.shaping.logit_bias == ((2, -3.0), (9, 1.0))
    assert params.seed == 2**64 - 1
    assert params == SamplingParams(logit_bias={2: -3, 9: 1}, seed=2**64 - 1, stop="x", stop_token_ids=(4,))
    assert hash(params) == hash(SamplingParams(logit_bias={2: -3, 9: 1}, seed=2**64 - 1, stop="x", stop_token_ids=(4,)))
    assert all(getattr(params.shaping, name) is not None for name in params.shaping.__slots__)


def test_checkpoint_defaults_fill_only_what_is_unset():
    checkpoint = {"do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.1}
    filled = SamplingParams().with_defaults(checkpoint)
    assert (filled.temperature, filled.top_p, filled.top_k, filled.repetition_penalty) == (0.7, 0.8, 20, 1.1)
    assert SamplingParams(temperature=1.5, top_p=1).with_defaults(checkpoint).shaping.top_p == 1.0
    assert SamplingParams(temperature=1.5, top_p=1).with_defaults(checkpoint).temperature == 1.5
    assert SamplingParams().with_defaults({"temperature": None, "bos_token_id": 1}).shaping.temperature == 1.0
    assert SamplingParams(max_tokens=3, stop="x").with_defaults(checkpoint).max_tokens == 3


def test_an_explicit_temperature_of_0_is_the_plain_argmax():
    checkpoint = {"repetition_penalty": 1.3, "top_k": 20}
    for temperature in (0, 0.0, 1e-9):
        params = SamplingParams(temperature=temperature).with_defaults(checkpoint)
        assert params.is_plain_greedy
        assert params.shaping.repetition_penalty == 1.0
    assert SamplingParams.greedy().with_defaults(checkpoint).is_plain_greedy
    # what the request itself asked for stays
    kept = SamplingParams(temperature=0, repetition_penalty=1.2).with_defaults(checkpoint)
    assert kept.shaping.repetition_penalty == 1.2


def test_do_sample_false_means_greedy_unless_a_temperature_is_asked_for():
    checkpoint = {"do_sample": False, "temperature": 0.7, "repetition_penalty": 1.1}
    greedy = SamplingParams().with_defaults(checkpoint)
    assert greedy.is_greedy
    assert greedy.shaping.repetition_penalty == 1.1
    assert SamplingParams(temperature=0.5).with_defaults(checkpoint).temperature == 0.5


def test_a_bad_default_names_its_file():
    with pytest.raises(UserError, match=r"generation_config.json: top_p must be a number from 0 to 1, not 7"):
        SamplingParams().with_defaults({"top_p": 7})


def test_token_ids_must_exist():
    SamplingParams(logit_bias={9: 1}, stop_token_ids=[9]).check_vocab(10)
    with pytest.raises(UserError, match="logit_bias must name token ids from 0 to 9, not 10"):
        SamplingParams(logit_bias={10: 1}).check_vocab(10)
    with pytest.raises(UserError, match="stop_token_ids must name token ids from 0 to 9, not 12"):
        SamplingParams(stop_token_ids=[12]).check_vocab(10)


def test_parameters_load_no_torch():
    code = "import sys, mini_infer.sampling.params, mini_infer.sampling.rows; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
