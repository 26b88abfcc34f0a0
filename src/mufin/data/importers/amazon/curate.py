"""Which products become datapoints and which labels: the rules of MM-AmazonTitles, on row numbers alone.

The paper: a product needs a title or a picture, has at most 15 pictures, and its labels are the products in
its `also_buy` that exist. The rest is the way of the Extreme Classification repository, as settings.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mufin.errors import UsageError

PAIRS = 4 << 20  # pairs looked at a time


@dataclass(frozen=True)
class Curation:
    """The settings of a curation; the defaults are for MM-AmazonTitles-300K."""

    pictures: int = 15  # kept a product
    test: float = 0.3  # share of points; the repository's Amazon sets have 30 to 31 %
    min_labels: int = 1  # a point with fewer is left out
    min_points: int = 1  # a label with fewer training points is left out
    reciprocal: bool = True  # test pairs a → b with b → a in train go into the filter file
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.test < 1:
            raise UsageError(f"test share {self.test} is not in [0, 1)")
        if min(self.pictures, self.min_labels, self.min_points) < 1:
            raise UsageError("pictures, min_labels and min_points are 1 or more")


@dataclass
class Relation:
    """Pairs product → product as rows; a pair that is dropped becomes −1 in its place."""

    offsets: np.ndarray  # (n + 1,) int64
    columns: np.ndarray  # (pairs,) int32

    def blocks(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(owner, column) of some million pairs at a time; the columns are a view that may be changed."""
        row, last = 0, len(self.offsets) - 1
        while row < last:
            stop = int(np.searchsorted(self.offsets, self.offsets[row] + PAIRS, side="right")) - 1
            stop = min(max(stop, row + 1), last)
            counts = np.diff(self.offsets[row : stop + 1])
            owners = np.repeat(np.arange(row, stop, dtype=np.int32), counts)
            yield owners, self.columns[self.offsets[row] : self.offsets[stop]]
            row = stop

    def keep(self, owners: np.ndarray, columns: np.ndarray) -> None:
        """Drop the pairs whose owner or column is False."""
        for owner, column in self.blocks():
            column[~(owners[owner] & columns[column] & (column >= 0))] = -1

    def distinct(self) -> None:
        """Drop what an owner has a second time, and itself."""
        for owner, column in self.blocks():
            pairs = owner.astype(np.int64) * (len(self.offsets) - 1) + column
            order = np.argsort(pairs, kind="stable")
            again = np.flatnonzero(pairs[order][1:] == pairs[order][:-1]) + 1
            column[order[again]] = -1
            column[owner == column] = -1

    def degrees(self) -> np.ndarray:
        """How many labels each owner has, (n,)."""
        total = np.zeros(len(self.offsets) - 1, np.int64)
        for owner, column in self.blocks():
            total += np.bincount(owner[column >= 0], minlength=len(total))
        return total

    def popularity(self, among: np.ndarray) -> np.ndarray:
        """How many of the owners `among` have each label, (n,)."""
        total = np.zeros(len(self.offsets) - 1, np.int64)
        for owner, column in self.blocks():
            total += np.bincount(column[(column >= 0) & among[owner]], minlength=len(total))
        return total


@dataclass(frozen=True)
class Curated:
    """Rows of the points of each split, of the labels, and the pairs that are never counted."""

    train: np.ndarray
    test: np.ndarray
    labels: np.ndarray
    hidden: np.ndarray  # (h, 2): point, label
    reciprocal: int  # how many of the hidden pairs are not an item with itself


def curate(relation: Relation, usable: np.ndarray, settings: Curation) -> Curated:
    """Apply the rules; `relation` keeps the pairs that are left."""
    relation.distinct()
    relation.keep(usable, usable)
    in_test = np.random.default_rng(settings.seed).random(len(usable)) < settings.test
    points, labels = usable, usable
    while True:  # a label that goes may cost a point its last one, and the other way round
        enough = points & (relation.degrees() >= settings.min_labels)
        seen = relation.popularity(~in_test) >= settings.min_points
        if (enough == points).all() and (seen == labels).all():
            break
        points, labels = enough, seen
        relation.keep(points, labels)
    hidden = np.flatnonzero(points & labels)
    pairs = np.stack([hidden, hidden], axis=1)
    returned = _reciprocal(relation, in_test) if settings.reciprocal else np.zeros((0, 2), np.int64)
    return Curated(
        np.flatnonzero(points & ~in_test),
        np.flatnonzero(points & in_test),
        np.flatnonzero(labels),
        np.concatenate([pairs, returned]),
        len(returned),
    )


def _reciprocal(relation: Relation, in_test: np.ndarray) -> np.ndarray:
    """The test pairs a → b whose b → a is in train, (r, 2)."""
    n = len(in_test)
    ours = [
        owner[asked].astype(np.int64) * n + column[asked]
        for owner, column in relation.blocks()
        for asked in [(column >= 0) & in_test[owner] & ~in_test[column]]
    ]
    asked_keys = np.sort(np.concatenate([np.zeros(0, np.int64), *ours]))
    del ours
    found = np.zeros(len(asked_keys), bool)
    for owner, column in relation.blocks():
        back = (column >= 0) & ~in_test[owner] & in_test[column]
        reverse = np.sort(column[back].astype(np.int64) * n + owner[back])
        places = np.minimum(np.searchsorted(asked_keys, reverse), max(len(asked_keys) - 1, 0))
        if len(asked_keys):
            found[places[asked_keys[places] == reverse]] = True
    hits = asked_keys[found]
    return np.stack([hits // n, hits % n], axis=1)
