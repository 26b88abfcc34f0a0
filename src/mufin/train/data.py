"""TrainingData: what every module reads — features, relevance both ways, and what must not be a negative."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from mufin.encode.embedder import Embedder
from mufin.encode.features import Features, Groups
from mufin.ragged import Ints, ranges


@dataclass(frozen=True)
class TrainingData:
    """N datapoints and L labels: their features and the sparse relation between them."""

    points: Features
    groups: Groups  # (N)
    labels: Features  # (L)
    relevance: csr_matrix  # (N, L) bool
    exclude: csr_matrix  # (N, L) bool: neither positive nor negative

    @cached_property
    def by_label(self) -> csr_matrix:
        """The relevance by label, (L, N)."""
        return csr_matrix(self.relevance.T)

    @cached_property
    def used_labels(self) -> Ints:
        """Labels with at least one datapoint."""
        return np.flatnonzero(np.diff(self.by_label.indptr)).astype(np.int64)

    @property
    def n_labels(self) -> int:
        return int(self.relevance.shape[1])

    @property
    def label_groups(self) -> Groups:
        return Groups.singles(np.arange(self.n_labels))

    def encoded(self, embedder: Embedder) -> TrainingData:
        """With every descriptor after the encoders as they are now: for epochs that do not train them."""
        labels = embedder.encoded(self.labels)
        points = labels if self.points is self.labels else embedder.encoded(self.points)
        return replace(self, points=points, labels=labels)

    def others(self, points: Ints) -> Ints:
        """All datapoints but these."""
        return np.setdiff1d(np.arange(len(self.groups), dtype=np.int64), points)

    def take(self, points: Ints) -> TrainingData:
        """Only these datapoints; all labels stay."""
        return TrainingData(
            self.points, self.groups.take(points), self.labels, self.relevance[points], self.exclude[points]
        )


def membership(relation: csr_matrix, rows: Ints, columns: Ints) -> Tensor:
    """Which of `columns` (sorted, unique) stand in these rows, (r, c) bool; costs what the rows hold."""
    starts = relation.indptr[rows].astype(np.int64)
    lengths = relation.indptr[rows + 1] - starts
    found = relation.indices[ranges(starts, lengths)]
    at = np.minimum(np.searchsorted(columns, found), len(columns) - 1)
    hit = columns[at] == found
    dense = np.zeros((len(rows), len(columns)), bool)
    dense[np.repeat(np.arange(len(rows)), lengths)[hit], at[hit]] = True
    return torch.from_numpy(dense)
