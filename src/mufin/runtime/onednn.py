"""oneDNN products and convolutions with prepacked weights (private torch operators)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

Activation = tuple[str, list[float], str]
IDENTITY: Activation = ("none", [], "")
GELU: Activation = ("gelu", [], "none")
RELU6: Activation = ("hardtanh", [0.0, 6.0], "")


def can_pack() -> bool:
    """Return whether torch supports packed products and convolutions on this CPU."""
    wanted = ("_linear_pointwise", "_convolution_pointwise")
    return torch.backends.mkldnn.is_available() and all(hasattr(torch.ops.mkldnn, name) for name in wanted)


def fast_dtype() -> torch.dtype:
    """Return bf16 if the CPU supports it (half the time, 8 bits of precision), else f32."""
    units = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    found = any(getattr(torch.cpu, unit, lambda: False)() for unit in units)
    return torch.bfloat16 if found else torch.float32


def pack(weight: Tensor, rows: int) -> Tensor:
    """Pack W (o, i), optimised for about `rows` rows at a time; any number works."""
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), rows)
    return packed


def product(
    x: Tensor, packed: Tensor, bias: Tensor | None = None, activation: Activation = IDENTITY
) -> Tensor:
    """Return activation(x Wᵀ + b), (n, o), for x (n, i) and a packed W."""
    found: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, *activation)
    return found


def pack_convolution(
    weight: Tensor, shape: torch.Size, stride: list[int], padding: int, groups: int
) -> Tensor:
    """Pack weights (o, i, h, w) for inputs of this exact shape (n, c, H, W); others would be slow."""
    packed: Tensor = torch.ops.mkldnn._reorder_convolution_weight(
        weight.detach(), [padding, padding], stride, [1, 1], groups, shape
    )
    return packed


def convolution(
    x: Tensor,
    packed: Tensor,
    bias: Tensor,
    stride: list[int],
    padding: int,
    groups: int,
    activation: Activation = IDENTITY,
) -> Tensor:
    """Convolve zero-padded x (n, c, H, W) with packed weights, then apply the activation."""
    found: Tensor = torch.ops.mkldnn._convolution_pointwise(
        x, packed, bias, [padding, padding], stride, [1, 1], groups, *activation
    )
    return found


TYPICAL_ROWS = 64  # tokens of a typical batch, for which weights are packed; any number works
MIN_WEIGHTS = 1 << 14  # packing smaller layers has no effect on speed


class PackedLinear(nn.Module):
    """x Wᵀ + b with W in oneDNN's layout, optionally followed by a GELU."""

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        gelu: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Pack the weights; with bf16, sums are still f32, but the result is bf16."""
        super().__init__()
        self.weight = pack(weight.to(dtype), TYPICAL_ROWS)
        self.bias = None if bias is None else bias.detach().to(dtype)
        self.activation, self.dtype = GELU if gelu else IDENTITY, dtype

    def forward(self, x: Tensor) -> Tensor:
        return product(x.to(self.dtype), self.weight, self.bias, self.activation)


def pack_products(network: nn.Module) -> int:
    """Pack the large linear layers of a network in place, for prediction only; return how many."""
    found = [
        (parent, name, child)
        for parent in network.modules()
        for name, child in parent.named_children()
        if type(child) is nn.Linear
        and child.weight.numel() >= MIN_WEIGHTS
        and child.weight.dtype == torch.float32
    ]
    for parent, name, child in found if can_pack() else ():
        setattr(parent, name, PackedLinear(child.weight.detach(), child._parameters["bias"]))
    return len(found) if can_pack() else 0


def keep_weights(network: nn.Module) -> None:
    """Make `state_dict` return the current weights even after the network is converted."""
    weights = dict(network.state_dict())

    def restore(_: nn.Module, state: dict[str, Any], prefix: str, __: Any) -> None:
        for name in [name for name in state if name.startswith(prefix)]:
            del state[name]
        state.update({prefix + name: weight for name, weight in weights.items()})

    network.register_state_dict_post_hook(restore)
