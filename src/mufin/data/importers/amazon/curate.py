"""Choose datapoints and labels by the rules of MM-AmazonTitles; works on row numbers alone.

The paper: a product needs a title or an image, keeps at most 15 images, and its labels are the existing
products in its `also_buy`. The other rules follow the Extreme Classification repository and are settings.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mufin.errors import UsageError

PAIRS_PER_BLOCK = 4 << 20


@dataclass(frozen=True)
class Curation:
    """The rules; the defaults are those of MM-AmazonTitles-300K."""

    pictures: int = 15  # images kept per product
    test: float = 0.3  # share of the points; 30 to 31 % in the repository's Amazon sets
    min_labels: int = 1  # points with fewer are dropped
    min_points: int = 1  # labels with fewer training points are dropped
    reciprocal: bool = True  # put test pairs a → b with b → a in train into the filter file
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.test < 1:
            raise UsageError(f"test share {self.test}: expected a number in [0, 1)")
        if min(self.pictures, self.min_labels, self.min_points) < 1:
            raise UsageError("pictures, min_labels and min_points must be at least 1")


@dataclass
class Relation:
    """Pairs (owner, label) of product rows, grouped by owner; a dropped pair has label −1."""

    offsets: np.ndarray  # (n + 1,) int64
    labels: np.ndarray  # (pairs,) int32

    def blocks(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield (owners, labels) of a few million pairs at a time; labels are a view and may be changed."""
        row, last = 0, len(self.offsets) - 1
        while row < last:
            stop = int(np.searchsorted(self.offsets, self.offsets[row] + PAIRS_PER_BLOCK, side="right")) - 1
            stop = min(max(stop, row + 1), last)
            counts = np.diff(self.offsets[row : stop + 1])
            owners = np.repeat(np.arange(row, stop, dtype=np.int32), counts)
            yield owners, self.labels[self.offsets[row] : self.offsets[stop]]
            row = stop

    def keep(self, is_point: np.ndarray, is_label: np.ndarray) -> None:
        """Drop the pairs whose owner is not a point or whose label is not a label."""
        for owner, label in self.blocks():
            label[~(is_point[owner] & is_label[label] & (label >= 0))] = -1

    def drop_duplicates(self) -> None:
        """Drop repeated pairs, and pairs of a product with itself."""
        for owner, label in self.blocks():
            pairs = owner.astype(np.int64) * (len(self.offsets) - 1) + label
            order = np.argsort(pairs, kind="stable")
            repeated = np.flatnonzero(pairs[order][1:] == pairs[order][:-1]) + 1
            label[order[repeated]] = -1
            label[owner == label] = -1

    def labels_per_point(self) -> np.ndarray:
        """Count the labels of each product, (n,)."""
        total = np.zeros(len(self.offsets) - 1, np.int64)
        for owner, label in self.blocks():
            total += np.bincount(owner[label >= 0], minlength=len(total))
        return total

    def points_per_label(self, among: np.ndarray) -> np.ndarray:
        """Count the owners in the mask `among` that have each label, (n,)."""
        total = np.zeros(len(self.offsets) - 1, np.int64)
        for owner, label in self.blocks():
            total += np.bincount(label[(label >= 0) & among[owner]], minlength=len(total))
        return total


@dataclass(frozen=True)
class Curated:
    """The product rows of each split and of the labels, and the filter pairs."""

    train: np.ndarray
    test: np.ndarray
    labels: np.ndarray
    filter_pairs: np.ndarray  # (f, 2): point, label; each product with itself, then reciprocal pairs
    reciprocal: int  # the number of reciprocal pairs


def curate(relation: Relation, usable: np.ndarray, settings: Curation) -> Curated:
    """Apply the rules; drops pairs of `relation`."""
    relation.drop_duplicates()
    relation.keep(usable, usable)
    in_test = np.random.default_rng(settings.seed).random(len(usable)) < settings.test
    points, labels = usable, usable
    while True:  # dropping a label may leave a point without labels, and the other way round
        new_points = points & (relation.labels_per_point() >= settings.min_labels)
        new_labels = relation.points_per_label(~in_test) >= settings.min_points
        if (new_points == points).all() and (new_labels == labels).all():
            break
        points, labels = new_points, new_labels
        relation.keep(points, labels)
    both = np.flatnonzero(points & labels)
    with_itself = np.stack([both, both], axis=1)
    reciprocal = _reciprocal_pairs(relation, in_test) if settings.reciprocal else np.zeros((0, 2), np.int64)
    return Curated(
        np.flatnonzero(points & ~in_test),
        np.flatnonzero(points & in_test),
        np.flatnonzero(labels),
        np.concatenate([with_itself, reciprocal]),
        len(reciprocal),
    )


def _reciprocal_pairs(relation: Relation, in_test: np.ndarray) -> np.ndarray:
    """Return the test pairs a → b with b → a in train, (r, 2)."""
    n = len(in_test)
    candidates = [
        owner[possible].astype(np.int64) * n + label[possible]
        for owner, label in relation.blocks()
        for possible in [(label >= 0) & in_test[owner] & ~in_test[label]]
    ]
    keys = np.sort(np.concatenate([np.zeros(0, np.int64), *candidates]))
    del candidates
    found = np.zeros(len(keys), bool)
    for owner, label in relation.blocks():
        possible = (label >= 0) & ~in_test[owner] & in_test[label]
        reverse = np.sort(label[possible].astype(np.int64) * n + owner[possible])
        places = np.minimum(np.searchsorted(keys, reverse), max(len(keys) - 1, 0))
        if len(keys):
            found[places[keys[places] == reverse]] = True
    hits = keys[found]
    return np.stack([hits // n, hits % n], axis=1)
