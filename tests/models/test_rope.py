"""Frequencies against transformers, to the last bit; the rotation against complex numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mini_infer.models.config import ModelConfig
from mini_infer.models.rope import cos_sin, inverse_frequencies, rotate
from tests.support.checkpoints import config_dict

transformers = pytest.importorskip("transformers")

ROPES: dict[str, dict[str, Any]] = {
    "none": {},
    "theta": {"rope_theta": 500000},
    "linear": {"rope_scaling": {"type": "linear", "factor": 2.5}},
    "llama3": {
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    },
    "llama3_no_original": {
        "rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4}
    },
    "yarn": {
        "rope_theta": 1e6,
        "rope_scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": 2048},
    },
    "yarn_no_original": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
    "yarn_outer_original": {
        "original_max_position_embeddings": 1024,
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512},
    },
    "yarn_no_factor": {"rope_scaling": {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 1024}},
    "yarn_betas": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 16, "beta_slow": 2}},
    "yarn_no_truncate": {
        "rope_scaling": {"rope_type": "yarn", "factor": 40, "truncate": False, "original_max_position_embeddings": 512}
    },
    "yarn_mscale": {"rope_scaling": {"rope_type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 0.5}},
    "yarn_attention_factor": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "attention_factor": 0.9}},
    "yarn_one_dimension": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 1, "beta_slow": 1}},
}


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("head_dim", [16, 64, 128])
@pytest.mark.parametrize("name", ROPES)
def test_frequencies_and_scale_are_those_of_transformers(arch: str, head_dim: int, name: str) -> None:
    keys = config_dict(arch, rope_theta=None, head_dim=head_dim) | ROPES[name]
    config = ModelConfig.from_dict(keys)
    module = getattr(transformers.models, arch)
    prefix = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}[arch]
    modeling = getattr(module, f"modeling_{arch}")
    reference = getattr(modeling, f"{prefix}RotaryEmbedding")(getattr(modeling, f"{prefix}Config").from_dict(keys))
    assert torch.equal(inverse_frequencies(config.rope, config.head_dim), reference.inv_freq)
    assert config.rope.attention_factor == reference.attention_scaling


def test_cos_and_sin_at_position_2000_are_those_of_transformers() -> None:
    keys = config_dict("llama", head_dim=64)
    config = ModelConfig.from_dict(keys)
    modeling = transformers.models.llama.modeling_llama
    reference = modeling.LlamaRotaryEmbedding(modeling.LlamaConfig.from_dict(keys))
    positions = torch.arange(1990, 2010)
    frequencies = inverse_frequencies(config.rope, 64)
    for dtype in (torch.float32, torch.bfloat16):
        expected = reference(torch.zeros(1, dtype=dtype), positions[None])
        for ours, theirs in zip(cos_sin(frequencies, positions, 1.0, dtype), expected, strict=True):
            assert ours.dtype == dtype
            assert torch.equal(ours[:, 0], theirs[0])


def test_rotation_is_multiplication_by_unit_complex_numbers() -> None:
    frequencies = inverse_frequencies(ModelConfig.from_dict(config_dict("llama")).rope, 16)
    positions = torch.tensor([0, 1, 77, 2000])
    x = torch.randn(4, 3, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    cos, sin = cos_sin(frequencies, positions, 1.0, torch.float64)
    turn = torch.polar(torch.ones(4, 1, 8, dtype=torch.float64), positions[:, None, None] * frequencies.double())
    expected = torch.complex(x[..., :8].contiguous(), x[..., 8:].contiguous()) * turn
    torch.testing.assert_close(rotate(x, cos, sin), torch.cat((expected.real, expected.imag), -1), atol=1e-12, rtol=0)
    assert torch.equal(rotate(x, cos, sin)[0], x[0])
