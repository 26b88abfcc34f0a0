"""TrainingData: the features and relevance that all modules train on."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray
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
    held_out: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # datapoints for validation

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

    def hashes(self) -> dict[str, str]:
        """Return hashes of all that training reads of the catalogue, by what a user calls it."""
        parts = {
            "item texts": self.points.text, "item images": self.points.image,
            "label texts": self.labels.text, "label images": self.labels.image,
        }  # fmt: skip
        found = {name: _hash(p.rows.flat, p.rows.offsets, p.which, p.offsets) for name, p in parts.items()}
        pairs = (self.relevance, self.exclude)
        found["datapoints"] = _hash(self.groups.offsets, self.groups.members)
        found["labels of datapoints"] = _hash(*(a for m in pairs for a in (m.indptr, m.indices)))
        return found

    def encoded(self, embedder: Embedder) -> TrainingData:
        """Return a copy with all descriptors encoded now, for epochs in which the encoders are frozen."""
        labels = embedder.encoded(self.labels)
        points = labels if self.points is self.labels else embedder.encoded(self.points)
        return replace(self, points=points, labels=labels)

    @property
    def seen(self) -> Ints:
        """All datapoints except those held out."""
        return np.setdiff1d(np.arange(len(self.groups), dtype=np.int64), self.held_out)

    def take(self, points: Ints) -> TrainingData:
        """Select these datapoints; keep all labels."""
        return TrainingData(
            self.points, self.groups.take(points), self.labels, self.relevance[points], self.exclude[points]
        )


def _hash(*arrays: NDArray[Any]) -> str:
    digest = xxhash.xxh3_128()
    for array in arrays:
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
