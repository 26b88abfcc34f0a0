"""Fit the compatibility of datapoints and labels, and its mixture on labels unseen in training."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from mufin.data.ragged import Ints
from mufin.encode.embedder import Embedder
from mufin.encode.features import Features, Groups
from mufin.model.mufin import Mufin
from mufin.model.untrained import parts
from mufin.signals.compatibility import START_WEIGHTS, Compatibility, Side, View
from mufin.train.data import TrainingData

PCA_SAMPLE = 20_000  # items that principal components are computed from
CHUNK_SIZE = 4096  # groups


@dataclass(frozen=True)
class Coordinates:
    """Principal components of all datapoints, their items, and all labels with a datapoint."""

    points: Side
    labels: Side
    groups: Groups  # the N datapoints
    x: Tensor  # (N, k)
    y: Tensor  # (I, k) single items
    z: Tensor  # (L, k')
    blocks: list[slice]  # columns of each encoder

    @classmethod
    def of(cls, embedder: Embedder, data: TrainingData) -> Coordinates:
        """Compute the coordinates of everything in `data`."""
        members = np.unique(data.groups.members)
        points = _fit_side(embedder, data.points, members)
        labels = points if data.labels is data.points else _fit_side(embedder, data.labels, data.used_labels)
        x = _project(embedder, points, data.points, data.groups)
        y = _scatter_rows(_project(embedder, points, data.points, Groups.singles(members)), members)
        used = data.used_labels
        z = _project(embedder, labels, data.labels, Groups.singles(used))
        z = _scatter_rows(z, used, data.n_labels)
        return cls(points, labels, data.groups, x, y, z, embedder.blocks)

    def compatibility(self, which: Ints, relevance: csr_matrix) -> Compatibility:
        """Fit to all pairs of these datapoints (n,) and their labels (n, L)."""
        groups = self.groups.take(which)
        sets = self._views(self.x[torch.from_numpy(which)], relevance)
        if len(groups.members) == len(groups):
            return Compatibility(sets, (), torch.tensor(START_WEIGHTS))
        ones = np.ones(len(groups.members))
        membership = csr_matrix((ones, groups.members, groups.offsets), shape=(len(groups), len(self.y)))
        members = self._views(self.y, csr_matrix(membership.T @ relevance))
        return Compatibility(sets, members, torch.tensor(START_WEIGHTS))

    def _views(self, x: Tensor, relevance: csr_matrix) -> tuple[View, ...]:
        """Fit a view with all encoders, then one per encoder that has coordinates on both sides."""
        single = [tuple(side.columns(block) for side in (self.points, self.labels)) for block in self.blocks]
        single = [both for both in single if all(bool(columns.any()) for columns in both)]
        together = tuple(torch.ones(len(side.shift), dtype=torch.bool) for side in (self.points, self.labels))
        return tuple(
            View.fit(self.points.only(a), self.labels.only(b), x[:, a], self.z[:, b], relevance)
            for a, b in [together, *(single if len(single) > 1 else [])]
        )


def unseen_mixture(model: Mufin, seen: TrainingData, held: TrainingData) -> Tensor | None:
    """Learn the mixture on held-out points with unseen labels, each against all unseen labels."""
    unseen = np.setdiff1d(held.used_labels, seen.used_labels)
    points = np.flatnonzero(held.relevance[:, unseen].getnnz(1)).astype(np.int64)
    if model.compatibility is None or not len(points):
        return None
    found = parts(model, held.points, held.groups.take(points), held.labels, Groups.singles(unseen))
    relevant, hidden = (
        torch.from_numpy(each[points][:, unseen].toarray().astype(bool)).to(found.device)
        for each in (held.relevance, held.exclude)
    )
    return model.compatibility.learnt(found, relevant, ~(relevant | hidden)).mixture


def _fit_side(embedder: Embedder, features: Features, rows: Ints) -> Side:
    """Compute principal components of the content of these items."""
    chosen = rows[:: -(-len(rows) // PCA_SAMPLE)] if len(rows) else rows
    return Side.principal(embedder.content(features, Groups.singles(chosen)).cpu(), embedder.blocks)


def _project(embedder: Embedder, side: Side, features: Features, groups: Groups) -> Tensor:
    """Return the coordinates (n, k) of all groups."""
    found = [side.basis.new_zeros(0, len(side.shift))]
    for start in range(0, len(groups), CHUNK_SIZE):
        chunk = np.arange(start, min(start + CHUNK_SIZE, len(groups)), dtype=np.int64)
        found.append(side(embedder.content(features, groups.take(chunk))))
    return torch.cat(found)


def _scatter_rows(rows: Tensor, at: Ints, n: int | None = None) -> Tensor:
    """Place rows (m, k) at indices (m,) of n zero rows; n defaults to the largest index + 1."""
    size = n if n is not None else int(at.max(initial=-1)) + 1
    return rows.new_zeros(size, rows.shape[1]).index_put((torch.from_numpy(at),), rows)
