"""Packing: weights laid out once for the processor, so that short batches spend their time on arithmetic."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mufin.model import Mufin

ROWS = 64  # tokens of a usual batch, for which the layout is chosen; others work too
SMALL = 1 << 14  # weights; for fewer it makes no difference


class PackedLinear(nn.Module):
    """x Wᵀ + b by oneDNN, with W in its own layout: for a few texts faster than torch's own product."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight, bias = linear.weight.detach(), linear._parameters["bias"]  # which may be missing
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), ROWS)
        self.bias = None if bias is None else bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        return product


def pack(model: Mufin) -> int:
    """Pack the large products of the encoders, in place; the model can then predict, and not be saved whole.

    Gives how many were packed: none where this torch or this processor cannot.
    """
    if model.embedder.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return 0
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return 0
    found = [
        (parent, name, child)
        for encoder in (model.embedder.text, model.embedder.vision)
        if encoder is not None
        for parent in encoder.modules()
        for name, child in parent.named_children()
        if type(child) is nn.Linear and child.weight.numel() >= SMALL and child.weight.dtype == torch.float32
    ]
    for parent, name, child in found:
        setattr(parent, name, PackedLinear(child))
    return len(found)
