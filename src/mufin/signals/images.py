"""Images: whether the images of a query look like images of the training data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from mufin.config import Config
from mufin.data.items import Items
from mufin.encode.checkpoints import Layout
from mufin.encode.features import Features
from mufin.encode.network import Lite0
from mufin.encode.rows import DenseRows
from mufin.files.tensors import Tensors
from mufin.progress import Task
from mufin.signals.base import Candidates, Known, Query, Signal, Training

WIDTH = 256  # columns kept per item: neighbouring outputs of the encoder are averaged
ROWS_PER_BLOCK = 1 << 14
LEARNT, MOST = 256, 4096  # images remembered from training, and in all


@dataclass(frozen=True)
class Images(Signal):
    """The largest cosine of a query's frozen image features to those of remembered images.

    Enters the probability only: a trained embedder moves any image close to some label, a frozen encoder does
    not. Features that the service skips (`Embedder.skip_early_features`) are not compared.
    """

    name = "images"
    description = "how like the images of training examples its images look"
    columns = ()
    clues = ("nearest image",)

    last_map_only: bool
    known: Tensor  # (M, 256) unit rows

    @classmethod
    def of(cls, config: Config, layout: Layout | None = None) -> Images | None:
        if config.modalities == "text" or config.vision.train_layers != 0 or not config.memory.neighbours:
            return None
        return cls(not config.embed.stages, torch.zeros(0, WIDTH))

    def read(self, items: Items, features: Features, cached: bool, task: Task) -> DenseRows:
        """Return the mean features of each item's images, zero without an image."""
        images, mean = features.image, torch.zeros(len(items), WIDTH)
        if len(images.which):
            item = np.repeat(np.arange(len(items)), np.diff(images.offsets))
            mean.index_add_(0, torch.from_numpy(item), self._pooled(images.rows.flat)[images.which])
        return DenseRows(F.normalize(mean, dim=1).half())

    def _pooled(self, rows: NDArray[Any]) -> Tensor:
        """Return (n, 256): averages of neighbouring columns."""
        width = Lite0.width if self.last_map_only else rows.shape[1]
        blocks = np.array_split(rows, 1 + len(rows) // ROWS_PER_BLOCK)
        parts = [torch.from_numpy(np.asarray(block[:, :width], np.float32)) for block in blocks]
        return torch.cat([F.adaptive_avg_pool1d(part, WIDTH) for part in parts])

    def score(self, query: Query, candidates: Candidates) -> Tensor:
        return torch.zeros(*candidates.rows.shape, 0, device=candidates.rows.device)

    def familiar(self, query: Query) -> Tensor:
        own = F.normalize(query.reading(self.name).values.float(), dim=1)
        missing = ~own.any(1, keepdim=True)
        if not len(self.known):
            return torch.full_like(missing, torch.nan, dtype=torch.float32)
        nearest = (own.double() @ self.known.double().T).amax(1, keepdim=True).float()  # whatever the batch
        return nearest.masked_fill(missing, torch.nan)

    def learn(self, training: Training) -> Images:
        known = _with_images(training.points.readings[self.name].values.float())
        step = max(1, -(-len(known) // LEARNT))
        return replace(self, known=known[::step].to(training.points.bags.rows.device))

    def with_points(self, points: Query) -> Images:
        fresh = _with_images(points.reading(self.name).values.float())
        return replace(self, known=torch.cat([self.known, fresh])[:MOST])

    def to(self, device: torch.device) -> Images:
        return replace(self, known=self.known.to(device))

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        if len(self.known):
            yield "known", self.known

    def restored(self, tensors: Tensors, known: Known) -> Images:
        return replace(self, known=tensors.get("known", (None, WIDTH), (torch.float32,)))


def _with_images(rows: Tensor) -> Tensor:
    """Return the rows that are not zero, at unit length."""
    return F.normalize(rows[rows.any(1)], dim=1)
