"""Attention kernels that need no planning.

cuDNN plans its attention anew for every shape, for up to half a second each, and texts come in many shapes.
Training MiniLM on 15,000 titles on an H200 spent half its time on plans.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

UNPLANNED = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def unplanned_attention(device: torch.device) -> AbstractContextManager[None]:
    """Leave out cuDNN's kernels for scaled dot-product attention on a GPU."""
    return sdpa_kernel(UNPLANNED) if device.type == "cuda" else nullcontext()
