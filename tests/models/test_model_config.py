"""config.json is read strictly: what changes the mathematics stops, what changes nothing does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from mini_infer.errors import UserError
from mini_infer.models.config import ModelConfig, RopeConfig
from tests.support.checkpoints import config_dict, tiny_model, write_checkpoint

ARCHS = ("qwen2", "qwen3", "llama")


def read(arch: str = "llama", generation: dict[str, Any] | None = None, **overrides: Any) -> ModelConfig:
    return ModelConfig.from_dict(config_dict(arch) | overrides, generation)


def without(arch: str, *keys: str) -> dict[str, Any]:
    return {k: v for k, v in config_dict(arch).items() if k not in keys}


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(
    ("keys", "theta"),
    [
        ({"rope_theta": 500000.0, "rope_scaling": None}, 500000.0),
        ({"rope_theta": 500000.0, "rope_parameters": {"rope_type": "default"}}, 500000.0),
        ({}, 10000.0),
        ({"rope_theta": 500000, "rope_parameters": {}}, 500000.0),
        ({"rope_theta": None, "rope_parameters": None, "rope_scaling": None}, 10000.0),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, 1e6),
        ({"rope_theta": 500000.0, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, 1e6),
        ({"rope_theta": 500000.0, "rope_scaling": {"type": "linear", "factor": 2.0}}, 500000.0),
        ({"rope_scaling": {"type": "linear", "factor": 2.0, "rope_theta": 7e5}}, 7e5),
        ({"rope_theta": 5e5, "rope_scaling": None, "rope_parameters": {"rope_theta": 1e6}}, 1e6),
    ],
)
def test_L09_rope_theta_wherever_writers_put_it(arch: str, keys: dict[str, Any], theta: float) -> None:
    assert ModelConfig.from_dict(without(arch, "rope_theta") | keys).rope.theta == theta


def test_L09_every_rope_reading_is_that_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    for keys in (
        {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "rope_type": "linear", "factor": 4.0}},
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0}, "rope_parameters": {"rope_type": "default"}},
        {"rope_theta": 5e5, "rope_parameters": {"rope_type": "linear", "factor": 3.0}},
    ):
        theirs = transformers.LlamaConfig.from_dict(without("llama", "rope_theta") | keys).rope_parameters
        ours = ModelConfig.from_dict(without("llama", "rope_theta") | keys).rope
        expected = (theirs["rope_type"], theirs["rope_theta"], theirs.get("factor", 1.0))
        assert (ours.kind, ours.theta, ours.factor) == expected


@pytest.mark.parametrize("arch", ["qwen2", "qwen3"])
def test_L11_a_sliding_window_that_is_not_used_is_no_obstacle(arch: str) -> None:
    keys = {"sliding_window": 8, "max_window_layers": 2}
    assert read(arch, **keys, use_sliding_window=False) == read(arch)
    assert read(arch, **keys) == read(arch)  # the switch is off by default
    assert read(arch, **keys, use_sliding_window=True) == read(arch)  # no layer from the second on: there are two
    assert read(arch, use_sliding_window=True, sliding_window=4096, max_window_layers=0)  # as long as the context
    assert read(arch, use_sliding_window=True, sliding_window=8, layer_types=["full_attention"] * 2)


@pytest.mark.parametrize(
    ("arch", "keys", "named"),
    [
        ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}, "sliding_window is 8"),
        ("qwen3", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0}, "sliding_window is 8"),
        ("llama", {"sliding_window": 1024}, "sliding_window is 1024"),
        ("qwen3", {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ("qwen2", {"layer_types": ["linear_attention", "full_attention"]}, "layer_types"),
    ],
)
def test_L11_a_sliding_window_in_use_is_refused(arch: str, keys: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=named):
        read(arch, **keys)


def test_L13_head_dim_wins_over_hidden_over_heads() -> None:
    assert read("llama", head_dim=32).head_dim == 32
    assert ModelConfig.from_dict(without("llama", "head_dim")).head_dim == 16
    assert read("llama", head_dim=None).head_dim == 16
    assert ModelConfig.from_dict(without("qwen3", "head_dim")).head_dim == 128  # Qwen3's default in transformers
    assert read("llama", head_dim=24, num_attention_heads=6).num_heads == 6  # 64 / 6 plays no role


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
@pytest.mark.parametrize(
    ("value", "expected"),
    [("bfloat16", "bfloat16"), ("torch.float16", "float16"), ("half", "float16"), ("auto", None), (None, None)],
)
def test_L15_either_dtype_key_is_read(key: str, value: str | None, expected: str | None) -> None:
    assert ModelConfig.from_dict(without("llama", "torch_dtype") | {key: value}).dtype == expected


def test_L15_both_keys_or_neither() -> None:
    assert read(dtype="bfloat16", torch_dtype="float32").dtype == "bfloat16"
    assert read(dtype=None, torch_dtype="float32").dtype == "float32"
    assert ModelConfig.from_dict(without("llama", "torch_dtype")).dtype is None


@pytest.mark.parametrize("value", ["bf-16", "bf16 ", "float8_e4m3fn", "int8", 16, ["bfloat16"], ""])
def test_L15_a_misspelt_dtype_is_named(value: object) -> None:
    with pytest.raises(UserError, match=r"torch_dtype is .*bfloat16, float16, float32, float64"):
        read(torch_dtype=value)


@pytest.mark.parametrize(
    ("config_eos", "generation", "expected"),
    [
        (5, {"eos_token_id": [5, 9]}, (5, 9)),
        (5, {"eos_token_id": 9}, (9,)),
        ([5, 7], {}, (5, 7)),
        ([5, 7], None, (5, 7)),
        (5, {"eos_token_id": None}, (5,)),
        (5, {"eos_token_id": []}, (5,)),
        (None, None, ()),
        ([5, 5, 9], None, (5, 9)),
        ([5, 384, -1], None, (5,)),  # ids beyond the vocabulary can never be drawn
    ],
)
def test_L17_end_tokens_of_generation_config_win(
    config_eos: object, generation: dict[str, Any] | None, expected: tuple[int, ...]
) -> None:
    assert read("qwen2", generation, eos_token_id=config_eos).eos_token_ids == expected


def test_L17_lists_in_both_files_of_a_folder(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, eos_token_id=5, generation={"eos_token_id": [5, 9]})
    assert ModelConfig.from_folder(folder).eos_token_ids == (5, 9)
    (folder / "generation_config.json").unlink()
    assert ModelConfig.from_folder(folder).eos_token_ids == (5,)


@pytest.mark.parametrize("value", ["5", 5.0, True, [5, "9"], [[5]], {"id": 5}])
def test_L17_end_tokens_of_another_type_are_named(value: object) -> None:
    with pytest.raises(UserError, match="eos_token_id is"):
        read(eos_token_id=value)
    with pytest.raises(UserError, match=r"generation_config\.json: eos_token_id is"):
        read(generation={"eos_token_id": value})


@pytest.mark.parametrize(
    ("arch", "keys"),
    [
        ("llama", {"model_type": "mistral", "architectures": None}),
        ("llama", {"model_type": None, "architectures": None}),
        ("llama", {"architectures": ["MistralForCausalLM"]}),
        ("qwen2", {"architectures": ["Qwen2ForSequenceClassification"]}),
        ("qwen2", {"architectures": ["LlamaForCausalLM"]}),
        ("qwen2", {"architectures": "Qwen2ForCausalLM"}),
        ("qwen2", {"architectures": [["Qwen2ForCausalLM"]]}),
        ("llama", {"model_type": ["llama"], "architectures": None}),
        ("llama", {"hidden_act": "gelu"}),
        ("llama", {"quantization_config": {"quant_method": "gptq", "bits": 4}}),
        ("llama", {"quantization": {"bits": 4}}),
        ("llama", {"num_local_experts": 8}),
        ("qwen2", {"num_experts": 60}),
        ("llama", {"final_logit_softcapping": 30.0}),
        ("llama", {"attn_logit_softcapping": 50.0}),
        ("llama", {"partial_rotary_factor": 0.5}),
        ("llama", {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}),
        ("llama", {"no_rope_layers": [1, 0]}),
        ("llama", {"embedding_multiplier": 12.0}),
        ("llama", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}),
        ("llama", {"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}),
        ("llama", {"rope_scaling": {"rope_type": ["yarn"], "factor": 2.0}}),
        ("qwen2", {"rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}}),
        ("qwen2", {"rope_scaling": {"type": "default", "mrope_section": [2, 3, 3]}}),
        ("llama", {"rope_parameters": {"full_attention": {"rope_type": "default"}}}),
        ("llama", {"rope_scaling": "linear"}),
        ("llama", {"rope_scaling": {"type": "linear"}}),
        ("llama", {"rope_scaling": {"type": "linear", "factor": 0}}),
        ("llama", {"rope_scaling": {"type": "linear", "factor": "2"}}),
        ("llama", {"rope_scaling": {"type": "yarn", "original_max_position_embeddings": None}}),
        ("llama", {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}),
        ("llama", {"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4}}),
        ("llama", {"rope_theta": "10000"}),
        ("llama", {"rope_theta": 0}),
        ("qwen2", {"attention_bias": False}),
        ("qwen2", {"mlp_bias": True}),
        ("qwen3", {"mlp_bias": True}),
        ("llama", {"attention_bias": "yes"}),
        ("llama", {"hidden_size": None}),
        ("llama", {"hidden_size": "64"}),
        ("llama", {"hidden_size": 64.0}),
        ("llama", {"hidden_size": True}),
        ("llama", {"hidden_size": 0}),
        ("llama", {"vocab_size": -1}),
        ("llama", {"num_hidden_layers": None}),
        ("llama", {"num_attention_heads": 3}),
        ("llama", {"num_key_value_heads": 3}),
        ("llama", {"num_key_value_heads": 0}),
        ("llama", {"hidden_size": 66, "head_dim": None}),
        ("llama", {"head_dim": 15}),
        ("llama", {"hidden_size": 60, "head_dim": None}),
        ("llama", {"rms_norm_eps": "1e-6"}),
        ("llama", {"rms_norm_eps": 0}),
        ("llama", {"rms_norm_eps": float("nan")}),
        ("llama", {"tie_word_embeddings": "true"}),
        ("llama", {"max_position_embeddings": 0}),
        ("qwen2", {"use_sliding_window": "false"}),
    ],
)
def test_what_is_wrong_or_unsupported_is_named_on_one_line(arch: str, keys: dict[str, Any]) -> None:
    with pytest.raises(UserError) as error:
        read(arch, **keys)
    message = str(error.value)
    assert message.startswith("config.json: ")
    assert "\n" not in message
    names = {*keys, "head_dim", "num_attention_heads", "model_type", "architectures", *(keys.get("rope_scaling") or ())}
    assert any(name in message for name in names | {"partial_rotary_factor", "full_attention", "low_freq_factor"})


@pytest.mark.parametrize(
    "key", ["hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size"]
)
def test_a_missing_key_is_named(key: str) -> None:
    with pytest.raises(UserError, match=f"{key} is missing"):
        ModelConfig.from_dict(without("llama", key))


@pytest.mark.parametrize(
    "keys",
    [
        {"pretraining_tp": 2},  # cut products into pieces: the same sums
        {"attention_dropout": 0.1, "initializer_range": 0.02, "use_cache": False},
        {"quantization_config": None, "rope_scaling": None, "head_dim": None, "layer_types": None},
        {"quantization_config": {}},
        {"hidden_act": "swish"},
        {"hidden_act": None},
        {"num_experts": 0, "final_logit_softcapping": None, "partial_rotary_factor": 1.0},
        {"architectures": None},
        {"model_type": None},
        {"use_sliding_window": False},
        {"sliding_window": None},
        {"auto_map": {"AutoModel": "modeling.Model"}, "transformers_version": "4.1", "unsloth_fixed": True},
        {"rope_scaling": {"rope_type": "default", "factor": 1.0}},
    ],
)
def test_what_changes_nothing_is_no_obstacle(keys: dict[str, Any]) -> None:
    assert read("llama", **keys) == read("llama")


def test_biases_by_architecture() -> None:
    def biases(config: ModelConfig) -> tuple[bool, bool, bool, bool]:
        return config.qkv_bias, config.o_bias, config.mlp_bias, config.qk_norm

    assert biases(read("qwen2")) == (True, False, False, False)
    assert biases(read("qwen2", attention_bias=True)) == (True, False, False, False)
    assert biases(read("qwen3")) == (False, False, False, True)
    assert biases(read("qwen3", attention_bias=True)) == (True, True, False, True)
    assert biases(read("llama")) == (False, False, False, False)
    assert biases(read("llama", attention_bias=True, mlp_bias=True)) == (True, True, True, False)


def test_context_length_includes_an_extension_by_yarn_that_is_stated() -> None:
    yarn = {"type": "yarn", "factor": 4.0}
    assert read(rope_scaling=yarn | {"original_max_position_embeddings": 4096}).max_position_embeddings == 16384
    assert read(rope_scaling=yarn | {"original_max_position_embeddings": 512}).max_position_embeddings == 4096
    assert read(rope_scaling=yarn).max_position_embeddings == 4096  # nobody says what was trained
    assert read(rope_scaling={"type": "linear", "factor": 4.0}).max_position_embeddings == 4096
    assert ModelConfig.from_dict(without("llama", "max_position_embeddings")).max_position_embeddings == 2048
    assert ModelConfig.from_dict(without("qwen2", "max_position_embeddings")).max_position_embeddings == 32768


def test_sampling_defaults_are_those_an_engine_can_honour() -> None:
    stored = {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "do_sample": True, "repetition_penalty": 1, "min_p": None}
    found = read(generation=stored | {"num_beams": 4, "transformers_version": "4.1"}).generation
    assert found == {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "do_sample": True, "repetition_penalty": 1.0}
    assert read().generation == {}
    for key, value in (("temperature", "0.7"), ("top_k", 1.5), ("do_sample", 1), ("top_p", float("nan"))):
        with pytest.raises(UserError, match=rf"generation_config\.json: {key} is"):
            read(generation={key: value})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"config\.json is missing"),
        (b"", r"config\.json is incomplete or corrupt \(Expecting value"),
        (b'{"a": 1,}', r"config\.json is incomplete or corrupt \(Expecting property name|Illegal trailing comma"),
        (b"\xff\xfe{}", r"config\.json is incomplete or corrupt \(not UTF-8 at byte 0"),
        (b"[" * 100_000, r"config\.json is incomplete or corrupt \(.*recursion"),
        (b"[]", r"config\.json is incomplete or corrupt \(a JSON object is expected, not list"),
        (b"null", r"config\.json is incomplete or corrupt \(a JSON object is expected, not NoneType"),
        (b"version https://git-lfs.github.com/spec/v1\n", r"config\.json is incomplete or corrupt .*git lfs pull"),
    ],
)
def test_an_unreadable_config_is_named(tmp_path: Path, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(UserError, match=message) as error:
        ModelConfig.from_folder(tmp_path)
    assert str(tmp_path) in str(error.value)


def test_an_unreadable_generation_config_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config_dict()))
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(UserError, match=r"generation_config\.json is incomplete or corrupt"):
        ModelConfig.from_folder(tmp_path)


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a folder"):
        ModelConfig.from_folder(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="is not a folder"):
        ModelConfig.from_folder(tmp_path / "file")


def test_identity_names_the_folder_and_the_content(tmp_path: Path) -> None:
    one = ModelConfig.from_folder(write_checkpoint(tmp_path / "one"))
    again = ModelConfig.from_folder(tmp_path / "one")
    other = ModelConfig.from_folder(write_checkpoint(tmp_path / "deeper" / "one", rope_theta=20000.0))
    assert one.identity == again.identity
    assert one.identity.startswith("one-")
    assert one.identity != other.identity
    cached = write_checkpoint(tmp_path / "models--owner--name" / "snapshots" / ("0123456789" * 4))
    assert ModelConfig.from_folder(cached).identity.startswith("models--owner--name@01234567-")
    assert hash(one) == hash(again)


def test_every_tensor_of_a_checkpoint_has_its_own_place() -> None:
    for arch in ARCHS:
        for keys in ({}, {"tie_word_embeddings": True}):
            model, config = tiny_model(arch, **keys)
            views = model.checkpoint_parameters()
            assert ("lm_head.weight" in views) == (not config.tie_word_embeddings)
            assert sum(v.numel() for v in views.values()) == sum(p.numel() for p in model.parameters())
            for index, view in enumerate(views.values()):
                view.fill_(index)
            assert all(bool((view == index).all()) for index, view in enumerate(views.values()))


def test_a_default_rope_config_is_the_plain_one() -> None:
    assert read().rope == RopeConfig()
    assert read(dtype="float32").dtype == str(torch.float32).removeprefix("torch.")
