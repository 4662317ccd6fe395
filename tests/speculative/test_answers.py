"""What reaches an answer: the text up to where it ends, and nothing of a draft that was refused."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mini_infer.batch import Batch
from mini_infer.config import EngineConfig
from mini_infer.engine import InferenceEngine
from mini_infer.llm import LLM
from mini_infer.observe.events import encode
from mini_infer.sampling.params import SamplingParams
from mini_infer.speculative.adaptive import Fixed
from mini_infer.speculative.draft_model import DraftModel
from mini_infer.text.tokenizer import Tokenizer
from tests.support import tokenizers
from tests.support.checkpoints import VOCAB
from tests.support.engines import expected, expected_greedy, prompt, run_one, tiny, tiny_engine, tiny_tokenizer
from tests.support.speculation import DRAFTS, SpecRun, spec_all, spec_engine, totals

WORDS = ("alpha", " beta", " gamma", " delta", " epsilon", " zeta")
PROMPT = [1, 2, 3]


# --- stop strings ---------------------------------------------------------------------------------------------------


class Scripted:
    """A model that says the words one by one, whatever it is asked."""

    def __init__(self, num_blocks: int) -> None:
        self.kv = SimpleNamespace(block_size=16, copy=lambda pairs: None)
        self.config = SimpleNamespace(vocab_size=VOCAB + len(WORDS))

    def run(self, batch: Batch) -> list[int]:
        return [batch.positions[r] for r in batch.logit_rows]

    def logits(self, hidden: list[int]) -> torch.Tensor:
        logits = torch.full((len(hidden), VOCAB + len(WORDS)), -9.0, dtype=torch.float64)
        for row, position in enumerate(hidden):
            logits[row, VOCAB + max(0, position + 1 - len(PROMPT)) % len(WORDS)] = 9.0
        return logits

    def finite(self, hidden: list[int]) -> list[bool]:
        return [True] * len(hidden)

    def zero_blocks(self, blocks: Any) -> None:
        pass


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """The tiny tokenizer with one token for each word."""
    files = tokenizers.byte_level()
    files["added_tokens"] += [
        tokenizers.added_token(VOCAB + i, word, special=False) for i, word in enumerate(WORDS)
    ]  # fmt: skip
    return tokenizers.load(tokenizers.write(tmp_path_factory.mktemp("words"), files))


@pytest.mark.parametrize("k", [None, 1, 2, 4, 8])
@pytest.mark.parametrize(
    ("stop", "text", "count"),
    [
        ("ta gam", "alpha be", 3),
        ("a", "", None),
        ("delta", "alpha beta gamma ", 4),
        ("gamma delta eps", "alpha beta ", 5),
        (" zeta", "alpha beta gamma delta epsilon", 6),
    ],
)
def test_P17_a_stop_string_inside_an_accepted_run(words, k, stop, text, count):
    _, config = tiny()
    config = replace(config, vocab_size=VOCAB + len(WORDS))
    proposer = None if k is None else DraftModel(Scripted(16), Fixed(k), config.vocab_size)  # type: ignore[arg-type]
    engine = InferenceEngine(None, config, 16, runner=Scripted(16), tokenizer=words, proposer=proposer)  # type: ignore[arg-type]
    run = SpecRun(engine)
    run.add(PROMPT, SamplingParams(temperature=0, max_tokens=20, stop=[stop], logprobs=0))
    (result,) = run.finish()
    assert (result.text, result.finish_reason, result.choices[0].stop) == (text, "stop", stop)
    shown = "".join(o.text for report in run.reports for o in report.outputs)
    assert shown == text, "a chunk held more"
    count = count or 1
    assert list(result.token_ids) == [VOCAB + i for i in range(count)]
    assert result.usage.completion_tokens == len(result.logprobs) == count
    assert result.usage.drafted == result.usage.accepted


@pytest.mark.parametrize("draft", DRAFTS)
def test_P17_text_usage_and_scores_are_those_without_drafts_and_the_next_turn_is_that_of_a_cold_start(draft):
    ids = prompt(30, seed=6)
    whole = expected_greedy(ids, 30)
    pieces = [tiny_tokenizer().piece(i) for i in whole]
    engine = spec_engine(draft, 4, text=True)
    tried = 0
    for i in range(2, 14):
        stop = pieces[i][-1:] + pieces[i + 1][:1]
        if not stop.isascii() or not stop.isprintable():
            continue
        tried += 1
        params = SamplingParams(temperature=0, max_tokens=30, stop=[stop], logprobs=1)
        plain = run_one(tiny_engine(text="chatml"), ids, params)
        (result,) = spec_all(engine, [(ids, params)])
        assert (result.text, result.token_ids, result.finish_reason) == (
            plain.text,
            plain.token_ids,
            plain.finish_reason,
        )
        assert result.usage.completion_tokens == plain.usage.completion_tokens
        assert [t.token_id for t in result.logprobs] == [t.token_id for t in plain.logprobs]
        assert [t.logprob for t in result.logprobs] == pytest.approx([t.logprob for t in plain.logprobs], abs=1e-9)
        follow_up = [*ids, *result.token_ids, *prompt(6, seed=i)]
        (second,) = spec_all(engine, [(follow_up, SamplingParams(temperature=0, max_tokens=12))])
        assert list(second.token_ids) == expected_greedy(follow_up, 12)
        assert second.usage.cached_tokens >= 16 * ((len(ids) + len(result.token_ids) - 1) // 16)
    assert tried >= 4


# --- what a refused draft leaves ------------------------------------------------------------------------------------


@pytest.mark.parametrize("draft", ["near", "bad", "ngram"])
@pytest.mark.parametrize("block_size", [2, 4])
def test_published_blocks_hold_tokens_of_answers_and_never_a_refused_draft(draft, block_size):
    engine = spec_engine(draft, 8, block_size=block_size, num_blocks=400)
    jobs = [
        (prompt(9 + n, n), SamplingParams(temperature=1, seed=n, max_tokens=40, frequency_penalty=-1))
        for n in range(6)
    ]  # fmt: skip
    results = spec_all(engine, jobs)
    assert totals(engine)["accepted"] < totals(engine)["drafted"] or draft == "ngram"
    whole = [(*ids, *r.token_ids) for (ids, _), r in zip(jobs, results, strict=True)]
    entries = engine.scheduler.prefix.entries
    for entry in entries.values():
        chain = entry.tokens
        parent = entry.parent
        while parent in entries:
            chain = entries[parent].tokens + chain
            parent = entries[parent].parent
        assert any(tokens[: len(chain)] == chain for tokens in whole)
    assert len(entries) == sum((len(tokens) - 1) // block_size for tokens in whole)  # and all of them are there


def test_every_delivered_token_is_one_of_the_target():
    """Refused drafts are in the rounds' reports alone: not in outputs, text or scores."""
    run = SpecRun(spec_engine("bad", 4, text=True))
    run.add(prompt(9), SamplingParams(temperature=0, max_tokens=30, logprobs=2))
    (result,) = run.finish()
    refused = {r.draft[r.kept] for r in run.rounds if len(r.draft) > r.kept}
    assert len(refused) > 10
    assert list(result.token_ids) == expected_greedy(prompt(9), 30)
    assert [t.token_id for t in result.logprobs] == list(result.token_ids)
    assert result.text == tiny_tokenizer().decode(result.token_ids)


