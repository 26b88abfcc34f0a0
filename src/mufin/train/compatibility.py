"""The compatibility of datapoints and labels, and its mixture learnt on labels that training has not seen."""

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
from mufin.signals.compatibility import START, Compatibility, Side, View
from mufin.train.data import TrainingData

SAMPLE = 20_000  # items that principal components come from
CHUNK = 4096


@dataclass(frozen=True)
class Coordinates:
    """All datapoints, their items and all labels with a datapoint, by principal components."""

    points: Side
    labels: Side
    groups: Groups  # the N datapoints
    x: Tensor  # (N, k)
    y: Tensor  # (I, k) items by themselves
    z: Tensor  # (L, k')
    blocks: list[slice]  # what each encoder says

    @classmethod
    def of(cls, embedder: Embedder, data: TrainingData) -> Coordinates:
        members = np.unique(data.groups.members)
        points = _side(embedder, data.points, members)
        labels = points if data.labels is data.points else _side(embedder, data.labels, data.used_labels)
        x = _coordinates(embedder, points, data.points, data.groups)
        y = _spread(_coordinates(embedder, points, data.points, Groups.singles(members)), members)
        used = data.used_labels
        z = _coordinates(embedder, labels, data.labels, Groups.singles(used))
        z = _spread(z, used, data.n_labels)
        return cls(points, labels, data.groups, x, y, z, embedder.blocks)

    def compatibility(self, which: Ints, relevance: csr_matrix) -> Compatibility:
        """From all pairs of these datapoints (n,) and their labels (n, L)."""
        groups = self.groups.take(which)
        sets = self._views(self.x[torch.from_numpy(which)], relevance)
        if len(groups.members) == len(groups):
            return Compatibility(sets, (), torch.tensor(START))
        held = np.ones(len(groups.members))
        of = csr_matrix((held, groups.members, groups.offsets), shape=(len(groups), len(self.y)))
        return Compatibility(sets, self._views(self.y, csr_matrix(of.T @ relevance)), torch.tensor(START))

    def _views(self, x: Tensor, relevance: csr_matrix) -> tuple[View, ...]:
        """By all encoders together, then by each alone that says something of both sides."""
        chosen = [tuple(side.columns(block) for side in (self.points, self.labels)) for block in self.blocks]
        chosen = [both for both in chosen if all(bool(columns.any()) for columns in both)]
        everything = tuple(
            torch.ones(len(side.shift), dtype=torch.bool) for side in (self.points, self.labels)
        )
        return tuple(
            View.fit(self.points.only(a), self.labels.only(b), x[:, a], self.z[:, b], relevance)
            for a, b in [everything, *(chosen if len(chosen) > 1 else [])]
        )


def unseen_mixture(model: Mufin, seen: TrainingData, held: TrainingData) -> Tensor | None:
    """The mixture learnt on held-out points whose label no other point has, each against all such labels."""
    fresh = np.setdiff1d(held.used_labels, seen.used_labels)
    asked = np.flatnonzero(held.relevance[:, fresh].getnnz(1)).astype(np.int64)
    if model.compatibility is None or not len(asked):
        return None
    found = parts(model, held.points, held.groups.take(asked), held.labels, Groups.singles(fresh))
    relevant, hidden = (
        torch.from_numpy(each[asked][:, fresh].toarray().astype(bool)).to(found.device)
        for each in (held.relevance, held.exclude)
    )
    return model.compatibility.learnt(found, relevant, ~(relevant | hidden)).mixture


def _side(embedder: Embedder, features: Features, rows: Ints) -> Side:
    """Principal components of these items' evidence."""
    chosen = rows[:: -(-len(rows) // SAMPLE)] if len(rows) else rows
    return Side.principal(embedder.evidence(features, Groups.singles(chosen)).cpu(), embedder.blocks)


def _coordinates(embedder: Embedder, side: Side, features: Features, groups: Groups) -> Tensor:
    found = [side.basis.new_zeros(0, len(side.shift))]
    for start in range(0, len(groups), CHUNK):
        chunk = np.arange(start, min(start + CHUNK, len(groups)), dtype=np.int64)
        found.append(side(embedder.evidence(features, groups.take(chunk))))
    return torch.cat(found)


def _spread(rows: Tensor, at: Ints, n: int | None = None) -> Tensor:
    """Rows (m, k) at their numbers (m,) among n, or as many as there must be; zero elsewhere."""
    size = n if n is not None else int(at.max(initial=-1)) + 1
    return rows.new_zeros(size, rows.shape[1]).index_put((torch.from_numpy(at),), rows)
