"""Products of few rows with weights that stay: oneDNN lays them out once (private operators of torch)."""

from __future__ import annotations

import torch
from torch import Tensor

After = tuple[str, list[float], str]
NOTHING: After = ("none", [], "")
GELU: After = ("gelu", [], "none")


def can_pack() -> bool:
    """Whether this torch and this processor have such products."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


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
