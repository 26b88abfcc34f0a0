"""The paper's rules for which products to keep, and ids as 64-bit keys."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from mufin.errors import UsageError

MAX_PACKED_LENGTH = 10  # characters of 6 bits
ALPHABET = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_"
HASH_TAG = np.uint64(15 << 60)  # in the place of the length: no packed id is that long
NO_CODE = 255
CODES = np.full(256, NO_CODE, np.uint8)  # byte → place in ALPHABET
CODES[np.frombuffer(ALPHABET, np.uint8)] = np.arange(64)


def id_keys(ids: pa.Array) -> np.ndarray:
    """Return the key of each id (no nulls), (n,) uint64.

    >>> id_keys(pa.array(["B000000001", "B000000001", "b", "no ASIN at all"])).shape
    (4,)
    """
    ids = ids.cast(pa.string()) if ids.type != pa.string() else ids
    if not len(ids):
        return np.zeros(0, np.uint64)
    _, offset_buffer, data_buffer = ids.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32)[ids.offset : ids.offset + len(ids) + 1].astype(np.int64)
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.zeros(0, np.uint8)
    codes = np.append(CODES[data], np.uint8(0))
    starts, lengths = offsets[:-1], np.diff(offsets)
    packed = lengths.astype(np.uint64) << np.uint64(60)
    unpackable = lengths > MAX_PACKED_LENGTH
    for place in range(MAX_PACKED_LENGTH):
        here = np.where(place < lengths, codes[np.minimum(starts + place, len(codes) - 1)], 0)
        unpackable |= here == NO_CODE
        packed |= here.astype(np.uint64) << np.uint64(6 * place)
    for row in np.flatnonzero(unpackable):
        packed[row] = _hash(ids[int(row)].as_py())
    return packed


class KeyIndex:
    """Look up the first row of a key."""

    def __init__(self, all_keys: np.ndarray) -> None:
        self.order = np.argsort(all_keys, kind="stable").astype(np.int32)
        self.sorted = all_keys[self.order]

    def rows(self, wanted: np.ndarray) -> np.ndarray:
        """Return the first row of each key, (n,) int32; −1 for an unknown key."""
        # Sorted lookups move through the sorted keys in one direction, ten times faster than random ones.
        order = np.argsort(wanted, kind="stable")
        queries = wanted[order]
        places = np.minimum(np.searchsorted(self.sorted, queries), max(len(self.sorted) - 1, 0))
        found = np.full(len(wanted), -1, np.int32)
        if len(self.sorted):
            same = self.sorted[places] == queries
            found[order[same]] = self.order[places[same]]
        return found


def _hash(text: str) -> np.uint64:
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return np.uint64(int.from_bytes(digest, "little") >> 4) | HASH_TAG


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
