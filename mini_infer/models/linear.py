"""Where the weights meet the hardware: one product `x @ weight.T + bias`, possibly several of a checkpoint's in one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def parameter(*shape: int, dtype: torch.dtype, device: torch.device | str) -> nn.Parameter:
    """Memory for a weight, not initialised: the loader fills it."""
    return nn.Parameter(torch.empty(shape, dtype=dtype, device=device), requires_grad=False)


class Module(nn.Module):
    """A module whose call has a type: each here answers with one tensor."""

    __call__: Callable[..., Tensor]


class Linear(Module):
    """One product of the model; `parts` names the checkpoint's matrices stacked in it and their output widths.

    Products that read the same input (q, k and v; gate and up) are held as one: the input is read once, and a
    small batch pays for one call in place of three. A tied output head brings the embedding as its `weight`.
    """

    def __init__(
        self,
        in_features: int,
        parts: Mapping[str, int],
        *,
        bias: bool,
        dtype: torch.dtype,
        device: torch.device | str,
        weight: nn.Parameter | None = None,
    ) -> None:
        super().__init__()
        self.parts = dict(parts)
        out_features = sum(parts.values())
        self.weight = parameter(out_features, in_features, dtype=dtype, device=device) if weight is None else weight
        self.bias = parameter(out_features, dtype=dtype, device=device) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """[..., in_features] to [..., sum of the parts' widths]."""
        return F.linear(x, self.weight, self.bias)

    def checkpoint_parameters(self) -> dict[str, Tensor]:
        """The view each of the checkpoint's tensors is copied into, by its name within the layer."""
        views: dict[str, Tensor] = {}
        start = 0
        for name, width in self.parts.items():
            views[f"{name}.weight"] = self.weight[start : start + width]
            if self.bias is not None:
                views[f"{name}.bias"] = self.bias[start : start + width]
            start += width
        return views
