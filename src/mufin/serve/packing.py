"""Packing: what a service runs again and again, laid out once for the processor."""

from __future__ import annotations

from mufin.encode.folded import fold
from mufin.encode.packed import pack_products
from mufin.model import Mufin
from mufin.onednn import fast_dtype
from mufin.retrieve.exact import ExactIndex


def pack(model: Mufin) -> None:
    """Lay out encoders and index to answer a few at a time; such a model predicts, and cannot be saved."""
    if model.embedder.device.type != "cpu":
        return
    text = model.embedder.text
    if not text.pack(fast_dtype()):
        pack_products(text.network)
    if model.embedder.vision is not None:
        pack_products(model.embedder.vision.network)
        fold(model.embedder.vision.network)
        model.embedder.only_embeds()
    pack_indexes(model)


def pack_indexes(model: Mufin) -> None:
    """Lay out what is searched: again whenever labels were read anew."""
    if isinstance(model.index, ExactIndex):
        model.index.pack()
    for signal in model.signals:
        signal.pack()
