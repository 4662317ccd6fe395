"""Real checkpoints answer as transformers does: from the command line, in a batch, and under preemption.

Greedy ids are compared by `ties`: they may part only where the reference itself all but tied.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from mini_infer.config import EngineConfig
from mini_infer.engine import InferenceEngine
from mini_infer.models.loader import load_model_from_safetensors
from mini_infer.sampling.params import SamplingParams
from tests.support.engines import run_all
from tests.support.ties import TieCounter

pytestmark = pytest.mark.real

FRANCE = "The capital of France is?"

STOCK = "\n".join(
    f"Shelf {i}: {7 * i % 31 + 2} boxes of {thing}, delivered in week {i % 52 + 1} by lorry {100 + 3 * i}."
    for i, thing in enumerate(
        ("nails", "copper wire", "paint", "oak boards", "glue", "door handles", "tiles", "hinges", "sand paper") * 3
    )
)
DIARY = " ".join(
    f"On day {day} we walked {3 + day * 5 % 17} miles, {weather}, and slept {place}."
    for day, (weather, place) in enumerate(
        (
            ("it rained until noon", "in a barn near the river"),
            ("the sun was hot", "under two old pine trees"),
            ("a cold wind blew from the north", "at the house of a miller"),
            ("fog hid the hills", "beside the road"),
        )
        * 8,
        start=1,
    )
)
PROMPTS = {
    "haiku": ("Write a haiku about the sea.", 48),
    "sum": ("What is 17 times 23? Show your steps.", 48),
    "hammer": ("List three uses of a hammer.", 48),
    "french": ("Translate to French: Where is the train station?", 48),
    "recursion": ("Explain recursion to a child in two sentences.", 48),
    "german": ("Schreibe einen kurzen Satz über den Regen.", 48),
    "code": ('Complete this function:\ndef fibonacci(n):\n    """Return the n-th Fibonacci number."""\n', 48),
    "sky": ("Why is the sky blue? 🌤 Answer in one sentence.", 48),
    "stock": (f"{STOCK}\n\nWhich shelf holds the most boxes of paint?", 32),
    "diary": (f"{DIARY}\n\nSum up this diary in one sentence.", 32),
}
"""Chosen before the first run, and not changed since."""

SHORT = [name for name in PROMPTS if name not in ("stock", "diary")]


def greedy(count):
    return SamplingParams(temperature=0, max_tokens=count)


def compare(counter, checkpoint, name, ids, count, found):
    wanted, _ = checkpoint.answer(ids, count)
    counter.compare(found, wanted, checkpoint.gap_at(ids, count), name)


def close(counter):
    print(f"\n{len(counter.ties)} of {counter.answers} answers end in a tie: {counter.ties}")
    counter.check()


# --- the command line -----------------------------------------------------------------------------------------------


def generate(folder, *more):
    done = subprocess.run(
        [sys.executable, "-m", "mini_infer", "generate", "--model", str(folder), "--dtype", "float32",
         "--temperature", "0", "--max-tokens", "48", "--json", *more],
        capture_output=True, text=True, timeout=600, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    return json.loads(done.stdout)


def test_the_capital_of_france_from_the_command_line(qwen):
    said = generate(qwen.folder, FRANCE)
    assert "Paris" in said["text"]
    assert said["finish_reason"] == "stop"
    ids = qwen.chat_ids(FRANCE)
    assert said["usage"]["prompt_tokens"] == len(ids)
    assert said["usage"]["completion_tokens"] == len(said["token_ids"])
    counter = TieCounter()
    compare(counter, qwen, "france", ids, 48, said["token_ids"])
    assert said["text"] == qwen.reference_tokenizer.decode(said["token_ids"], skip_special_tokens=True)


def test_the_loop_of_the_first_version(qwen):
    """DESIGN §7 on the model it was written for: `The capital of France is`, ten tokens."""
    engine = InferenceEngine(
        model=qwen.model, config=qwen.config, num_blocks=256, block_size=16, device=torch.device("cpu")
    )
    ids = [785, 6722, 315, 9625, 374]
    req_id = engine.add_request(prompt_tokens=ids, max_tokens=10)
    told = []
    while not engine.is_finished(req_id):
        for seq_id, new_token in engine.step():
            if seq_id == req_id:
                told.append(new_token)
    assert qwen.tokenizer.decode(told).startswith(" Paris")
    compare(TieCounter(), qwen, "loop", ids, 10, told)


# --- ten prompts, both checkpoints ----------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["qwen", "smollm"])
def test_ten_prompts_at_once_agree_with_transformers(which, request):
    checkpoint = request.getfixturevalue(which)
    jobs = {name: (checkpoint.chat_ids(text), count) for name, (text, count) in PROMPTS.items()}
    assert sum(len(ids) > 600 for ids, _ in jobs.values()) >= 2
    results = run_all(checkpoint.engine(), [(ids, greedy(count)) for ids, count in jobs.values()])
    counter = TieCounter()
    for (name, (ids, count)), result in zip(jobs.items(), results, strict=True):
        compare(counter, checkpoint, name, ids, count, list(result.token_ids))
        ended = result.token_ids[-1] in checkpoint.config.eos_token_ids
        assert result.finish_reason == ("stop" if ended else "length")
        assert result.text == checkpoint.reference_tokenizer.decode(result.token_ids, skip_special_tokens=True)
    close(counter)


def test_8_requests_in_a_tiny_pool_agree_with_transformers(smollm):
    """At least five preemptions, recomputed in other shapes than at first: the same answers, but for ties."""
    jobs = {name: (smollm.chat_ids(PROMPTS[name][0]), PROMPTS[name][1]) for name in SHORT}
    for caching in (True, False):
        engine = smollm.engine(num_blocks=60, block_size=4, max_running=8, max_chunk=24, prefix_cache=caching)
        results = run_all(engine, [(ids, greedy(count)) for ids, count in jobs.values()])
        assert engine.scheduler.preemptions >= 5
        counter = TieCounter()
        for (name, (ids, count)), result in zip(jobs.items(), results, strict=True):
            compare(counter, smollm, name, ids, count, list(result.token_ids))
            assert result.usage.prompt_tokens == len(ids)
        close(counter)


def test_chunks_and_hits_agree_with_transformers(smollm):
    ids, count = smollm.chat_ids(PROMPTS["stock"][0]), PROMPTS["stock"][1]
    counter = TieCounter()
    for chunk in (17, 64, 256):
        engine = smollm.engine(max_chunk=chunk, max_batch_tokens=256)
        for _ in range(2):
            (result,) = run_all(engine, [(ids, greedy(count))])
            compare(counter, smollm, f"chunks of {chunk}", ids, count, list(result.token_ids))
        assert result.usage.cached_tokens == (len(ids) - 1) // 16 * 16
    close(counter)


# --- bfloat16 -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["qwen", "smollm"])
def test_bfloat16_alone_and_in_a_batch_agree_but_for_ties(which, request):
    checkpoint = request.getfixturevalue(which)
    model, config = load_model_from_safetensors(checkpoint.folder, device="cpu", dtype="bfloat16")
    config = replace(config, generation={})
    params = SamplingParams(temperature=0, max_tokens=24, logprobs=20)
    jobs = [(checkpoint.chat_ids(PROMPTS[name][0]), params) for name in SHORT]

    def engine():
        return InferenceEngine(model, config, 256, options=EngineConfig(), tokenizer=checkpoint.tokenizer)

    together = run_all(engine(), jobs)
    counter = TieCounter("bfloat16")
    for name, job, batched in zip(SHORT, jobs, together, strict=True):
        (alone,) = run_all(engine(), [job])

        def gap_at(index, wanted, found, alone=alone):
            top = dict(alone.logprobs[index].top)
            return top[wanted] - top.get(found, float("-inf"))

        counter.compare(list(batched.token_ids), list(alone.token_ids), gap_at, name)
    close(counter)
