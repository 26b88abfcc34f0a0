"""The affinity of datapoints and labels, and its mixture learnt on labels that training has not seen."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from mufin.encode.embedder import Embedder
from mufin.encode.features import Features, Groups
from mufin.model import Mufin
from mufin.ragged import Ints
from mufin.rank.affinity import Affinity, Side
from mufin.train.data import TrainingData, membership
from mufin.zeroshot import parts

SAMPLE = 20_000  # items that principal components come from
CHUNK = 4096


@dataclass(frozen=True)
class Coordinates:
    """All datapoints and all labels with a datapoint, by the principal components of their evidence."""

    points: Side
    labels: Side
    x: Tensor  # (N, k)
    z: Tensor  # (L, k')

    @classmethod
    def of(cls, embedder: Embedder, data: TrainingData) -> Coordinates:
        members = np.unique(data.groups.members)
        points = _side(embedder, data.points, members)
        labels = points if data.labels is data.points else _side(embedder, data.labels, data.used_labels)
        x = _coordinates(embedder, points, data.points, data.groups)
        z = x.new_zeros(data.n_labels, len(labels.shift))
        used = data.used_labels
        z[torch.from_numpy(used)] = _coordinates(embedder, labels, data.labels, Groups.singles(used))
        return cls(points, labels, x, z)

    def affinity(self, which: Ints, relevance: csr_matrix) -> Affinity:
        """From all pairs of these datapoints (n,) and their labels (n, L)."""
        return Affinity.fit(self.points, self.labels, self.x[torch.from_numpy(which)], self.z, relevance)


def unseen_mixture(model: Mufin, seen: TrainingData, held: TrainingData) -> Tensor | None:
    """The mixture learnt on held-out points whose label no other point has, each against all such labels."""
    fresh = np.setdiff1d(held.used_labels, seen.used_labels)
    asked = np.flatnonzero(held.relevance[:, fresh].getnnz(1)).astype(np.int64)
    if model.affinity is None or not len(asked):
        return None
    found = parts(model, held.points, held.groups.take(asked), held.labels, Groups.singles(fresh))
    relevant = membership(held.relevance, asked, fresh).to(found.device)
    hidden = membership(held.exclude, asked, fresh).to(found.device)
    return model.affinity.learnt(found, relevant, ~(relevant | hidden)).mixture


def _side(embedder: Embedder, features: Features, rows: Ints) -> Side:
    """Principal components of these items' evidence."""
    chosen = rows[:: -(-len(rows) // SAMPLE)] if len(rows) else rows
    return Side.principal(embedder.evidence(features, Groups.singles(chosen)).cpu(), embedder.widths)


def _coordinates(embedder: Embedder, side: Side, features: Features, groups: Groups) -> Tensor:
    found = [side.basis.new_zeros(0, len(side.shift))]
    for start in range(0, len(groups), CHUNK):
        chunk = np.arange(start, min(start + CHUNK, len(groups)), dtype=np.int64)
        found.append(side(embedder.evidence(features, groups.take(chunk))))
    return torch.cat(found)
