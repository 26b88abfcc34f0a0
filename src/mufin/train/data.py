"""TrainingData: what every module reads — features, relevance, and what must not be a negative."""

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
    """N datapoints and L labels: their features and the sparse relation between them."""

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
