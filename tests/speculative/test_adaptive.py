"""The policy on its own: invented sequences, and a clock that is a function of what is done."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from mini_infer.scheduler.plan import Slice, StepPlan
from mini_infer.speculative.adaptive import (
    KEPT_STEPS,
    MOST,
    Adaptive,
    Costs,
    Fit,
    Fixed,
    StepTimes,
    acceptance,
    is_measured,
)


def sequence(accepted: int = 0, judged: tuple[int, ...] = (), tokens: int = 100, last: int = 100) -> Any:
    return SimpleNamespace(accepted=accepted, judged_by_position=judged, num_tokens=tokens, last_drafted=last)


def expected_tokens(alpha: float, k: int) -> float:
    """Leviathan et al. 2023, equation 1, as a sum."""
    return sum(alpha**i for i in range(k + 1))


def measured(draft_s: float, base_s: float, row_s: float, sequences: int = 1) -> Adaptive:
    """A policy that saw steps of these costs, at every width."""
    policy = Adaptive()
    for k in range(9):
        rows = sequences * (1 + k)
        policy.costs.add(StepTimes(sequences, rows, base_s + row_s * rows, k, k * sequences, k * draft_s))
    return policy


# --- acceptance -----------------------------------------------------------------------------------------------------


def test_acceptance_starts_at_0_7_with_the_weight_of_8_judgements():
    assert acceptance(sequence()) == pytest.approx(0.7)
    assert acceptance(sequence(0, (8,))) == pytest.approx(5.6 / 16)
    assert acceptance(sequence(5, (5, 3))) == pytest.approx(10.6 / 16)
    assert acceptance(sequence(900, (300, 300, 300))) == pytest.approx(1.0, abs=0.01)


# --- fits -----------------------------------------------------------------------------------------------------------


def test_a_line_is_found_again():
    fit = Fit()
    assert fit.at(3) is None
    for x in (1, 5, 9, 3):
        fit.add(x, 0.02 + 0.003 * x)
    assert fit.at(7) == pytest.approx(0.041)
    assert fit.at(0) == pytest.approx(0.02)
    assert fit.varies


def test_without_two_widths_it_is_the_mean():
    fit = Fit()
    for y in (1.0, 3.0):
        fit.add(5, y)
    assert fit.at(1) == fit.at(100) == 2.0
    assert not fit.varies


def test_more_rows_never_cost_less():
    fit = Fit()
    fit.add(1, 2.0)
    fit.add(9, 1.0)
    assert fit.at(1) == fit.at(9) == 1.5


def test_only_the_last_64_steps_count():
    fit = Fit()
    for x in range(100):
        fit.add(x % 7, 1000.0)
    for x in range(KEPT_STEPS):
        fit.add(x % 7, 1.0 + x % 7)
    assert fit.at(3) == pytest.approx(4.0)


def test_noise_is_averaged():
    rng = random.Random(0)
    fit = Fit()
    for _ in range(KEPT_STEPS):
        x = rng.randrange(1, 10)
        fit.add(x, (0.05 + 0.002 * x) * rng.uniform(0.9, 1.1))
    assert fit.at(1) == pytest.approx(0.052, rel=0.05)


def test_steps_that_read_a_prompt_are_not_measured():
    decode, verify = Slice("a", 9, 1, 0, "last"), Slice("b", 4, 1, 3, "last")
    assert is_measured(StepPlan(1, (decode, verify)))
    assert not is_measured(StepPlan(1, (decode, Slice("c", 0, 8, 0, "none"))))


@pytest.mark.parametrize(("lacking", "counted"), [(1, True), (2, True), (90, False)])
def test_a_draft_that_catches_up_on_a_prompt_is_no_measure_of_a_round(lacking, counted):
    """Its first forward reads the whole prompt: taken for a round, it would end drafting before it began."""
    from mini_infer.speculative.draft_model import DraftModel

    model = DraftModel(SimpleNamespace(config=SimpleNamespace(vocab_size=9)), Adaptive(), 9)  # type: ignore[arg-type]
    model.forwards, model.rows = 4, lacking + 3
    plan = StepPlan(1, (Slice("a", 99, 1, 4, "last"),), (Slice("a", 100 - lacking, lacking, 0, "last"),))
    model.observe(plan, draft_s=0.4, verify_s=0.1)
    assert (model.policy.costs.draft.at(1) is not None) is counted
    assert model.policy.costs.verify.at(5) == pytest.approx(0.1)


def test_a_plain_step_is_known_once_two_widths_were_seen():
    costs = Costs()
    assert costs.plain_step_s(1) is None
    costs.add(StepTimes(1, 5, 0.05))
    assert costs.plain_step_s(1) is None
    costs.add(StepTimes(1, 3, 0.03))
    assert costs.plain_step_s(1) == pytest.approx(0.01)


# --- the choice -----------------------------------------------------------------------------------------------------


def test_until_costs_are_known_k_is_4():
    policy = Adaptive()
    assert policy.choose(sequence()) == (4, None)
    policy.costs.add(StepTimes(1, 1, 0.05))  # a plain step: nothing is known of the draft
    assert policy.choose(sequence()) == (4, None)
    policy.costs.add(StepTimes(1, 5, 0.06, 4, 4, 0.02))
    assert policy.choose(sequence()) != (4, None) or policy.best(0.7) == 4
    assert Adaptive(most=2).choose(sequence()) == (2, None)


@pytest.mark.parametrize("alpha", [0.0, 0.2, 0.5, 0.7, 0.9, 0.99, 1.0])
@pytest.mark.parametrize(("draft_s", "base_s", "row_s"), [(0.1, 1, 0.01), (0.02, 1, 0.2), (1, 1, 0), (0.3, 1, 0.1)])
@pytest.mark.parametrize("sequences", [1, 4, 16])
def test_it_is_the_k_with_the_most_tokens_per_second(alpha, draft_s, base_s, row_s, sequences):
    policy = measured(draft_s, base_s, row_s, sequences)

    def rate(k: int) -> float:
        return expected_tokens(alpha, k) / (k * draft_s + base_s + row_s * sequences * (1 + k))

    best = policy.best(alpha)
    assert 0 <= best <= MOST
    assert rate(best) == pytest.approx(max(rate(k) for k in range(MOST + 1)))


def test_cheap_good_drafts_are_taken_in_full_and_dear_or_bad_ones_not_at_all():
    assert measured(0.01, 1, 0.001).best(0.99) == 8
    assert measured(1.0, 1, 0.001).best(0.7) == 0
    assert measured(0.1, 1, 0.01).best(0.0) == 0
    assert measured(0.1, 0, 1.0).best(0.8) == 0  # a machine on which two rows cost twice as much as one


def test_a_large_batch_drafts_less_than_a_small_one():
    chosen = [measured(0.05, 1, 0.05, sequences=n).best(0.7) for n in (1, 4, 16, 64)]
    assert chosen == sorted(chosen, reverse=True)
    assert chosen[0] > 2
    assert chosen[-1] == 0


def test_a_proposer_without_a_model_needs_no_draft_times():
    policy = Adaptive(drafts_free=True)
    for k in range(9):
        policy.costs.add(StepTimes(1, 1 + k, 1 + 0.05 * (1 + k)))
    assert policy.best(0.9) == 8
    assert 0 < policy.best(0.3) < 8


def test_a_sequence_whose_drafts_are_refused_stops_drafting():
    policy = measured(0.1, 1, 0.05)
    judged, ks = 0, []
    for _ in range(40):
        k, why = policy.choose(sequence(0, (judged,)))
        ks.append(k)
        judged += bool(k)
    assert ks[0] >= 2
    assert ks == sorted(ks, reverse=True)
    assert (ks[-1], why) == (0, "ADAPTIVE")


def test_k_0_is_tried_again_with_2_every_64_tokens():
    policy = measured(1.0, 1, 0.0)
    tried, last = [], 20
    for tokens in range(20, 300):
        k, why = policy.choose(sequence(tokens=tokens, last=last))
        assert (k, why) in ((0, "ADAPTIVE"), (2, None))
        if k:
            tried.append(tokens)
            last = tokens
    assert tried == [84, 148, 212, 276]


def test_it_finds_the_best_k_of_a_machine_it_learns_from_scratch():
    """Closed loop: the policy chooses, the rounds and the clock answer."""
    machines = ((0.05, 0.02, 0.85, 3, 8), (0.9, 0.02, 0.85, 0, 2), (0.05, 0.02, 0.05, 0, 1))
    for draft_s, row_s, alpha, low, high in machines:
        rng = random.Random(1)
        policy, seq, ks = Adaptive(), sequence(0, [0] * 8, 10, 10), []
        for _ in range(400):
            k, _why = policy.choose(seq)
            seq.last_drafted = seq.num_tokens if k else seq.last_drafted
            kept = 0
            while kept < k and rng.random() < alpha:
                kept += 1
            for i in range(min(kept + 1, k)):
                seq.judged_by_position[i] += 1
            seq.accepted += kept
            seq.num_tokens += kept + 1
            noise = rng.uniform(0.95, 1.05)
            policy.costs.add(StepTimes(1, 1 + k, (1 + row_s * (1 + k)) * noise, k, k, k * draft_s * noise))
            ks.append(k)
        usual = sorted(ks[100:])[150]
        assert low <= usual <= high, (draft_s, alpha, usual)


def test_costs_are_worked_out_once_per_step_and_not_per_sequence(monkeypatch):
    policy = measured(0.1, 1, 0.01)
    solved = 0
    solve = Fit._solve

    def counted(fit: Fit) -> tuple[float, float]:
        nonlocal solved
        solved += 1
        return solve(fit)

    monkeypatch.setattr(Fit, "_solve", counted)
    for step in range(5):
        policy.costs.add(StepTimes(16, 32, 1.0, 1, 16, 0.1))
        for _ in range(100):
            policy.choose(sequence())
        assert solved == 2 * (step + 1)


def test_a_fixed_k_is_that_k_and_0_is_off():
    assert Fixed(3).choose(sequence()) == (3, None)
    assert Fixed(0).choose(sequence()) == (0, "OFF")
