"""Cheaper dropout, and inference without autograd."""

from __future__ import annotations

import torch
from torch import Tensor, nn

LEVELS = 1 << 16  # of a 16-bit random value; a 64-bit random number holds four


class Dropout(nn.Dropout):
    """x ⊙ [r ≥ p] / (1 − p), like torch's, with p rounded to a multiple of 1/65,536.

    Torch draws one number per element, which took a tenth of a training step on a CPU.
    """

    def forward(self, input: Tensor) -> Tensor:
        dropped = round(self.p * LEVELS)
        if not self.training or not dropped or dropped == LEVELS or input.device.type != "cpu":
            return super().forward(input)
        drawn = torch.randint(-(2**63), 2**63 - 1, (-(-input.numel() // 4),)).view(torch.int16)
        kept = drawn[: input.numel()].view(input.shape) >= dropped - LEVELS // 2
        return input * kept.to(input.dtype).mul_(LEVELS / (LEVELS - dropped))


def replace_dropout(network: nn.Module) -> None:
    """Replace every torch dropout in a network with the faster one."""
    for module in network.modules():
        for name, child in module.named_children():
            if type(child) is nn.Dropout:
                setattr(module, name, Dropout(child.p))


def inference_mode(device: torch.device) -> torch.inference_mode:
    """Disable autograd's bookkeeping on a CPU: 0.5 ms less per query.

    Not on a GPU, where buffers of CUDA graphs are also written outside inference mode.
    """
    return torch.inference_mode(device.type == "cpu")
