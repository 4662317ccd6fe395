"""The real checkpoints, each loaded once: the engine's model and transformers' own, both in float32."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from mini_infer.config import EngineConfig
from mini_infer.engine import InferenceEngine
from mini_infer.models.config import ModelConfig
from mini_infer.models.loader import load_model_from_safetensors
from mini_infer.models.transformer import Transformer
from mini_infer.text.tokenizer import Tokenizer


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Where other work shares the machine, two threads that wait for each other in every product are ten times
    slower than one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@dataclass
class Checkpoint:
    folder: Path
    model: Transformer
    config: ModelConfig
    tokenizer: Tokenizer
    reference: Any  # transformers' model
    reference_tokenizer: Any
    _answers: dict[tuple[tuple[int, ...], int], tuple[list[int], torch.Tensor]] = field(default_factory=dict)

    @classmethod
    def load(cls, folder: Path) -> Checkpoint:
        transformers = pytest.importorskip("transformers")
        model, config = load_model_from_safetensors(folder, device="cpu", dtype="float32")
        reference = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        return cls(folder, model, config, Tokenizer.from_folder(folder), reference, tokenizer)

    def engine(self, num_blocks: int = 512, **options: Any) -> InferenceEngine:
        config = EngineConfig(**options)
        return InferenceEngine(self.model, self.config, num_blocks, options=config, tokenizer=self.tokenizer)

    def chat_ids(self, text: str) -> list[int]:
        """One user message in the chat template: the engine's own ids, held against transformers'."""
        messages = [{"role": "user", "content": text}]
        ids = self.tokenizer.encode_chat(messages)
        theirs = self.reference_tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        assert ids == list(theirs)
        return ids

    def answer(self, ids: list[int], count: int) -> tuple[list[int], torch.Tensor]:
        """transformers' greedy answer, and the logits [tokens, vocabulary] it was chosen from."""
        key = (tuple(ids), count)
        if key not in self._answers:
            with torch.inference_mode():
                out = self.reference.generate(
                    torch.tensor([ids]),
                    attention_mask=torch.ones(1, len(ids), dtype=torch.long),
                    do_sample=False,
                    repetition_penalty=1.0,
                    temperature=None,
                    top_p=None,
                    top_k=None,
                    max_new_tokens=count,
                    pad_token_id=0,
                    return_dict_in_generate=True,
                    output_logits=True,
                )
            self._answers[key] = out.sequences[0, len(ids) :].tolist(), torch.stack(out.logits)[:, 0]
        return self._answers[key]

    def gap_at(self, ids: list[int], count: int) -> Any:
        """What `ties.compare` wants to know of the reference."""
        _, logits = self.answer(ids, count)
        return lambda index, wanted, found: float(logits[index, wanted] - logits[index, found])


@pytest.fixture(scope="session")
def qwen(qwen_folder: Path) -> Checkpoint:
    return Checkpoint.load(qwen_folder)


@pytest.fixture(scope="session")
def smollm(smollm_folder: Path) -> Checkpoint:
    return Checkpoint.load(smollm_folder)
