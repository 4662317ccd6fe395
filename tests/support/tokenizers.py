"""Small tokenizers of each kind, built in code, and folders that hold them.

The byte-level one is that of the tiny checkpoints. The others have the shapes of converted sentencepiece models.
"""

from __future__ import annotations

import functools
import itertools
import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, trainers

from mini_infer.text.tokenizer import Tokenizer
from tests.support.checkpoints import CHAT_TEMPLATE, tokenizer_json

LLAMA_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message.role == 'system' %}<<SYS>>\n{{ message.content }}\n<</SYS>>\n\n"
    "{% elif message.role == 'user' %}[INST] {{ message.content | trim }} [/INST]"
    "{% else %} {{ message.content | trim }} {{ eos_token }}{% endif %}{% endfor %}"
)
METASPACE = [{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}]
LLAMA_DECODER = {
    "type": "Sequence",
    "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ],
}
BOS_FIRST = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
}
LLAMA_SPECIALS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def added_token(id: int, content: str, **flags: bool) -> dict[str, Any]:
    usual = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": id, "content": content, **usual, **flags}


def byte_level() -> dict[str, Any]:
    """tokenizer.json of a byte-level BPE with `<|endoftext|>`, `<|im_start|>` and `<|im_end|>`."""
    value: dict[str, Any] = json.loads(tokenizer_json())
    return value


@functools.cache
def _words() -> list[str]:
    sentence = "one two three four, the quick brown fox said: hello there world! It is a tiny test of words. "
    names = [f"{a}{b}{c}" for a, b, c in itertools.product("bdst", "aeio", "lnr")]
    return [sentence * 5, " ".join(names), "System user assistant INST SYS answer question: (x) = [1, 2]; {y: 0}"]


@functools.cache
def _pieces(size: int = 300) -> dict[str, Any]:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.train_from_iterator(_words(), trainers.BpeTrainer(vocab_size=size, show_progress=False))
    model: dict[str, Any] = json.loads(backend.to_str())["model"]
    return model


def llama(**changes: Any) -> dict[str, Any]:
    """tokenizer.json of a `▁` BPE with byte fallback and a begin token put before every text.

    `changes` replace top-level fields, as a legacy Llama 2 does with its normalizer (see `LEGACY`).
    """
    trained = _pieces()
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *trained["vocab"]]
    model = {
        "type": "BPE",
        "unk_token": "<unk>",
        "fuse_unk": True,
        "byte_fallback": True,
        "vocab": {piece: id for id, piece in enumerate(dict.fromkeys(pieces))},
        "merges": trained["merges"],
    }
    fields = {
        "version": "1.0",
        "added_tokens": [added_token(id, text) for id, text in enumerate(pieces[:3])],
        "normalizer": None,
        "pre_tokenizer": METASPACE[0],
        "post_processor": BOS_FIRST,
        "decoder": LLAMA_DECODER,
        "model": model,
    }
    return fields | changes


LEGACY: dict[str, Any] = {
    "pre_tokenizer": None,
    "normalizer": {
        "type": "Sequence",
        "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ],
    },
}
ALWAYS: dict[str, Any] = {"pre_tokenizer": METASPACE[0] | {"prepend_scheme": "always", "split": True}}


def unigram() -> dict[str, Any]:
    """tokenizer.json of a Unigram model that has its special tokens in the vocabulary, where text can find them."""
    scores = [(piece, -1.0 - 0.01 * id) for id, piece in enumerate(_pieces()["vocab"])]
    characters = [(char, -9.0) for char in "<>/s|" if char not in _pieces()["vocab"]]
    model = {
        "type": "Unigram",
        "unk_id": 0,
        "vocab": [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0), *scores, *characters],
        "byte_fallback": False,
    }
    return llama(model=model, decoder=METASPACE[0], pre_tokenizer=ALWAYS["pre_tokenizer"])


def write(
    folder: Path,
    tokenizer: dict[str, Any],
    template: str | list[dict[str, str]] | None = None,
    **config: Any,
) -> Path:
    """Lays a tokenizer into `folder` with a tokenizer_config.json of these fields."""
    folder.mkdir(parents=True, exist_ok=True)
    fields: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    if template is not None:
        fields["chat_template"] = template
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(fields | config), encoding="utf-8")
    return folder


def write_chatml(folder: Path, template: str | None = CHAT_TEMPLATE, **config: Any) -> Path:
    """The byte-level tokenizer with a ChatML template."""
    return write(folder, byte_level(), template, **{"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"} | config)


def write_llama(folder: Path, template: str | None = LLAMA_TEMPLATE, **changes: Any) -> Path:
    """The `▁` tokenizer with a Llama 2 template."""
    return write(folder, llama(**changes), template, **LLAMA_SPECIALS)


def load(folder: Path) -> Tokenizer:
    return Tokenizer.from_folder(folder)
