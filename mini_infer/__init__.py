"""mini-infer: a small, exact LLM inference engine in plain PyTorch.

The names below are imported on first use: `import mini_infer` alone loads no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from mini_infer.version import __version__

if TYPE_CHECKING:
    from mini_infer.config import EngineConfig
    from mini_infer.engine import InferenceEngine
    from mini_infer.llm import LLM
    from mini_infer.sampling.params import SamplingParams

__all__ = ["LLM", "EngineConfig", "InferenceEngine", "SamplingParams", "__version__"]

_HOMES = {
    "LLM": "mini_infer.llm",
    "EngineConfig": "mini_infer.config",
    "InferenceEngine": "mini_infer.engine",
    "SamplingParams": "mini_infer.sampling.params",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
