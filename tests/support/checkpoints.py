"""Tiny random checkpoints of every architecture (RIG-A), as folders or in memory, made without transformers."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from torch import Tensor

from mini_infer.models.config import ARCHITECTURES, ModelConfig
from mini_infer.models.transformer import Transformer

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VOCAB = 384
ENDOFTEXT, IM_START, IM_END = VOCAB - 3, VOCAB - 2, VOCAB - 1

SPLIT = (  # Qwen2's own: transformers rebuilds it for this model type whatever tokenizer.json says
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@functools.cache
def tokenizer_json() -> str:
    """A byte-level BPE of 381 pieces and three special tokens, trained on made-up words."""
    syllables = [c + v for c in "bdfgklmnprst" for v in "aeiou"]
    words = [a + b for a, b in itertools.product(syllables, syllables[::7])]
    text = [
        f"The {a} of {b} and the {c}, is it {a}{c}? " for a, b, c in zip(words, words[5:], words[11:], strict=False)
    ]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(SPLIT), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = VOCAB - len(SPECIALS)
    trainer = trainers.BpeTrainer(vocab_size=pieces, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(text, trainer)
    tokenizer.add_special_tokens(list(SPECIALS))
    assert tokenizer.get_vocab_size() == VOCAB
    return str(tokenizer.to_str())


def config_dict(arch: str = "qwen2", **overrides: Any) -> dict[str, Any]:
    """The `config.json` of RIG-A. An override of None leaves the key out."""
    config: dict[str, Any] = {
        "architectures": [ARCHITECTURES[arch]],
        "model_type": arch,
        "hidden_act": "silu",
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "bos_token_id": ENDOFTEXT,
        "eos_token_id": IM_END,
    }
    return {key: value for key, value in (config | overrides).items() if value is not None}


def fill_random(model: Transformer, seed: int = 0) -> None:
    """Weights for which greedy answers wander: layers outweigh the embedding, logits lie well apart."""
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in model.checkpoint_parameters().items():
        noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float32)
        if tensor.dim() > 1:
            value = 0.3 * noise
        elif "q_norm" in name or "k_norm" in name:
            value = 2 + 0.2 * noise  # attention as sharp as without these norms
        else:
            value = 1 + 0.2 * noise if "norm" in name else 0.5 * noise
        tensor.copy_(value)


def tiny_model(
    arch: str = "qwen2", dtype: torch.dtype = torch.float64, seed: int = 0, vocab: int = VOCAB, **overrides: Any
) -> tuple[Transformer, ModelConfig]:
    """The same model without files; `vocab=32` for tests that enumerate."""
    if vocab != VOCAB:
        overrides = {"vocab_size": vocab, "bos_token_id": 0, "eos_token_id": vocab - 1} | overrides
    config = ModelConfig.from_dict(config_dict(arch, **overrides), identity=f"tiny-{arch}-{seed}")
    model = Transformer(config, dtype)
    fill_random(model, seed)
    return model, config


def write_checkpoint(
    folder: str | Path,
    arch: str = "qwen2",
    *,
    seed: int = 0,
    vocab: int = VOCAB,
    tie: bool = False,
    rope: Mapping[str, Any] | None = None,
    head_dim: int | None = None,
    dtype: torch.dtype = torch.float32,
    shards: int = 1,
    generation: Mapping[str, Any] | None = None,
    edit: Callable[[dict[str, Tensor]], dict[str, Tensor]] | None = None,
    **config_overrides: Any,
) -> Path:
    """Write a checkpoint folder and return it.

    `rope` becomes `rope_scaling`; `generation` adds to generation_config.json; `edit` may change the tensors before
    they are written; other keywords go into config.json, None leaving a key out. A `vocab` above 384 gives the model
    rows the tokenizer has no token for.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    keys: dict[str, Any] = {"vocab_size": vocab, "tie_word_embeddings": tie, "torch_dtype": str(dtype)[6:]}
    if rope is not None:
        keys["rope_scaling"] = dict(rope)
    if head_dim is not None:
        keys["head_dim"] = head_dim
    config = config_dict(arch, **keys | config_overrides)
    model = Transformer(ModelConfig.from_dict(config), dtype)
    fill_random(model, seed)
    tensors = {name: tensor.clone() for name, tensor in model.checkpoint_parameters().items()}
    _write_weights(folder, edit(tensors) if edit else tensors, shards)
    ends = {"bos_token_id": config.get("bos_token_id"), "eos_token_id": config.get("eos_token_id")}
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", ends | {"do_sample": False} | dict(generation or {}))
    (folder / "tokenizer.json").write_text(tokenizer_json(), encoding="utf-8")
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "chat_template": CHAT_TEMPLATE,
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "clean_up_tokenization_spaces": False,
            "model_max_length": config.get("max_position_embeddings", 4096),
        },
    )
    return folder


def _write_weights(folder: Path, tensors: dict[str, Tensor], shards: int) -> None:
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return
    weight_map: dict[str, str] = {}
    names = list(tensors)
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = {name: tensors[name] for name in names[shard::shards]}
        save_file(part, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    size = sum(t.numel() * t.element_size() for t in tensors.values())
    _write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": size}, "weight_map": weight_map})


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2), encoding="utf-8")
