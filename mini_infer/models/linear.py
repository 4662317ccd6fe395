"""Where the weights meet the hardware: one product `x @ weight.T + bias`, possibly several of a checkpoint's in one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_MKLDNN = torch.ops.mkldnn  # torch's door to oneDNN; what is used of it here is private


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
        self.in_features = in_features
        self.parts = dict(parts)
        out_features = sum(parts.values())
        self.is_tied = weight is not None
        self.weight = parameter(out_features, in_features, dtype=dtype, device=device) if weight is None else weight
        self.bias = parameter(out_features, dtype=dtype, device=device) if bias else None
        self.packed: nn.Parameter | None = None

    def pack(self) -> None:
        """Once the weight is filled: hold it in the layout that this CPU's kernels read, where they have one.

        A plain product brings its weight into that layout at every call, which costs two to four times the product
        itself up to 32 rows. Only a tied weight is kept beside its copy: its owner reads single rows.
        """
        if self.packed is None and packs(self.weight):
            self.packed = nn.Parameter(_MKLDNN._reorder_linear_weight(self.weight, None), requires_grad=False)
            if not self.is_tied:
                del self.weight

    def forward(self, x: Tensor) -> Tensor:
        """[..., in_features] to [..., sum of the parts' widths]."""
        if self.packed is not None:
            product: Tensor = _MKLDNN._linear_pointwise(x, self.packed, self.bias, "none", [], "")
            return product
        return F.linear(x, self.weight, self.bias)

    def checkpoint_parameters(self) -> dict[str, Tensor]:
        """The view each tensor of the checkpoint is copied into, by its name within the layer; a copy once packed."""
        weight = self.weight if self.packed is None else self.packed.to_dense()
        views: dict[str, Tensor] = {}
        start = 0
        for name, width in self.parts.items():
            views[f"{name}.weight"] = weight[start : start + width]
            if self.bias is not None:
                views[f"{name}.bias"] = self.bias[start : start + width]
            start += width
        return views


def packs(weight: Tensor) -> bool:
    """Whether oneDNN has a layout of its own for this weight, and this torch the private calls that use it."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    calls = ("_reorder_linear_weight", "_linear_pointwise", "_is_mkldnn_bf16_supported")
    if not all(hasattr(_MKLDNN, call) for call in calls):
        return False
    bf16: bool = _MKLDNN._is_mkldnn_bf16_supported()
    return weight.dtype == torch.float32 or (weight.dtype == torch.bfloat16 and bf16)
