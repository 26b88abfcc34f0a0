"""Early fusion: the texts and images of an item go through the language model as one sequence of tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mufin.encode.bag import Bag
from mufin.encode.features import Batch
from mufin.encode.text import TextEncoder
from mufin.errors import ConfigError


class Joint(nn.Module):
    """One vector per item: the mean of the language model's output over the item's words and images.

    An image is one token. VisualBERT has embeddings of its own for such tokens; for any other language model
    a linear layer makes them, and is trained. An item without texts has the tokens of an empty one.
    """

    def __init__(self, text: TextEncoder, seen: int) -> None:
        """`seen` is the width of what the image encoder gives."""
        super().__init__()
        network: Any = text.network
        if text.projects:
            raise ConfigError(
                'embed.fusion = "early" needs a text encoder that takes images as tokens, such as BERT or '
                f"VisualBERT; {type(network).__name__} does not"
            )
        width = text.visual_width or network.get_input_embeddings().embedding_dim
        fits = seen == text.visual_width
        self.tokens: nn.Module = nn.Identity() if fits else nn.Linear(seen, width)

    def forward(self, text: TextEncoder, batch: Batch, seen: Tensor | None) -> tuple[Tensor, Tensor]:
        """Rows (p, H) of the points that have any descriptor, and their numbers (p,).

        `seen` (n, H′) has what the image encoder gives for each image of the batch.
        """
        device = next(text.network.parameters()).device
        nothing = torch.zeros(batch.size, 0, 1, device=device)
        images = Bag(nothing, nothing[..., 0].bool())
        if batch.image is not None and seen is not None:
            values, counts = _padded(self.tokens(seen), batch.image.point, batch.size)  # (B, i, V)
            images = Bag(values, torch.arange(values.shape[1], device=device) < counts[:, None])
        ids, lengths = _words(text, batch, images.mask.any(1))
        points = ((lengths > 0) | images.mask.any(1)).nonzero()[:, 0]
        if not len(points):
            return torch.zeros(0, text.width, device=device), points
        return text.with_images(ids[points], lengths[points], images.map(lambda t: t[points])), points


def _words(text: TextEncoder, batch: Batch, pictured: Tensor) -> tuple[Tensor, Tensor]:
    """The tokens of each point's texts, end to end, and how many they are: (B, T) and (B,).

    Only its first text keeps the token that begins a text. A point with images alone has an empty text.
    """
    empty = torch.tensor(text.empty, dtype=torch.int64, device=pictured.device)
    begins = text.empty[0] if len(text.empty) > 1 else -1
    tokens, owner = empty[:0], empty[:0]
    if batch.text is not None:
        part = batch.text
        ids, sizes = part.each(part.values), part.each(part.lengths)  # (n, T), (n,)
        there = torch.arange(ids.shape[1], device=ids.device) < sizes[:, None]
        there[:, 0] &= (part.slot == 0) | (ids[:, 0] != begins)
        tokens, owner = ids[there], part.point.repeat_interleave(there.sum(1))
    told = torch.bincount(owner, minlength=batch.size) > 0
    silent = (pictured & ~told).nonzero()[:, 0]
    owner = torch.cat([owner, silent.repeat_interleave(len(empty))])
    tokens = torch.cat([tokens, empty.repeat(len(silent))])
    order = owner.argsort(stable=True)
    return _padded(tokens[order], owner[order], batch.size)


def _padded(flat: Tensor, owner: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Rows (N, ...) by ascending owner (N,): (size, the most, ...), padded, and how many each owner has."""
    counts = torch.bincount(owner, minlength=size)
    place = torch.arange(len(owner), device=owner.device) - (counts.cumsum(0) - counts)[owner]
    most = int(counts.max()) if size else 0
    lines = flat.new_zeros(size, most, *flat.shape[1:])
    return lines.index_put((owner, place), flat), counts
