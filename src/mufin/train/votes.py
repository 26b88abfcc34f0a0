"""The memory, trained: the labels of a point should be those that its neighbours vote for."""

from __future__ import annotations

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from mufin.config import Memory
from mufin.encode.embedder import Embedder
from mufin.ragged import Ints
from mufin.train.data import TrainingData
from mufin.train.sampling import pairs_of

MOST = 1 << 16  # points that may vote in an epoch
FLOOR = 1e-4  # a share of votes this small counts as none: the loss of a hopeless label stays finite


class Votes:
    """−log m_l of each point i and each label l of it, with the votes m that prediction will count.

    m_l = Σ over other points j with y_jl = 1 of softmax_j(⟨x̂_i, x̂_j⟩ / τ). The keys x̂_j are those of the
    beginning of the epoch, without gradients. Who has a label that i must not see does not vote.
    """

    def __init__(self, data: TrainingData, settings: Memory, rng: np.random.Generator) -> None:
        self.data, self.settings, self.rng = data, settings, rng
        self.place = np.full(len(data.groups), -1)  # of each point among the keys
        self.keys = torch.zeros(0)
        self.by_label = self.data.by_label

    def refresh(self, embedder: Embedder, data: TrainingData) -> None:
        """Embed the voters of this epoch anew."""
        n = len(data.groups)
        chosen = np.sort(self.rng.permutation(n)[:MOST])
        self.place[:] = -1
        self.place[chosen] = np.arange(len(chosen))
        self.keys = embedder.embed(data.points, data.groups.take(chosen)).vectors()
        self.by_label = csr_matrix(self.data.relevance[chosen].T)  # (L, M)

    def loss(self, points: Ints, x: Tensor) -> Tensor:
        """A mean over points (B,) with vectors x (B, D), of means over their labels."""
        logits = (x.float() / self.settings.temperature) @ self.keys.T  # (B, M), too large to copy often
        # a finite floor: over −inf alone, where nobody may vote, softmax would be NaN
        logits[self._silent(points)] = torch.finfo(logits.dtype).min
        chance = logits.float().softmax(dim=1)
        row, label = pairs_of(self.data.relevance, points)
        pair, key = pairs_of(self.by_label, label)
        at = torch.from_numpy(np.stack([row[pair], key, pair])).to(x.device)
        votes = torch.zeros(len(label), device=x.device).index_add(0, at[2], chance[at[0], at[1]])
        weight = torch.from_numpy(1 / np.bincount(row, minlength=len(points))[row]).to(x)
        return -(torch.log(votes + FLOOR) * weight).sum() / len(points)

    def _silent(self, points: Ints) -> tuple[Tensor, Tensor]:
        """Rows of B and their silent keys, columns of M: a point itself, and who has what it must not see."""
        hidden = self.data.exclude[points].astype(np.float32) @ self.by_label
        known = np.flatnonzero(self.place[points] >= 0)
        rows, columns = hidden.nonzero()
        pairs = (rows, known), (columns, self.place[points[known]])
        row, column = (torch.from_numpy(np.concatenate(both).astype(np.int64)) for both in pairs)
        return row.to(self.keys.device), column.to(self.keys.device)
