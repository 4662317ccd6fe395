"""What this machine gives at most, measured in this process and on its threads: memory reads, and bare products."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter

import torch
from torch import Tensor

from mini_infer.models.linear import Linear
from mini_infer.models.transformer import Transformer

READ_BYTES = 2**30
REPEATS = 5


class Limits:
    """The limits of one model on one machine; each call measures anew."""

    def __init__(self, model: Transformer, read_bytes: int = READ_BYTES) -> None:
        self.model = model
        self.weight_bytes = sum(linear_bytes(module) for module in linears(model))
        self._memory = torch.ones(read_bytes // 4, dtype=torch.float32)

    def read_bandwidth(self) -> float:
        """GB/s: the best of 5 sums over 1 GiB of float32."""
        seconds = min(timed(self._memory.sum) for _ in range(REPEATS))
        return self._memory.nbytes / seconds / 1e9

    @torch.inference_mode()
    def products(self, rows: int, head_rows: int) -> float:
        """Milliseconds of all products of one forward pass and nothing between them: the median of 5 passes.

        `rows` go through the layers, `head_rows` of them through the output head.
        """
        head = self.model.lm_head
        work = [(module, _input(self.model, module, rows)) for module in linears(self.model) if module is not head]
        if head_rows:
            work.append((head, _input(self.model, head, head_rows)))

        def run() -> None:
            for module, x in work:
                module(x)

        run()
        return 1000 * median(timed(run) for _ in range(REPEATS))


def linears(model: Transformer) -> list[Linear]:
    """The model's products, in the order in which a forward pass takes them."""
    return [module for module in model.modules() if isinstance(module, Linear)]


def linear_bytes(module: Linear) -> int:
    """Bytes of weights that one product reads."""
    weight = module.weight if module.packed is None else module.packed
    return weight.nbytes + (0 if module.bias is None else module.bias.nbytes)


def timed(run: Callable[[], object]) -> float:
    """Seconds of one call."""
    began = perf_counter()
    run()
    return perf_counter() - began


def _input(model: Transformer, module: Linear, rows: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, module.in_features, generator=generator)
    return x.to(model.device, model.dtype)
