"""A loss for the memory: train points so that their neighbours vote for their labels."""

from __future__ import annotations

import torch
from torch import Tensor

from mufin.data.relation import Relation
from mufin.encode.embedder import Embedder
from mufin.settings import Memory
from mufin.train.data import TrainingData

MAX_VOTERS = 1 << 16  # points that vote, per epoch
VOTE_FLOOR = 1e-4  # added to the votes, so that the loss of a label without votes is finite


class Votes:
    """The loss −log m_l for each point i and each of its labels l, with votes m as in prediction.

    m_l = Σ softmax_j(⟨x̂_i, x̂_j⟩ / τ) over other points j with y_jl = 1. The keys x̂_j are from the start of
    the epoch, without gradients. Points with a label excluded for i do not vote.
    """

    def __init__(
        self, relevance: Relation, exclude: Relation, settings: Memory, generator: torch.Generator
    ) -> None:
        self.relevance, self.exclude = relevance, exclude  # (N, L)
        self.settings, self.generator = settings, generator
        self.keys = torch.zeros(0)  # (M, D)
        self.key_row = torch.full((len(relevance),), -1, device=relevance.device)  # (N,), −1: no voter
        self.by_label = relevance.transposed()  # (L, M)

    def refresh(self, embedder: Embedder, data: TrainingData) -> None:
        """Draw and embed the voters of this epoch."""
        order = torch.randperm(len(self.key_row), generator=self.generator, device=self.key_row.device)
        chosen = order[:MAX_VOTERS].sort().values
        self.key_row.fill_(-1)
        self.key_row[chosen] = torch.arange(len(chosen), device=chosen.device)
        self.keys = data.embed_points(embedder, chosen.cpu().numpy()).vectors()
        self.by_label = self.relevance.take(chosen).transposed()

    def loss(self, points: Tensor, x: Tensor) -> Tensor:
        """Return the mean over points (B,), with vectors x (B, D), of the means over their labels."""
        logits = (x.float() / self.settings.temperature) @ self.keys.T  # (B, M), large: avoid copies
        # A finite value: if no point may vote, a softmax over −inf alone would be NaN.
        logits[self._masked(points)] = torch.finfo(logits.dtype).min
        probability = logits.float().softmax(dim=1)
        row, _, label = self.relevance.pairs_of(points)
        pair, _, key = self.by_label.pairs_of(label)
        # Sum in a fixed order, so that results on a GPU are deterministic.
        votes = torch.segment_reduce(
            probability[row[pair], key], "sum", lengths=self.by_label.sizes_of(label)
        )
        weight = 1 / self.relevance.sizes_of(points)[row]
        return -(torch.log(votes + VOTE_FLOOR) * weight).sum() / max(1, len(points))

    def _masked(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Return indices into (B, M) of votes to mask: the point itself, and points with excluded labels."""
        own = self.key_row[points]
        known = (own >= 0).nonzero()[:, 0]
        if not len(self.exclude.columns):
            return known, own[known]
        row, _, label = self.exclude.pairs_of(points)
        pair, _, key = self.by_label.pairs_of(label)
        return torch.cat([row[pair], known]), torch.cat([key, own[known]])
