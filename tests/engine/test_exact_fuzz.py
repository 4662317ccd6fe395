"""Everything at once, at random: each answer must still be the reference's, token for token, in float64.

A case draws the engine (blocks, budgets, cache, who drafts), requests that come and go at any time, preemptions, and
faults that do not come again. Whatever is drawn may change when an answer comes, never what it is.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest
import torch

from mini_infer.config import EngineConfig
from mini_infer.engine import InferenceEngine
from mini_infer.sampling.params import SamplingParams
from mini_infer.speculative.build import build_proposer
from tests.support.checkpoints import VOCAB, tiny_model
from tests.support.engines import Hooks, Run, expected, expected_logprobs, preempt_when, prompt, tiny, tiny_tokenizer
from tests.support.fake import idle
from tests.support.watch import Mirror

DRAFTS = {"self": lambda: tiny("qwen2"), "other": lambda: tiny_model("qwen2", torch.float64, seed=9)}


@dataclass
class Case:
    rng: random.Random

    def one_in(self, n):
        return self.rng.randrange(n) == 0

    def params(self):
        rng, some = self.rng, {}
        greedy = self.one_in(3)
        count = rng.randrange(1, 30)
        choices = {
            "top_k": lambda: rng.choice((1, 3, 40)),
            "top_p": lambda: rng.choice((0.3, 0.9)),
            "min_p": lambda: 0.05,
            "repetition_penalty": lambda: rng.choice((0.8, 1.2)),
            "presence_penalty": lambda: rng.choice((-0.5, 0.7)),
            "frequency_penalty": lambda: rng.choice((-0.5, 0.7)),
            "logit_bias": lambda: {rng.randrange(VOCAB): rng.choice((-100, 3, 6)) for _ in range(3)},
            "min_tokens": lambda: rng.randrange(count + 1),
            "stop_token_ids": lambda: [rng.randrange(VOCAB) for _ in range(20)],
            "ignore_eos": lambda: True,
            "logprobs": lambda: rng.choice((0, 2)),
            "prompt_logprobs": lambda: rng.choice((0, 1)),
        }
        for name, draw in choices.items():
            if self.one_in(5):
                some[name] = draw()
        temperature = 0 if greedy else rng.choice((0.5, 1, 1.5))
        n = rng.choice((1, 1, 1, 2, 3))
        return SamplingParams(temperature=temperature, seed=rng.randrange(50), max_tokens=count, n=n, **some)

    def engine(self):
        rng = self.rng
        size, running = rng.choice((1, 2, 3, 4, 8, 16)), rng.choice((1, 2, 4, 8))
        batch = max(running, rng.choice((running, running + 3, 20, 64)))
        draft = rng.choice(("none", "ngram", *DRAFTS))
        options = EngineConfig(
            max_running=running,
            max_batch_tokens=batch,
            max_chunk=min(batch, rng.choice((1, 4, 9, 64))),
            prefix_cache=not self.one_in(3),
            block_size=size,
            max_model_len=rng.choice((None, 80)),
            draft=draft,
            draft_tokens=rng.choice((1, 2, 3, 8)),
        )
        blocks = max(4, rng.choice((90, 120, 200, 600)) // size)
        model, config = tiny("qwen2")
        config = replace(config, eos_token_ids=tuple(rng.randrange(VOCAB) for _ in range(rng.choice((0, 3, 20)))))
        pair = DRAFTS[draft]() if draft in DRAFTS else None
        proposer = build_proposer(options, VOCAB, pair, num_blocks=blocks)
        tokenizer = tiny_tokenizer() if self.one_in(2) else None
        return InferenceEngine(model, config, blocks, options=options, tokenizer=tokenizer, proposer=proposer)

    def disturb(self, engine):
        """Preemptions out of nowhere, and steps that fail once as a whole."""
        rng, hooks = self.rng, Hooks(engine)
        if self.one_in(3):
            preempt_when(engine, lambda seq: engine.scheduler.step < 150 and rng.random() < 0.05)
        if self.one_in(3):
            due = [rng.randrange(3, 20)]

            def fail(batch):
                if len(hooks.batches) >= due[0]:
                    due[0] = len(hooks.batches) + 60  # past the steps in which its sequences run again one by one
                    raise RuntimeError("once")

            setattr(hooks, rng.choice(("before", "after")), fail)

    def play(self, run):
        """Requests at random times; gives what was asked, and which of it was aborted."""
        rng, engine, asked, aborted = self.rng, run.engine, {}, set()
        pool = engine.scheduler.pool
        shared = prompt(60, seed=rng.randrange(3))
        for _ in range(rng.randrange(1, 10)):
            length = rng.randrange(1, 60)
            ids = shared[:length] if self.one_in(2) else prompt(length, seed=rng.randrange(1000))
            params = self.params()
            room = (pool.num_blocks - (params.n - 1)) * pool.block_size
            if params.n > engine.scheduler.max_running or length >= min(room, engine.max_model_len):
                continue
            request = run.add(ids, params, priority=rng.choice((0, 0, 0, 1)))
            asked[request] = (ids, params)
            for _ in range(rng.randrange(6)):
                run.step()
            if self.one_in(10):
                aborted.add(request)
                engine.abort(request)
        run.finish()
        return asked, aborted


@pytest.mark.parametrize("seed", range(60))
def test_whatever_happens_answers_are_the_references(seed):
    case = Case(random.Random(seed))
    engine = case.engine()
    case.disturb(engine)
    run, mirror = Run(engine), Mirror()
    if not case.one_in(3):
        engine.attach(mirror)
    asked, aborted = case.play(run)
    assert idle(engine)
    assert engine.snapshot().totals.faults == 0
    assert mirror.state in (None, engine.snapshot())
    for request, (ids, params) in asked.items():
        result = run.results[request]
        for choice in result.choices:
            check(engine, ids, params, choice, request in aborted)
        if params.prompt_logprobs is not None and request not in aborted:
            found = [t.logprob for t in result.prompt_logprobs[1:]]
            assert found == pytest.approx(expected_logprobs(ids, 1), abs=1e-9)


def check(engine, ids, params, choice, aborted):
    most = min(params.max_tokens, engine.max_model_len - len(ids))
    plain = replace(params, n=1, max_tokens=most, min_tokens=min(params.min_tokens, most), logprobs=None)
    want = expected(ids, plain, choice=choice.index, eos=engine.config.eos_token_ids)
    got = list(choice.token_ids)
    assert got == want[: len(got)]
    pool = engine.scheduler.pool
    full = len(ids) + len(got) > pool.num_blocks * pool.block_size - pool.block_size  # alone, and no block was left
    if aborted:
        assert choice.finish_reason in ("abort", "stop", "length")
    else:
        assert choice.finish_reason in ("stop", "length"), choice.error
        assert len(got) == len(want) or (choice.finish_reason == "length" and full)
    if params.logprobs is not None:
        found = [t.logprob for t in choice.logprobs]
        assert found == pytest.approx(expected_logprobs([*ids, *got], len(ids)), abs=1e-9)
