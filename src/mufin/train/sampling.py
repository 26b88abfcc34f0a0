"""Which positives and negatives a batch sees."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from torch import Tensor

from mufin.ragged import Ints, ranges
from mufin.retrieve.shortlist import Shortlist

Bools = NDArray[np.bool_]


def draw_per_row(relation: csr_matrix, rows: Ints, n: int, rng: np.random.Generator, keep: Bools | None = None
                 ) -> tuple[Ints, Ints]:  # fmt: skip
    """At most n random columns of each row: the row's place in `rows` and the column, pair by pair.

    `keep` (nnz of these rows) marks which of their columns may be drawn.
    """
    place, columns = pairs_of(relation, rows)
    if keep is not None:
        place, columns = place[keep], columns[keep]
    order = np.lexsort((rng.random(len(place)), place))  # by row, at random within it
    place, columns = place[order], columns[order]
    rank = np.arange(len(place)) - np.searchsorted(place, place)
    return place[rank < n], columns[rank < n]


def pairs_of(relation: csr_matrix, rows: Ints) -> tuple[Ints, Ints]:
    """All pairs of these rows: the row's place in `rows`, and the column."""
    starts = relation.indptr[rows].astype(np.int64)
    lengths = relation.indptr[rows + 1] - starts
    columns = relation.indices[ranges(starts, lengths)].astype(np.int64)
    return np.repeat(np.arange(len(rows), dtype=np.int64), lengths), columns


def is_hard(z: Tensor, x: Tensor, relation: csr_matrix, labels: Ints, at_most: float) -> Bools:
    """Which positives of these labels are hard: ⟨ẑ_l, x̂_i⟩ ≤ at_most, by embeddings z (L, D) and x (N, D)."""
    place, points = pairs_of(relation, labels)
    similarity = (z[torch.from_numpy(labels[place])] * x[torch.from_numpy(points)]).sum(-1)
    return np.asarray((similarity <= at_most).cpu().numpy())


class ShortlistNegatives:
    """T_i: at most n random labels of R_i that are neither relevant to i nor excluded."""

    def __init__(
        self, shortlist: Shortlist, relevance: csr_matrix, exclude: csr_matrix, guard: float | None = None
    ) -> None:
        self.labels: Ints = shortlist.labels.cpu().numpy()  # (N, k), −1 where R_i is short
        n, k = self.labels.shape
        keys = np.repeat(np.arange(n), k) * np.int64(relevance.shape[1]) + self.labels.ravel()
        self.eligible: Bools = (self.labels >= 0) & ~np.isin(
            keys, np.concatenate([_keys(relevance), _keys(exclude)])
        ).reshape(n, k)
        if guard is not None:  # so near that it is most likely an unlabelled positive
            self.eligible &= shortlist.similarity.cpu().numpy() < guard

    def draw(self, points: Ints, n: int, rng: np.random.Generator) -> Ints:
        """(B, n) labels; −1 where there are fewer."""
        labels, eligible = self.labels[points], self.eligible[points]
        order = np.where(eligible, rng.random(labels.shape), 2.0).argsort(axis=1)[:, :n]
        drawn = np.take_along_axis(labels, order, axis=1)
        return np.where(np.take_along_axis(eligible, order, axis=1), drawn, -1)


def _keys(relation: csr_matrix) -> Ints:
    """Each pair (i, l) as the number i · L + l."""
    rows = np.repeat(np.arange(relation.shape[0], dtype=np.int64), np.diff(relation.indptr))
    return rows * np.int64(relation.shape[1]) + relation.indices


def shared_labels(n_labels: int, wanted: Ints, sampled: int, rng: np.random.Generator) -> Ints:
    """The wanted labels and `sampled` more at random, sorted and unique; all if that many are asked for."""
    if sampled >= n_labels:
        return np.arange(n_labels, dtype=np.int64)
    return np.unique(np.concatenate([wanted[wanted >= 0], rng.integers(0, n_labels, sampled)]))
