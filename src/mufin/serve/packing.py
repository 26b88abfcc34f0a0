"""Packing: what a service runs again and again, laid out once for the processor."""

from __future__ import annotations

from mufin.encode.packed import fast_dtype, pack_products
from mufin.model import Mufin


def pack(model: Mufin) -> None:
    """Lay out the encoders to answer a few at a time; the model can then predict, and not be saved whole."""
    if model.embedder.device.type != "cpu":
        return
    if not model.embedder.text.pack(fast_dtype()):
        pack_products(model.embedder.text.network)
    if model.embedder.vision is not None:
        pack_products(model.embedder.vision.network)
