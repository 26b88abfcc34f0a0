"""Module III: add a new ranker and classifiers to the pre-trained embedder."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from mufin.config import Config
from mufin.encode.embedder import Embedder
from mufin.rank.ranker import Classifiers, Ranker
from mufin.retrieve.entries import centroids
from mufin.train.data import TrainingData
from mufin.train.ranks import Ranks


class SharedClassifiers(Classifiers):
    """Classifiers spread over ranks: label l, with its optimizer state, is on rank l mod R."""

    def __init__(self, whole: Classifiers, ranks: Ranks) -> None:
        super().__init__(0, 0, learnt=whole.learnt)
        self.ranks, self.n_labels = ranks, len(whole.free)
        self.free, self.logit = (
            nn.Parameter(w.data[ranks.rank :: ranks.size].clone()) for w in (whole.free, whole.logit)
        )

    def look_up(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return η and the logits of α of these labels, which must be the same on all ranks."""
        owner = labels % self.ranks.size
        own = super().look_up(labels[self.ranks.owns(owner)] // self.ranks.size)
        free, logit = (self.ranks.gather(rows, owner) for rows in own)
        return free, logit

    @torch.no_grad()
    def whole(self) -> Classifiers:
        """Return the classifiers of all labels."""
        found = Classifiers(0, 0, learnt=self.learnt)
        if self.learnt:
            everything = torch.arange(self.n_labels, device=self.free.device)
            found.free, found.logit = (nn.Parameter(rows) for rows in self.look_up(everything))
        return found


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

    def whole(self) -> Networks:
        """Return the networks with the classifiers of all labels."""
        if not isinstance(self.classifiers, SharedClassifiers):
            return self
        return replace(self, classifiers=self.classifiers.whole())

    @torch.no_grad()
    def weights(self, z: Tensor) -> Tensor:
        """Return w of every label, given all ẑ (L, D)."""
        return self.classifiers.weight(torch.arange(len(z), device=z.device), z)


def transfer(config: Config, embedder: Embedder, data: TrainingData) -> Networks:
    """Combine the pre-trained embedder with a new ranker and new classifiers."""
    classifiers = Classifiers(data.n_labels, config.embed.dim, learnt=config.rank.alpha == "learnt")
    if config.rank.start == "centroid" and classifiers.learnt:
        points = data.embed_points(embedder).vectors()
        means, known = (t.cpu() for t in centroids(points, data.relevance))
        classifiers.free.data[known] = means[known]
    ranker, classifiers = Ranker(config).to(embedder.device), classifiers.to(embedder.device)
    data.ranks.copy(ranker, classifiers)
    if data.ranks.size > 1:
        classifiers = SharedClassifiers(classifiers, data.ranks)
    return Networks(embedder, ranker, classifiers)
