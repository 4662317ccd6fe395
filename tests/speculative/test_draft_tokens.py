"""K is changed while the engine runs."""

from __future__ import annotations

import pytest

from mini_infer.sampling.params import SamplingParams
from mini_infer.speculative.adaptive import Adaptive, Fixed
from tests.support.speculation import SpecRun, spec_engine


def test_k_changes_from_the_next_step_on_and_the_measured_costs_stay() -> None:
    engine = spec_engine("good", 4)
    run = SpecRun(engine)
    run.add([1, 2, 3], SamplingParams(temperature=0, max_tokens=60))
    costs = engine.proposer.policy.costs
    widths = []
    for k in (4, 2, 0, 7):
        engine.set_draft_tokens(k)
        for _ in range(3):
            run.step()
            widths.append((k, max((r.drafted for r in run.reports[-1].spec), default=0)))
    assert all(k == drafted for k, drafted in widths[2:]), widths
    assert (0, "OFF") in run.reasons("r1")
    engine.set_draft_tokens(None)
    assert isinstance(engine.proposer.policy, Adaptive)
    assert engine.proposer.policy.costs is costs


def test_what_cannot_be_drafted_is_refused_and_without_a_proposer_nothing_changes() -> None:
    engine = spec_engine("ngram", 4)
    for k in (-1, 9):
        with pytest.raises(ValueError, match="0 to 8"):
            engine.set_draft_tokens(k)
    assert isinstance(engine.proposer.policy, Fixed)
    engine.set_draft_tokens(None)
    assert engine.proposer.policy.drafts_free
    none = spec_engine(None)
    none.set_draft_tokens(3)
    assert none.proposer is None
