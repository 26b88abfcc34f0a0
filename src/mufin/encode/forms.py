"""The forms that encoders take for prediction: which one is fastest depends on network and device."""

from __future__ import annotations

import torch

from mufin.config import Text
from mufin.encode.checkpoints import Layout
from mufin.encode.fast_text import FastTextEncoder
from mufin.encode.network import Lite0
from mufin.encode.text import TextEncoder
from mufin.encode.vision import VisionEncoder
from mufin.runtime.packed import keep_weights, pack_products


def text_encoder(
    settings: Text, layout: Layout | None = None, whole: bool = False
) -> TextEncoder | FastTextEncoder:
    """E_T: pre-trained, or of a stored layout, and then in its fast form where there is one."""
    if layout is None:
        return TextEncoder(settings, None, whole)
    folder = layout.folder / "text"
    if layout.fast and not whole and FastTextEncoder.serves(settings, folder):
        return FastTextEncoder(settings, folder)
    return TextEncoder(settings, folder, whole)


def accelerate(
    encoder: TextEncoder | FastTextEncoder | VisionEncoder, device: torch.device, one_pass: bool = False
) -> None:
    """Move an encoder to a device, in the form that predicts fastest there; its state stays as it is.

    On a CPU: packed products, folded batch norms. On a GPU: bf16, and with `one_pass` no stop on the host
    between frozen and trained layers.
    """
    if isinstance(encoder, FastTextEncoder):
        return
    keep_weights(encoder.network)
    encoder.to(device)
    if device.type == "cpu":
        pack_products(encoder.network)
        if isinstance(encoder.network, Lite0) and encoder.depth != 0:  # else a copy is, at the first image
            encoder.network.fold()
    elif device.type == "cuda":
        round_to_bf16(encoder, one_pass)


def round_to_bf16(encoder: TextEncoder | VisionEncoder, one_pass: bool) -> None:
    """Compute in bf16, and with `one_pass` all layers at once."""
    encoder.network.to(torch.bfloat16)
    encoder.cut.precision = "-bf16"
    if one_pass and encoder.depth != 0:
        encoder.depth = "all"
