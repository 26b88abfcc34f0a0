"""The memory, trained: the labels of a point should be those that its neighbours vote for."""

from __future__ import annotations

import torch
from torch import Tensor

from mufin.data.relation import Relation
from mufin.encode.embedder import Embedder
from mufin.settings import Memory
from mufin.train.data import TrainingData

MOST = 1 << 16  # points that may vote in an epoch
FLOOR = 1e-4  # a share of votes this small counts as none: the loss of a hopeless label stays finite


class Votes:
    """−log m_l of each point i and each label l of it, with the votes m that prediction will count.

    m_l = Σ over other points j with y_jl = 1 of softmax_j(⟨x̂_i, x̂_j⟩ / τ). The keys x̂_j are those of the
    beginning of the epoch, without gradients. Who has a label that i must not see does not vote.
    """

    def __init__(
        self, relevance: Relation, exclude: Relation, settings: Memory, generator: torch.Generator
    ) -> None:
        self.relevance, self.exclude = relevance, exclude  # (N, L)
        self.settings, self.generator = settings, generator
        self.keys = torch.zeros(0)  # (M, D)
        self.place = torch.full((len(relevance),), -1, device=relevance.device)  # of points among the keys
        self.by_label = relevance.transposed()  # (L, M)

    def refresh(self, embedder: Embedder, data: TrainingData) -> None:
        """Embed the voters of this epoch anew."""
        everyone = torch.randperm(len(self.place), generator=self.generator, device=self.place.device)
        chosen = everyone[:MOST].sort().values
        self.place.fill_(-1)
        self.place[chosen] = torch.arange(len(chosen), device=chosen.device)
        self.keys = embedder.embed(data.points, data.groups.take(chosen.cpu().numpy())).vectors()
        self.by_label = self.relevance.take(chosen).transposed()

    def loss(self, points: Tensor, x: Tensor) -> Tensor:
        """A mean over points (B,) with vectors x (B, D), of means over their labels."""
        logits = (x.float() / self.settings.temperature) @ self.keys.T  # (B, M), too large to copy often
        # a finite floor: over −inf alone, where nobody may vote, softmax would be NaN
        logits[self._silent(points)] = torch.finfo(logits.dtype).min
        chance = logits.float().softmax(dim=1)
        row, _, label = self.relevance.pairs_of(points)
        pair, _, key = self.by_label.pairs_of(label)
        # summed in their order, so that a GPU gives the same numbers each time
        votes = torch.segment_reduce(chance[row[pair], key], "sum", lengths=self.by_label.sizes_of(label))
        weight = 1 / self.relevance.sizes_of(points)[row]
        return -(torch.log(votes + FLOOR) * weight).sum() / len(points)

    def _silent(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Rows of B and their silent keys, columns of M: a point itself, and who has what it must not see."""
        row, _, label = self.exclude.pairs_of(points)
        pair, _, key = self.by_label.pairs_of(label)
        own = self.place[points]
        known = (own >= 0).nonzero()[:, 0]
        return torch.cat([row[pair], known]), torch.cat([key, own[known]])
