"""`config.json` of a checkpoint, read strictly into a frozen `ModelConfig`.

Rule: a key that changes the mathematics and is not supported stops the start with one line naming it; a key that
changes nothing (an unused sliding window, training settings) never does. Defaults are those of `transformers` 5.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self

from mini_infer.errors import UserError
from mini_infer.files import read_json
from mini_infer.json_reader import JsonReader

ARCHITECTURES = {"qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM", "llama": "LlamaForCausalLM"}

DTYPES = {"float32": "float32", "float16": "float16", "bfloat16": "bfloat16", "float64": "float64"}
DTYPES |= {"float": "float32", "half": "float16", "double": "float64"}  # torch's own second names

WIDEST, MOST = 2**28, 2**31 - 1
"""Bounds of a layer's width, and of every count. They are far above any model; what is beyond is a slip, and would
overflow where sizes are multiplied."""

ROPE_KINDS = ("default", "linear", "llama3", "yarn")

ROPE_KEYS = {"type", "rope_type", "rope_theta", "factor", "original_max_position_embeddings", "partial_rotary_factor"}
ROPE_KEYS |= {"low_freq_factor", "high_freq_factor"}  # llama3
ROPE_KEYS |= {"attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate", "finetuned"}  # yarn

NEUTRAL: dict[str, tuple[object, ...]] = {
    **dict.fromkeys(("hidden_act", "hidden_activation"), ("silu", "swish")),
    **dict.fromkeys(("quantization_config", "compression_config", "quantization"), ()),
    **dict.fromkeys(("num_experts", "num_local_experts"), (0, 1)),
    "n_routed_experts": (0,),
    **dict.fromkeys(("final_logit_softcapping", "attn_logit_softcapping", "query_pre_attn_scalar"), ()),
    **dict.fromkeys(("attention_chunk_size", "no_rope_layers", "clip_qkv"), ()),
    **dict.fromkeys(("alibi", "use_qk_norm", "use_parallel_residual", "use_bidirectional_attention"), (False,)),
    **dict.fromkeys(("add_cross_attention", "is_encoder_decoder"), (False,)),
    "is_causal": (True,),
    **dict.fromkeys(("partial_rotary_factor", "embedding_multiplier", "residual_multiplier"), (1,)),
    **dict.fromkeys(("logits_scaling", "logit_scale", "scale_emb"), (1,)),
    **dict.fromkeys(("attention_multiplier", "scale_depth"), ()),
}
"""Keys that change the mathematics, unless null, empty or one of the values named here. (`pretraining_tp` is not one
of them: it cut products into pieces and added these up again, and `transformers` 5 no longer reads it.)"""


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """How positions become angles. Fields a kind does not use keep their defaults."""

    kind: str = "default"  # default, linear, llama3, yarn
    theta: float = 10000.0  # the base of the geometric series of wavelengths
    factor: float = 1.0  # how much longer than in training contexts may be
    original_max_position_embeddings: int = 0  # llama3, yarn: the context length of the training
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    attention_factor: float = 1.0  # yarn: cos and sin are multiplied by it
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    truncate: bool = True  # yarn: round the ends of its ramp to whole dimensions


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape and mathematics of one decoder, and what its checkpoint says about ending and sampling."""

    model_type: str  # qwen2, qwen3 or llama
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: RopeConfig
    tie_word_embeddings: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    max_position_embeddings: int  # the context length, a stated extension by YaRN included
    eos_token_ids: tuple[int, ...] = ()
    dtype: str | None = None  # what the checkpoint says it is stored in
    generation: Mapping[str, float | int | bool] = field(default_factory=dict, hash=False)  # sampling defaults
    identity: str = ""  # names the model in prefix cache keys; stable across processes

    @classmethod
    def from_folder(cls, path: str | Path, *, warn: bool = False) -> Self:
        """Read `config.json`, and `generation_config.json` where there is one. Raises `UserError`.

        With `warn`, what is odd but harmless is logged.
        """
        folder = Path(path)
        if not folder.is_dir():
            raise UserError(f"{folder} is not a folder; give one that holds config.json and *.safetensors")
        config = read_json(folder / "config.json")
        generation = folder / "generation_config.json"
        digest = hashlib.sha256((folder / "config.json").read_bytes()).hexdigest()
        place = folder.resolve()
        name = place.name
        if place.parent.name == "snapshots":  # the hub's cache names a folder by its commit
            name = f"{place.parents[1].name}@{name[:8]}"
        defaults = read_json(generation) if generation.exists() else None
        return cls.from_dict(config, defaults, f"{name}-{digest[:16]}", folder, warn=warn)

    @classmethod
    def from_dict(
        cls,
        config: Mapping[str, Any],
        generation: Mapping[str, Any] | None = None,
        identity: str = "",
        folder: Path = Path(),
        *,
        warn: bool = False,
    ) -> Self:
        """Read the contents of the two files of `folder`. Raises `UserError` naming file, key, value and remedy."""
        read = JsonReader(str(folder / "config.json"), config)
        defaults = JsonReader(str(folder / "generation_config.json"), generation or {})
        model_type = _model_type(read)
        for key, neutral in NEUTRAL.items():
            read.refuse_unless(key, neutral)
        heads, kv_heads, head_dim = _heads(read, model_type)
        layers, vocab_size = (read.integer(key, maximum=MOST) for key in ("num_hidden_layers", "vocab_size"))
        context = read.integer("max_position_embeddings", 2048 if model_type == "llama" else 32768, maximum=MOST)
        rope, context = _rope(read, context)
        _refuse_sliding_window(read, model_type, layers, context)
        attention_bias, mlp_bias = _biases(read, model_type)
        eos = defaults.token_ids("eos_token_id") or read.token_ids("eos_token_id")
        ends = tuple(id for id in eos if 0 <= id < vocab_size)
        if warn and ends != eos:
            said = "%s: eos_token_id names %s, which a vocabulary of %d does not have: no answer ends there"
            source = defaults if defaults.token_ids("eos_token_id") else read
            logger.warning(said, source.name, ", ".join(str(id) for id in eos if id not in ends), vocab_size)
        return cls(
            model_type=model_type,
            vocab_size=vocab_size,
            hidden_size=read.integer("hidden_size"),
            intermediate_size=read.integer("intermediate_size", maximum=WIDEST),
            num_layers=layers,
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            rms_norm_eps=read.number("rms_norm_eps", 1e-6),
            rope=rope,
            tie_word_embeddings=read.boolean("tie_word_embeddings", False),
            qkv_bias=model_type == "qwen2" or attention_bias,
            o_bias=model_type != "qwen2" and attention_bias,
            mlp_bias=mlp_bias,
            qk_norm=model_type == "qwen3",
            max_position_embeddings=context,
            eos_token_ids=ends,
            dtype=_dtype(read),
            generation=_generation(defaults),
            identity=identity,
        )


