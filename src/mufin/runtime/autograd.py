"""Cheaper dropout, and inference without autograd."""

from __future__ import annotations

import torch
from torch import Tensor, nn

CHANCES = 1 << 16  # a chance is drawn in 16 bits, four to a random number


class Dropout(nn.Dropout):
    """x ⊙ [r ≥ p] / (1 − p), as torch has it, with p to the nearest of 65,536 parts.

    On a CPU torch draws one number per element, which took a tenth of a training step.
    """

    def forward(self, input: Tensor) -> Tensor:
        dropped = round(self.p * CHANCES)
        if not self.training or not dropped or dropped == CHANCES or input.device.type != "cpu":
            return super().forward(input)
        drawn = torch.randint(-(2**63), 2**63 - 1, (-(-input.numel() // 4),)).view(torch.int16)
        kept = drawn[: input.numel()].view(input.shape) >= dropped - CHANCES // 2
        return input * kept.to(input.dtype).mul_(CHANCES / (CHANCES - dropped))


def lighten(network: nn.Module) -> None:
    """Replace every dropout of a network by this one."""
    for module in network.modules():
        for name, child in module.named_children():
            if type(child) is nn.Dropout:
                setattr(module, name, Dropout(child.p))


def inference_mode(device: torch.device) -> torch.inference_mode:
    """Disable autograd's bookkeeping on a CPU: 0.5 ms less per query.

    Not on a GPU, where the buffers of recorded graphs are also written outside of it.
    """
    return torch.inference_mode(device.type == "cpu")
