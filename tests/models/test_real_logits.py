"""Real checkpoints: logits against transformers in float32.

Like is compared with like: a matrix kernel's last bits depend on its number of rows, and on SmolLM2 `transformers`
differs from itself by 2.6e-4 between one pass over this prompt and steps of one token (its logits reach 39).
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mini_infer.models.loader import load_model_from_safetensors
from tests.support import real
from tests.support.paged import PagedDriver

PROMPTS = {
    real.QWEN: "def fibonacci(n):\n    # The capital of France is Paris; 12345 + 678 = ",
    real.SMOLLM: "The capital of France is Paris. Water boils at 100 degrees, and the largest planet is",
}


@pytest.mark.real
@pytest.mark.parametrize("name", PROMPTS)
def test_logits_agree_with_transformers(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    folder: Path = real.real_checkpoint(name)
    ids = transformers.AutoTokenizer.from_pretrained(folder)(PROMPTS[name]).input_ids
    reference = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        expected = reference(torch.tensor([ids])).logits[0]
    del reference
    model, config = load_model_from_safetensors(folder, dtype="float32")
    driver = PagedDriver(model, config, num_blocks=8)
    whole = driver.step([("whole", ids)])["whole"]
    # The README's promise: for logits up to about 10, and in proportion beyond (those of SmolLM2 reach 39).
    torch.testing.assert_close(whole, expected, atol=1e-4 * max(1.0, expected.abs().max().item() / 10), rtol=0)
    steps = [driver.step([("steps", ids[:9])])["steps"]]
    steps += [driver.step([("steps", [token])])["steps"] for token in ids[9:]]
    torch.testing.assert_close(torch.cat(steps), expected, atol=1e-3, rtol=0)
    assert torch.equal(torch.cat(steps).argmax(-1), expected.argmax(-1))
