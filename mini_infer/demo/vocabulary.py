"""The demo's tokenizer: a byte-level BPE learned from the corpus, and conversations as weighted token ids."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from mini_infer.demo.corpus import (
    CHAT_TEMPLATE,
    END_OF_TEXT,
    IM_END,
    IM_START,
    SYSTEM_PROMPT,
    Conversation,
    conversations,
    render,
)
from mini_infer.demo.net import CONTEXT

VOCAB_SIZE = 4096
SPECIALS = (END_OF_TEXT, IM_START, IM_END)
SAMPLE = 30_000
"""Conversations that the merges are learned from."""
SPLIT = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s*[\r\n]+|\s+(?!\S)|\s+"
"""A word with the space before it, a digit, a run of signs, line ends, spaces."""
PROMPT_WEIGHT = 0.1
"""What a token of a question counts in the loss, next to 1 for a token of an answer."""


def learn_tokenizer(seed: int, sample: int = SAMPLE) -> Tokenizer:
    """The same for the same seed. Words of the corpus become one token each, as far as the vocabulary reaches."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(SPLIT), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(SPECIALS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    stream = itertools.islice(conversations(seed), sample)
    texts = (part for turns in stream for turn in turns for part in (turn.asked, turn.answer))
    roles = [f"system\n{SYSTEM_PROMPT}", "user\n", "assistant\n"] * 50
    tokenizer.train_from_iterator(itertools.chain(roles, texts), trainer)
    tokenizer.add_special_tokens(list(SPECIALS))
    return tokenizer


class Encoder:
    """Conversations to (ids, weights): the weight of a token is what its prediction counts."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.system = self.ids(render((), SYSTEM_PROMPT))
        self.pad = tokenizer.token_to_id(END_OF_TEXT)

    def ids(self, text: str) -> list[int]:
        found: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return found

    def __call__(self, batch: Sequence[Conversation]) -> list[tuple[list[int], list[float]]]:
        texts = [part for turns in batch for turn in turns for part in _parts(turn.asked, turn.answer)]
        encoded = iter(self.tokenizer.encode_batch(texts, add_special_tokens=False))
        found = []
        for turns in batch:
            ids: list[int] = []
            weights: list[float] = []
            for _ in turns:
                for weight in (PROMPT_WEIGHT, 1.0, PROMPT_WEIGHT):
                    part = next(encoded).ids
                    ids += part
                    weights += [weight] * len(part)
            found.append((ids, weights))
        return found


def _parts(asked: str, answer: str) -> tuple[str, str, str]:
    return f"{IM_START}user\n{asked}{IM_END}\n{IM_START}assistant\n", f"{answer}{IM_END}", "\n"


def write_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """`tokenizer.json` and `tokenizer_config.json` with the chat template."""
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": CHAT_TEMPLATE,
        "eos_token": IM_END,
        "pad_token": END_OF_TEXT,
        "clean_up_tokenization_spaces": False,
        "model_max_length": CONTEXT,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
