"""End to end: what unseeded requests answer is distributed as the target says, with drafts as without."""

from __future__ import annotations

import pytest

from mini_infer.sampling.params import SamplingParams
from tests.support.distribution import exact, p_value, pair, sample
from tests.support.speculation import totals

SHAPED = SamplingParams(temperature=0.9, top_p=0.9, frequency_penalty=1.5, max_tokens=4)
COUNT = 20_000


@pytest.mark.parametrize("entropy_seed", [0, 1, 2])
@pytest.mark.parametrize("ks", [(), (1, 2)], ids=["without drafts", "with drafts"])
def test_20_000_beginnings_of_three_tokens_follow_the_target(entropy_seed, ks):
    """Four tokens are asked for, so that the second and third are drafts, replacements or bonus tokens."""
    models = pair(32, 0.05)
    answers, engine = sample(models, SHAPED, COUNT, ks=ks, entropy_seed=entropy_seed)
    assert p_value(answers, exact(models, SHAPED, 3)) > 1e-4
    if ks:
        assert 0.4 < totals(engine)["accepted"] / totals(engine)["drafted"] < 0.8


@pytest.mark.parametrize(("noise", "draft_seed", "count"), [(0.0, 1, COUNT), (0.01, 0, 5_000)])
def test_P01_first_tokens_of_the_tiny_checkpoint_with_top_k_4(noise, draft_seed, count):
    """With K = 1 the second token is a draft or its replacement, the third a bonus or plain."""
    models = pair(384, noise, draft_seed, small=False)
    params = SamplingParams(temperature=1, top_k=4, max_tokens=3)
    answers, _ = sample(models, params, count, ks=(4,))
    expected = exact(models, params, 3)
    for length in (1, 2, 3):
        marginal: dict[tuple[int, ...], float] = {}
        for tokens, probability in expected.items():
            marginal[tokens[:length]] = marginal.get(tokens[:length], 0.0) + probability
        assert p_value(answers, marginal) > 0.001
