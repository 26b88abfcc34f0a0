"""Products and convolutions with weights that stay: laid out once by oneDNN (private operators of torch)."""

from __future__ import annotations

import torch
from torch import Tensor

After = tuple[str, list[float], str]
NOTHING: After = ("none", [], "")
GELU: After = ("gelu", [], "none")
RELU6: After = ("hardtanh", [0.0, 6.0], "")


def can_pack() -> bool:
    """Whether this torch and this processor have such products and convolutions."""
    wanted = ("_linear_pointwise", "_convolution_pointwise")
    return torch.backends.mkldnn.is_available() and all(hasattr(torch.ops.mkldnn, name) for name in wanted)


def fast_dtype() -> torch.dtype:
    """bf16 where the processor multiplies it: half the time, and the same answers but for last digits."""
    units = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    found = any(getattr(torch.cpu, unit, lambda: False)() for unit in units)
    return torch.bfloat16 if found else torch.float32


def pack(weight: Tensor, rows: int) -> Tensor:
    """W (o, i) in the layout for about so many rows at a time; others work too."""
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), rows)
    return packed


def product(x: Tensor, packed: Tensor, bias: Tensor | None = None, after: After = NOTHING) -> Tensor:
    """x Wᵀ + b (n, o) for x (n, i) and a packed W, then what comes `after`."""
    found: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, *after)
    return found


def pack_convolution(weight: Tensor, shape: torch.Size, stride: list[int], edge: int, groups: int) -> Tensor:
    """Weights (o, i, h, w) in the layout for inputs of just this shape (n, c, H, W); others would be slow."""
    packed: Tensor = torch.ops.mkldnn._reorder_convolution_weight(
        weight.detach(), [edge, edge], stride, [1, 1], groups, shape
    )
    return packed


def convolution(
    x: Tensor, packed: Tensor, bias: Tensor, stride: list[int], edge: int, groups: int, after: After = NOTHING
) -> Tensor:
    """The convolution of x (n, c, H, W) with packed weights, zeros around it, then what comes `after`."""
    found: Tensor = torch.ops.mkldnn._convolution_pointwise(
        x, packed, bias, [edge, edge], stride, [1, 1], groups, *after
    )
    return found
