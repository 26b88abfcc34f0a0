"""oneDNN products and convolutions with weights that are packed once (private operators of torch)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

After = tuple[str, list[float], str]
NOTHING: After = ("none", [], "")
GELU: After = ("gelu", [], "none")
RELU6: After = ("hardtanh", [0.0, 6.0], "")


def can_pack() -> bool:
    """Whether this torch and this CPU have packed products and convolutions."""
    wanted = ("_linear_pointwise", "_convolution_pointwise")
    return torch.backends.mkldnn.is_available() and all(hasattr(torch.ops.mkldnn, name) for name in wanted)


def fast_dtype() -> torch.dtype:
    """Return bf16 where the CPU multiplies it (half the time, rounded to 8 bits), else f32."""
    units = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    found = any(getattr(torch.cpu, unit, lambda: False)() for unit in units)
    return torch.bfloat16 if found else torch.float32


def pack(weight: Tensor, rows: int) -> Tensor:
    """Lay out W (o, i) for about so many rows at a time; other numbers work too."""
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), rows)
    return packed


def product(x: Tensor, packed: Tensor, bias: Tensor | None = None, after: After = NOTHING) -> Tensor:
    """x Wᵀ + b (n, o) for x (n, i) and a packed W, then the activation `after`."""
    found: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, *after)
    return found


def pack_convolution(weight: Tensor, shape: torch.Size, stride: list[int], edge: int, groups: int) -> Tensor:
    """Lay out weights (o, i, h, w) for inputs of just this shape (n, c, H, W); others would be slow."""
    packed: Tensor = torch.ops.mkldnn._reorder_convolution_weight(
        weight.detach(), [edge, edge], stride, [1, 1], groups, shape
    )
    return packed


def convolution(
    x: Tensor, packed: Tensor, bias: Tensor, stride: list[int], edge: int, groups: int, after: After = NOTHING
) -> Tensor:
    """Convolve x (n, c, H, W), zeros around it, with packed weights, then apply the activation `after`."""
    found: Tensor = torch.ops.mkldnn._convolution_pointwise(
        x, packed, bias, [edge, edge], stride, [1, 1], groups, *after
    )
    return found


ROWS = 64  # tokens of a usual batch, for which the layout is chosen; others work too
SMALL = 1 << 14  # weights; for fewer it makes no difference


class PackedLinear(nn.Module):
    """x Wᵀ + b, with W in the layout of oneDNN, and a GELU behind it on request."""

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        gelu: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """In bf16 sums are still f32, the result is not."""
        super().__init__()
        self.weight = pack(weight.to(dtype), ROWS)
        self.bias = None if bias is None else bias.detach().to(dtype)
        self.after, self.dtype = GELU if gelu else NOTHING, dtype

    def forward(self, x: Tensor) -> Tensor:
        return product(x.to(self.dtype), self.weight, self.bias, self.after)


def pack_products(network: nn.Module) -> int:
    """Pack the large products of a network in place, which can then only predict; return how many."""
    found = [
        (parent, name, child)
        for parent in network.modules()
        for name, child in parent.named_children()
        if type(child) is nn.Linear and child.weight.numel() >= SMALL and child.weight.dtype == torch.float32
    ]
    for parent, name, child in found if can_pack() else ():
        setattr(parent, name, PackedLinear(child.weight.detach(), child._parameters["bias"]))
    return len(found) if can_pack() else 0


def keep_weights(network: nn.Module) -> None:
    """Have `state_dict` go on giving the weights of now, whatever form the network takes next."""
    weights = dict(network.state_dict())

    def restore(_: nn.Module, state: dict[str, Any], prefix: str, __: Any) -> None:
        for name in [name for name in state if name.startswith(prefix)]:
            del state[name]
        state.update({prefix + name: weight for name, weight in weights.items()})

    network.register_state_dict_post_hook(restore)
