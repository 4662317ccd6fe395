"""What an engine and its requests are given in Python: what cannot work is refused, and names itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mini_infer.cache.kv_store import KVStore
from mini_infer.config import EngineConfig
from mini_infer.engine import InferenceEngine
from mini_infer.errors import UserError
from mini_infer.llm import LLM
from mini_infer.sampling.params import SamplingParams
from tests.support.engines import tiny, tiny_engine

PROMPT = [1, 2, 3]


def build(**given):
    model, config = tiny()
    return InferenceEngine(model, config, **given)


# --- the pool and the device ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_blocks", [0, -1, 1, True, False, 2.5, 64.0, "8", [8], 1e9, float("nan")])
def test_M5_blocks_that_cannot_be_are_refused(num_blocks):
    with pytest.raises(UserError, match="--kv-blocks is"):
        build(num_blocks=num_blocks)


@pytest.mark.parametrize("block_size", [0, -1, True, False, 1.5, "16"])
def test_M5_block_sizes_that_cannot_be_are_refused(block_size):
    with pytest.raises(UserError, match="--block-size is"):
        build(block_size=block_size)


@pytest.mark.parametrize("given", [{"num_blocks": 10**9}, {"num_blocks": 10**15}, {"block_size": 10**12}])
def test_M5_a_pool_beyond_the_memory_is_refused(given):
    with pytest.raises(UserError, match="of memory beside the weights, but"):
        build(**given)


@pytest.mark.parametrize("device", ["cuda:99", "gpu", "", 5.5, "mps" if torch.cuda.is_available() else "cuda"])
def test_M5_a_device_that_is_not_there_is_refused(device):
    with pytest.raises(UserError, match="is not available to this torch"):
        build(device=device)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_M5_a_device_where_the_weights_are_not_is_refused():
    with pytest.raises(UserError, match="the model's weights are on cpu"):
        build(device="cuda")


@pytest.mark.parametrize("device", [None, "auto", "cpu", torch.device("cpu")])
def test_the_engine_lives_with_its_model(device):
    assert build(device=device).runner.device == torch.device("cpu")


def test_M5_kv_memory_is_honoured():
    config = tiny()[1]
    each = KVStore.bytes_per_block(config.num_layers, 8, config.num_kv_heads, config.head_dim, torch.float64)
    engine = build(options=EngineConfig(kv_memory=10 * each + 1, block_size=8))
    assert engine.scheduler.pool.num_blocks == engine.snapshot().info.num_blocks == engine.limits.num_blocks == 10
    assert engine.options.kv_blocks == 10 and engine.options.kv_memory is None  # what a recording tells
    with pytest.raises(UserError, match="--kv-memory 1 is too small"):
        build(options=EngineConfig(kv_memory=1))


def test_arguments_win_over_options_and_defaults_come_last():
    both = EngineConfig(kv_memory=10**6, block_size=4)
    engine = build(num_blocks=7, block_size=2, options=both)
    assert (engine.scheduler.pool.num_blocks, engine.scheduler.size) == (7, 2)
    assert build(options=EngineConfig(kv_blocks=9)).scheduler.pool.num_blocks == 9
    assert (build().scheduler.pool.num_blocks, build().scheduler.size) == (256, 16)
    assert build(num_blocks=np.int64(8).item()).scheduler.pool.num_blocks == 8


# --- requests -------------------------------------------------------------------------------------------------------

NO_PROMPTS = ["hi", b"hi", {"a": 1}, 5, None, [1.5], [True], [1, False], ["1"], [[1]], [None], np.array([1.5])]


@pytest.mark.parametrize("prompt", NO_PROMPTS, ids=repr)
def test_a_prompt_that_is_no_list_of_ids_is_refused(prompt):
    engine = tiny_engine()
    with pytest.raises(UserError, match="the prompt must be a list of token ids, whole numbers, not ") as caught:
        engine.add_request(prompt, SamplingParams(max_tokens=1))
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 200
    assert not engine.has_work


@pytest.mark.parametrize("prompt", [tuple(PROMPT), np.array(PROMPT), torch.tensor(PROMPT), range(1, 4), iter(PROMPT)])
def test_whatever_holds_whole_numbers_is_a_prompt(prompt):
    engine = tiny_engine()
    engine.add_request(prompt, SamplingParams(temperature=0, max_tokens=1))
    [seq] = engine.scheduler.sequences.values()
    assert seq.tokens == PROMPT and all(type(token) is int for token in seq.tokens)


@pytest.mark.parametrize("params", [{"temperature": 0}, "greedy", 0.7, [], SamplingParams])
def test_parameters_that_are_none_are_refused(params):
    engine = tiny_engine()
    with pytest.raises(UserError, match="params must be SamplingParams"):
        engine.add_request(PROMPT, params)
    assert not engine.has_work


@pytest.mark.parametrize("max_tokens", ["5", 1.5, True, -1, 0])
def test_a_max_tokens_that_is_none_is_refused(max_tokens):
    with pytest.raises(UserError, match="max_tokens must be"):
        tiny_engine().add_request(PROMPT, max_tokens=max_tokens)


@pytest.mark.parametrize("how", [{"priority": "1"}, {"priority": None}, {"priority": 1.5}, {"priority": 2**64},
                                 {"cache_salt": 5}, {"cache_salt": None}, {"cache_salt": "\udce4"}])  # fmt: skip
def test_a_priority_or_salt_that_is_none_is_refused_and_harms_no_other_request(how):
    engine = tiny_engine()
    other = engine.add_request(PROMPT, SamplingParams(temperature=0, max_tokens=2))
    with pytest.raises(UserError, match="must be"):
        engine.add_request(PROMPT, SamplingParams(max_tokens=2), **how)
    while engine.has_work:
        engine.step()
    assert engine.is_finished(other)


def test_an_id_outside_the_vocabulary_names_the_files_where_a_tokenizer_made_it():
    with pytest.raises(UserError, match=r"token id 9999 is not in the model's vocabulary \(0 to \d+\)$"):
        tiny_engine().add_request([9999])
    with pytest.raises(UserError, match=r"tokenizer.json and config.json are not of one model: fetch both again"):
        tiny_engine(text="chatml").add_request([9999])


# --- LLM ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prompts", [[[1.5]], [[True]], [1.5], [{"a": 1}], [None], [["a"]], 5, None, {"a": 1}, {1, 2}])
def test_prompts_of_the_wrong_kind_are_refused_by_name(prompts):
    llm = LLM(engine=tiny_engine(text="chatml"))
    with pytest.raises(UserError, match=r"prompts? must be"):
        llm.generate(prompts, SamplingParams(max_tokens=1))
    assert not llm.engine.has_work
    assert len(llm.generate([1, 2], SamplingParams(max_tokens=1, ignore_eos=True)).token_ids) == 1


def test_parameters_given_to_llm_as_a_dict_are_refused():
    with pytest.raises(UserError, match=r"params must be SamplingParams\(temperature=0, ...\), not dict"):
        LLM(engine=tiny_engine(text="chatml")).chat("hi", {"temperature": 0})
