"""TrainingData: the features and relevance that all modules train on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.sparse import csr_matrix

from mufin.data.ragged import Ints
from mufin.encode.embedder import Embedder
from mufin.encode.features import Features, Groups


@dataclass(frozen=True)
class TrainingData:
    """Features of N datapoints and L labels, and their sparse relevance."""

    points: Features
    groups: Groups  # (N)
    labels: Features  # (L)
    relevance: csr_matrix  # (N, L) bool
    exclude: csr_matrix  # (N, L) bool: neither positive nor negative

    @cached_property
    def used_labels(self) -> Ints:
        """Labels with at least one datapoint."""
        return np.flatnonzero(np.bincount(self.relevance.indices, minlength=self.n_labels)).astype(np.int64)

    @property
    def used_points(self) -> Ints:
        """Datapoints with at least one label."""
        return np.flatnonzero(np.diff(self.relevance.indptr)).astype(np.int64)

    @property
    def n_labels(self) -> int:
        return int(self.relevance.shape[1])

    @property
    def label_groups(self) -> Groups:
        return Groups.singles(np.arange(self.n_labels))

    def encoded(self, embedder: Embedder) -> TrainingData:
        """Return a copy with all descriptors encoded now, for epochs in which the encoders are frozen."""
        labels = embedder.encoded(self.labels)
        points = labels if self.points is self.labels else embedder.encoded(self.points)
        return replace(self, points=points, labels=labels)

    def others(self, points: Ints) -> Ints:
        """Return all datapoints except these."""
        return np.setdiff1d(np.arange(len(self.groups), dtype=np.int64), points)

    def take(self, points: Ints) -> TrainingData:
        """Select these datapoints; keep all labels."""
        return TrainingData(
            self.points, self.groups.take(points), self.labels, self.relevance[points], self.exclude[points]
        )
