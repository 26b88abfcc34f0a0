"""Early fusion: encode the texts and images of an item as one token sequence."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mufin.encode.bag import Bag
from mufin.encode.features import Batch
from mufin.encode.text import TextEncoder
from mufin.errors import ConfigError


class Joint(nn.Module):
    """One vector per item: the mean language-model output over its word and image tokens.

    Each image is one token. VisualBERT embeds image tokens itself; for other language models a trained linear
    layer does. An item without text gets the tokens of an empty text.
    """

    def __init__(self, text: TextEncoder, image_width: int) -> None:
        """`image_width` is the width of the image encoder's output."""
        super().__init__()
        network: Any = text.network
        if text.has_projection:
            raise ConfigError(
                'embed.fusion = "early" needs a text encoder that accepts images as tokens, such as BERT or '
                f"VisualBERT; {type(network).__name__} does not"
            )
        width = text.visual_width or network.get_input_embeddings().embedding_dim
        fits = image_width == text.visual_width
        self.tokens: nn.Module = nn.Identity() if fits else nn.Linear(image_width, width)

    def forward(self, text: TextEncoder, batch: Batch, image_rows: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return rows (p, H) of the points that have descriptors, and the indices (p,) of these points.

        `image_rows` (n, H′) is the image encoder's output for each image of the batch.
        """
        device = next(text.network.parameters()).device
        nothing = torch.zeros(batch.size, 0, 1, device=device)
        images = Bag(nothing, nothing[..., 0].bool())
        if batch.image is not None and image_rows is not None:
            values, counts = _pad(self.tokens(image_rows), batch.image.point, batch.size)  # (B, i, V)
            images = Bag(values, torch.arange(values.shape[1], device=device) < counts[:, None])
        ids, lengths = _join_texts(text, batch, images.mask.any(1))
        points = ((lengths > 0) | images.mask.any(1)).nonzero()[:, 0]
        if not len(points):
            return torch.zeros(0, text.width, device=device), points
        return text.with_images(ids[points], lengths[points], images.map(lambda t: t[points])), points


def _join_texts(text: TextEncoder, batch: Batch, has_images: Tensor) -> tuple[Tensor, Tensor]:
    """Concatenate the tokens of each point's texts: ids (B, T) and lengths (B,).

    Only the first text keeps its start token. A point with images only gets an empty text.
    """
    empty = torch.tensor(text.empty, dtype=torch.int64, device=has_images.device)
    begins = text.empty[0] if len(text.empty) > 1 else -1
    tokens, owner = empty[:0], empty[:0]
    if batch.text is not None:
        part = batch.text
        ids, sizes = part.each(part.values), part.each(part.lengths)  # (n, T), (n,)
        there = torch.arange(ids.shape[1], device=ids.device) < sizes[:, None]
        there[:, 0] &= (part.slot == 0) | (ids[:, 0] != begins)
        tokens, owner = ids[there], part.point.repeat_interleave(there.sum(1))
    has_text = torch.bincount(owner, minlength=batch.size) > 0
    textless = (has_images & ~has_text).nonzero()[:, 0]
    owner = torch.cat([owner, textless.repeat_interleave(len(empty))])
    tokens = torch.cat([tokens, empty.repeat(len(textless))])
    order = owner.argsort(stable=True)
    return _pad(tokens[order], owner[order], batch.size)


def _pad(flat: Tensor, owner: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Pad rows (N, ...), sorted by owner (N,), to (size, longest, ...); also return the count per owner."""
    counts = torch.bincount(owner, minlength=size)
    place = torch.arange(len(owner), device=owner.device) - (counts.cumsum(0) - counts)[owner]
    most = int(counts.max()) if size else 0
    lines = flat.new_zeros(size, most, *flat.shape[1:])
    return lines.index_put((owner, place), flat), counts
