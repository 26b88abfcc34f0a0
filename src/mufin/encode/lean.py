"""A copy of an embedder for prediction alone: from tokens and pixels to bags in one pass on the device."""

from __future__ import annotations

from copy import deepcopy

import torch

from mufin.encode.embedder import Embedder


def lean(embedder: Embedder, compiled: bool = False) -> Embedder:
    """The same function, in bf16 on a GPU; `features` then only decodes, and nothing travels back half-way.

    With `compiled`, each layer goes through torch.compile: seconds once, for fewer passes over memory.
    """
    copy = deepcopy(embedder).eval().requires_grad_(False)
    copy.only_embeds()
    for encoder in (copy.text, copy.vision):
        if encoder is None:
            continue
        encoder.depth = "all"
        if embedder.device.type == "cuda":
            encoder.network.to(torch.bfloat16)
        if compiled:
            for layer in getattr(encoder.cut.holder, encoder.cut.attribute):
                layer.forward = torch.compile(layer.forward)
    return copy
