"""The embedder E: descriptors → pre-embeddings X̂⁰ → self-attention → bag X̂¹."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from mufin.attention import FeedForward, SelfAttention
from mufin.bag import Bag, PackedBags
from mufin.config import Config
from mufin.data.items import Items
from mufin.encode.features import Advance, Batch, Features, Groups, Part, extract, silent
from mufin.encode.ragged import Ints
from mufin.encode.text import TextEncoder
from mufin.encode.vision import VisionEncoder
from mufin.progress import Progress


class Embedder(nn.Module):
    """X̂¹ = A_S(X̂⁰), X̂⁰ one row a descriptor: P(E_T(text)) or P(E_V(picture)), P the projection to D."""

    def __init__(self, config: Config, folder: Path | None = None) -> None:
        """Pre-trained encoders, or those whose layout lies in `folder` (weights are filled in later)."""
        super().__init__()
        settings = config.embed
        self.dim = settings.dim
        self.text = TextEncoder(config.text, folder and folder / "text")
        self.text_projection = _projection(settings.projection, self.text.width, self.dim)
        self.vision: VisionEncoder | None = None
        if config.modalities != "text":
            self.vision = VisionEncoder(config.vision, folder and folder / "vision")
            self.image_projection = _projection(settings.projection, self.vision.width, self.dim)
        self.dropout = nn.Dropout(settings.input_dropout)
        self.self_attention: nn.Module
        match settings.attention:
            case "attention":
                self.self_attention = SelfAttention(
                    self.dim, settings.blocks, settings.heads, settings.dropout
                )
            case "feedforward":
                self.self_attention = FeedForward(self.dim)
            case "none":
                self.self_attention = nn.Identity()

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def forward(self, batch: Batch) -> Bag:
        """X̂¹ of the batch: values (B, m, D), mask (B, m)."""
        bag: Bag = self.self_attention(self.raw_bag(batch))
        return bag

    def raw_bag(self, batch: Batch) -> Bag:
        """X̂⁰: each descriptor encoded by itself and projected to D."""
        batch = batch.to(self.device)
        values = torch.zeros(batch.size, batch.width, self.dim, device=self.device)
        mask = torch.zeros(batch.size, batch.width, dtype=torch.bool, device=self.device)
        if batch.text is not None:
            rows = self.text(batch.text.values, batch.text.lengths).float()  # (n, H)
            values, mask = _place(values, mask, batch.text, self.text_projection(self.dropout(rows)))
        if batch.image is not None and self.vision is not None:
            rows = self.vision(batch.image.values, batch.image.lengths).float()
            values, mask = _place(values, mask, batch.image, self.image_projection(self.dropout(rows)))
        return Bag(values, mask)

    def features(self, items: Items, cached: bool = True, progress: Advance = silent) -> Features:
        """The frozen outputs of all descriptors of the items."""
        with self._at_rest():
            return extract(items, self.text, self.vision, cached, progress)

    @contextmanager
    def _at_rest(self) -> Iterator[None]:
        """Without dropout inside; telling hundreds of modules takes a millisecond, so only if need be."""
        training = self.training
        if training:
            self.eval()
        try:
            yield
        finally:
            if training:
                self.train()

    def features_of(self, items: Items, rows: Ints, progress: Progress, name: str) -> Features:
        """Features of these rows, numbered like all items; the others stay empty, their pictures unread."""
        used = np.unique(rows)
        chosen = items.take(used)
        total = len(chosen.flat_texts()[1]) + len(chosen.flat_images()[1])
        with progress.task(name, total) as task:
            return self.features(chosen, progress=lambda *_: task.advance).spread(used, len(items))

    @torch.no_grad()
    def embed(
        self,
        features: Features,
        groups: Groups,
        batch: int = 1024,
        advance: Callable[[int], None] = lambda _: None,
    ) -> PackedBags:
        """X̂¹ of all these points, without dropout, packed."""
        bags = []
        with self._at_rest():
            for start in range(0, len(groups), batch):
                points = np.arange(start, min(start + batch, len(groups)), dtype=np.int64)
                bags.append(self(features.batch(groups.take(points))))
                advance(len(points))
        return PackedBags.pack(bags, self.dim)

    def encoder_parameters(self) -> list[nn.Parameter]:
        """The trained weights of the encoders' own layers."""
        networks = [encoder.network for encoder in (self.text, self.vision) if encoder is not None]
        return [p for network in networks for p in network.parameters() if p.requires_grad]

    def save(self, folder: Path) -> None:
        """The encoders' layouts; the weights are stored with the model's other tensors."""
        self.text.save(folder / "text")
        if self.vision is not None:
            self.vision.save(folder / "vision")


def _projection(kind: str, width: int, dim: int) -> nn.Module:
    return nn.AdaptiveMaxPool1d(dim) if kind == "maxpool" else nn.Linear(width, dim)


def _place(values: Tensor, mask: Tensor, part: Part, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Put each row at its bag and slot."""
    where = (part.point, part.slot)
    return values.index_put(where, rows.float()), mask.index_put(where, mask.new_ones(()))