def _model_type(read: JsonReader) -> str:
    model_type, architectures = read.get("model_type"), read.get("architectures")
    known = {name: kind for kind, name in ARCHITECTURES.items()}
    supported = f"which is not supported (supported: {', '.join(known)})"
    if architectures:
        if not isinstance(architectures, list) or architectures[0] not in list(known):
            raise read.error("architectures", supported)
        model_type = model_type or known[architectures[0]]
        if model_type != known[architectures[0]]:
            raise read.error("model_type", f"which does not fit architectures {architectures}")
    if not isinstance(model_type, str) or model_type not in ARCHITECTURES:
        raise read.error("model_type", f"but must be one of {', '.join(ARCHITECTURES)}")
    return model_type


def _heads(read: JsonReader, model_type: str) -> tuple[int, int, int]:
    """Number of query heads, of key/value heads, and the size of each: `head_dim` wins over hidden/heads."""
    hidden = read.integer("hidden_size", maximum=WIDEST)
    heads = read.integer("num_attention_heads", maximum=math.isqrt(WIDEST))
    kv_heads = read.integer("num_key_value_heads", heads)
    if heads % kv_heads:
        raise read.error("num_attention_heads", f"but must be a multiple of num_key_value_heads ({kv_heads})")
    if read.get("head_dim") is None and model_type != "qwen3" and hidden % heads:
        raise read.error("hidden_size", f"but must be a multiple of num_attention_heads ({heads}) without a head_dim")
    head_dim = read.integer("head_dim", 128 if model_type == "qwen3" else hidden // heads, maximum=math.isqrt(WIDEST))
    if head_dim % 2:
        raise read.error("head_dim", f"but the size of a head ({head_dim}) must be even: RoPE turns pairs")
    return heads, kv_heads, head_dim


def _rope(read: JsonReader, context: int) -> tuple[RopeConfig, int]:
    """The position encoding and the context length, wherever the many writers of configs put them.

    As in `transformers`: a non-empty `rope_scaling` wins over `rope_parameters`; a base inside either wins over the
    one at top level; `original_max_position_embeddings` at top level wins over the one inside.
    """
    section = read.section("rope_scaling") or read.section("rope_parameters") or JsonReader(read.name, {})
    for key in section.values.keys() - ROPE_KEYS:
        section.refuse_unless(key, ())
    section.refuse_unless("partial_rotary_factor", (1,))
    kind_key = "rope_type" if section.get("rope_type") else "type"
    kind = section.get(kind_key) or "default"
    if kind not in ROPE_KINDS:
        raise section.error(kind_key, f"which is not supported (supported: {', '.join(ROPE_KINDS)})")
    theta = section.number("rope_theta", read.number("rope_theta", 10000.0, above=1.0), above=1.0)
    if kind == "default":
        return RopeConfig(theta=theta), context
    if kind == "linear":
        return RopeConfig(kind, theta, section.number("factor")), context
    key = "original_max_position_embeddings"
    stated = read.get(key, section.get(key)) is not None
    original = read.integer(key, section.integer(key, context, maximum=MOST), maximum=MOST)
    if kind == "llama3":
        low, high = section.number("low_freq_factor"), section.number("high_freq_factor")
        if low >= high:
            raise section.error("low_freq_factor", f"but must be less than high_freq_factor ({high:g})")
        return RopeConfig(kind, theta, section.number("factor"), original, low, high), context
    factor = section.number("factor", context / original if stated else None)
    rope = RopeConfig(
        kind,
        theta,
        factor,
        original,
        attention_factor=_yarn_attention_factor(section, factor),
        beta_fast=section.number("beta_fast", 32.0),
        beta_slow=section.number("beta_slow", 1.0),
        truncate=section.boolean("truncate", True),
    )
    if original * factor > MOST:
        raise section.error("factor", f"but must not extend the context beyond {MOST} tokens")
    return rope, max(context, int(original * factor)) if stated else context


def _yarn_attention_factor(section: JsonReader, factor: float) -> float:
    """What cos and sin are multiplied by: Peng et al. 2023 (YaRN), eq. 22, 0.1 ln(s) + 1, unless the file says so."""
    if section.get("attention_factor") is not None:
        return section.number("attention_factor")

    def scale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    if section.get("mscale") and section.get("mscale_all_dim"):
        return scale(section.number("mscale")) / scale(section.number("mscale_all_dim"))
    return scale(1.0)


def _refuse_sliding_window(read: JsonReader, model_type: str, layers: int, context: int) -> None:
    """A window is an obstacle only where a layer really slides within the context; its mere mention is not."""
    layer_types = read.get("layer_types")
    if layer_types is not None:
        if not isinstance(layer_types, list) or any(kind != "full_attention" for kind in layer_types):
            raise read.error("layer_types", "which is not supported (supported: full_attention in every layer)")
        return
    llama = model_type == "llama"
    switch = read.boolean("use_sliding_window", llama)  # Qwen needs the switch, others just the number
    slides = switch and (llama or read.integer("max_window_layers", 28, minimum=0) < layers)
    window = read.get("sliding_window", None if llama else 4096)
    if slides and window is not None and read.integer("sliding_window", window) < context:
        raise read.error("sliding_window", f"which is not supported (shorter than the context of {context} tokens)")


def _biases(read: JsonReader, model_type: str) -> tuple[bool, bool]:
    """Whether attention and MLP have biases. Qwen2's q/k/v always have one, Qwen's MLP never."""
    attention, mlp = read.boolean("attention_bias", model_type == "qwen2"), read.boolean("mlp_bias", False)
    if model_type == "qwen2" and not attention:
        raise read.error("attention_bias", "but Qwen2 always has biases on q, k and v")
    if model_type != "llama" and mlp:
        raise read.error("mlp_bias", f"which is not supported for {model_type} (supported: false)")
    return attention, mlp


def _dtype(read: JsonReader) -> str | None:
    key = "dtype" if read.get("dtype") is not None else "torch_dtype"
    value = read.get(key, "auto")
    name = DTYPES.get(str(value).removeprefix("torch."))
    if name is None and value != "auto":
        raise read.error(key, "which is not supported (supported: bfloat16, float16, float32, float64)")
    return name


def _generation(defaults: JsonReader) -> dict[str, float | int | bool]:
    """The sampling defaults an engine can honour; null and everything else in the file is left out."""
    number, integer = partial(defaults.number, above=-math.inf), partial(defaults.integer, minimum=-1)
    readers: dict[str, Callable[[str], float | int | bool]] = {
        **dict.fromkeys(("temperature", "top_p", "min_p", "repetition_penalty"), number),
        "top_k": integer,
        "do_sample": partial(defaults.boolean, default=True),
    }
    return {key: read(key) for key, read in readers.items() if defaults.get(key) is not None}