# --- without a proposer ---------------------------------------------------------------------------------------------


def calls_into_speculative(engine: InferenceEngine, params: SamplingParams) -> set[str]:
    """Names of the functions of `mini_infer.speculative` that run while requests come, fork, are preempted and end."""
    found: set[str] = set()

    def spy(frame: Any, event: str, argument: Any) -> None:
        if event == "call" and f"{Path('mini_infer', 'speculative')}/" in frame.f_code.co_filename:
            found.add(frame.f_code.co_name)

    run = SpecRun(engine)
    sys.setprofile(spy)
    try:
        for n in range(3):
            run.add(prompt(33, n % 2), replace(params, n=1 + n))
        run.finish()
    finally:
        sys.setprofile(None)
    return found


@pytest.mark.parametrize(
    "params", [SamplingParams(temperature=0, max_tokens=30), SamplingParams(temperature=1, max_tokens=30)]
)
def test_with_none_nothing_in_speculative_is_called(params):
    small = {"num_blocks": 24, "block_size": 4}
    assert calls_into_speculative(spec_engine(None, **small), params) == set()
    found = calls_into_speculative(spec_engine("good", **small), params)
    assert {"propose", "choose", "commit_drafts", "verify"} <= found


# --- figures --------------------------------------------------------------------------------------------------------


def test_usage_counts_what_the_rounds_reported():
    for draft in DRAFTS:
        run = SpecRun(spec_engine(draft, (4, 2, 8), entropy_seed=0))
        for n in range(6):
            run.add(prompt(9 + n, n), SamplingParams(temperature=1, max_tokens=30, frequency_penalty=-1, n=1 + n % 2))
        results = run.finish()
        for request_id, result in zip(run.collectors, results, strict=True):
            rounds = [r for r in run.rounds if r.seq_id.split("/")[0] == request_id]
            usage = result.usage
            assert usage.rounds == len(rounds)
            assert usage.drafted == sum(r.drafted for r in rounds)
            assert usage.accepted == sum(r.kept for r in rounds) == sum(usage.accepted_by_position)
            assert sum(usage.judged_by_position) == sum(len(r.draft) for r in rounds)
            for i, n in enumerate(usage.judged_by_position):
                assert n == sum(len(r.draft) > i for r in rounds)
            assert usage.steps == sum(bool(o.token_ids) for report in run.reports for o in report.outputs
                                      if o.seq_id.split("/")[0] == request_id)  # fmt: skip
        assert totals(run.engine)["accepted"] == sum(r.usage.accepted for r in results)


def test_a_report_of_16_requests_with_8_drafts_stays_below_8_kb():
    run = SpecRun(spec_engine("near", 8, num_blocks=200, max_running=16, text=True, entropy_seed=0))
    for n in range(16):
        run.add(prompt(12, n), SamplingParams(temperature=1, max_tokens=60))
    run.finish()
    full = [r for r in run.reports if len(r.spec) == 16]
    assert full
    # texts new to the stream are told once, and counted apart
    assert max(len(encode(r)) - len(encode(r.pieces)) for r in full) < 8192


def test_a_script_gets_drafts_by_name():
    model, config = tiny()
    options = EngineConfig(draft="ngram", draft_tokens=4)
    engine = InferenceEngine(model, config, 64, options=options, tokenizer=tiny_tokenizer())
    llm = LLM(engine=engine)
    ids, params = prompt(9), SamplingParams(temperature=0, max_tokens=30, frequency_penalty=-2)
    result = llm.generate([ids], params)[0]
    assert list(result.token_ids) == expected(ids, params)
    assert result.usage.accepted > 0
    with pytest.raises(ValueError, match="build_engine"):
        InferenceEngine(model, config, 64, options=EngineConfig(draft="some/model"))
