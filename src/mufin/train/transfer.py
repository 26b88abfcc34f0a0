"""Module III: add a new ranker and classifiers to the pre-trained embedder."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mufin.config import Config
from mufin.encode.embedder import Embedder
from mufin.rank.ranker import Classifiers, Ranker
from mufin.retrieve.entries import centroids
from mufin.train.data import TrainingData


@dataclass(frozen=True)
class Networks:
    """The embedder E from Module I, with A_C and w from Module III."""

    embedder: Embedder
    ranker: Ranker
    classifiers: Classifiers

    @property
    def device(self) -> torch.device:
        return self.embedder.device

    def train(self) -> None:
        """Switch to training mode, with dropout."""
        self.embedder.train()
        self.ranker.train()

    def eval(self) -> None:
        """Switch to evaluation mode."""
        self.embedder.eval()
        self.ranker.eval()

    @torch.no_grad()
    def weights(self, z: Tensor) -> Tensor:
        """Return w of every label, given all ẑ (L, D)."""
        return self.classifiers.weight(torch.arange(len(z), device=z.device), z)


def transfer(config: Config, embedder: Embedder, data: TrainingData) -> Networks:
    """Combine the pre-trained embedder with a new ranker and new classifiers."""
    classifiers = Classifiers(data.n_labels, config.embed.dim, learnt=config.rank.alpha == "learnt")
    if config.rank.start == "centroid" and classifiers.learnt:
        points = embedder.embed(data.points, data.groups).vectors()
        means, known = (t.cpu() for t in centroids(points, data.relevance))
        classifiers.free.data[known] = means[known]
    return Networks(embedder, Ranker(config).to(embedder.device), classifiers.to(embedder.device))
