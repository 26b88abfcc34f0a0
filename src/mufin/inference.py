"""How torch is told that nobody will ask for gradients."""

from __future__ import annotations

import torch


def at_ease(device: torch.device) -> torch.inference_mode:
    """On a processor without all that autograd notes: half a millisecond less for a query.

    Not on a GPU: what is recorded there is written to outside of it, too.
    """
    return torch.inference_mode(device.type == "cpu")
