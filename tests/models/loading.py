"""What the tests of the loader share. The reference is `transformers`."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from mini_infer.errors import UserError
from mini_infer.models.config import ModelConfig
from mini_infer.models.loader import load_model_from_safetensors
from mini_infer.models.transformer import Transformer
from tests.support.checkpoints import config_dict
from tests.support.paged import PagedDriver

FILE, INDEX = "model.safetensors", "model.safetensors.index.json"
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
PROMPT = [17, 3, 250, 99, 4, 4, 311, 42, 8]
LFS_POINTER = (
    b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22e\nsize 988097824\n"
)


def logits_of(model: Transformer, config: ModelConfig, ids: list[int]) -> Tensor:
    """Logits of every position, [T, vocab]."""
    return PagedDriver(model, config).step([("a", ids)])["a"]


def greedy(model: Transformer, config: ModelConfig, ids: list[int], n: int = 8) -> list[int]:
    out: list[int] = []
    for _ in range(n):
        out.append(int(logits_of(model, config, ids + out)[-1].argmax()))
    return out


def assert_as_reference(folder: Path, ids: list[int] = PROMPT) -> tuple[Transformer, ModelConfig]:
    """Logits within 1e-4 of those of `transformers` on the same files, in float32, and the same 8 greedy tokens."""
    from transformers import AutoModelForCausalLM

    model, config = load_model_from_safetensors(folder, dtype="float32")
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        expected = reference(torch.tensor([ids])).logits[0]
        tokens = reference.generate(
            torch.tensor([ids]), max_new_tokens=8, min_new_tokens=8, do_sample=False, repetition_penalty=1.0
        )
    assert (logits_of(model, config, ids) - expected).abs().max() < 1e-4
    assert greedy(model, config, ids) == tokens[0, len(ids) :].tolist()
    return model, config


def error_of(folder: str | Path, **options: Any) -> str:
    """The one line a user sees."""
    with pytest.raises(UserError) as caught:
        load_model_from_safetensors(folder, **options)
    text = str(caught.value)
    assert "\n" not in text and len(text) < 500, text
    return text


def edit_json(path: Path, **changes: Any) -> None:
    """Set keys; None takes a key out, `...` sets null."""
    value = json.loads(path.read_text()) | changes
    value = {key: None if item is ... else item for key, item in value.items() if item is not None}
    path.write_text(json.dumps(value))


def edit_weights(path: Path, edit: Callable[[dict[str, Tensor]], Any]) -> None:
    tensors = load_file(path)
    edit(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, metadata={"format": "pt"})


def with_header(change: Callable[[dict[str, Any]], Any]) -> Callable[[bytes], bytes]:
    """The same file with another header."""

    def edit(data: bytes) -> bytes:
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        header = change(header) or header
        raw = header if isinstance(header, bytes) else json.dumps(header).encode()
        return struct.pack("<Q", len(raw)) + raw + data[8 + length :]

    return edit


def write_200_mb(folder: Path, shards: int = 1, **changes: Any) -> Path:
    """A checkpoint of 200 MB of bf16, no tensor above 17 MB."""
    sizes = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 6, "vocab_size": 8192}
    heads = {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": None}
    config = config_dict("llama", torch_dtype="bfloat16", **sizes, **heads, **changes)
    (folder / "config.json").write_text(json.dumps(config))
    model = Transformer(ModelConfig.from_dict(config), torch.bfloat16)
    tensors = {name: torch.ones_like(tensor) for name, tensor in model.checkpoint_parameters().items()}
    if shards == 1:
        save_file(tensors, folder / FILE)
    else:
        save_sharded(folder, tensors, shards)
    return folder


def save_sharded(folder: Path, tensors: dict[str, torch.Tensor], shards: int) -> None:
    names = sorted(tensors)
    files = [f"model-{number:05}-of-{shards:05}.safetensors" for number in range(1, shards + 1)]
    parts = [names[number::shards] for number in range(shards)]
    for file, part in zip(files, parts, strict=True):
        save_file({name: tensors[name] for name in part}, folder / file)
    weight_map = {name: file for file, part in zip(files, parts, strict=True) for name in part}
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
