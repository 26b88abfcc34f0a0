"""Judged: a ranking held against the truth, reduced to its hits; NumPy and SciPy only."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_matrix

from mufin.errors import UsageError

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

_BLOCK = 1 << 20  # predicted labels looked up at once: bounds the memory of `judge`


@dataclass(frozen=True)
class Judged:
    """A ranking held against the truth: its hits as coordinates (row, place, label), rows ascending."""

    rows: IntArray  # (H,) datapoint of each hit
    places: IntArray  # (H,) its place in the ranking, 0 = best; ascending within a row
    labels: IntArray  # (H,) the label itself
    returned: IntArray  # (n,) labels returned for each datapoint
    truth: csr_matrix  # (n, L)

    @property
    def n(self) -> int:
        """Number of datapoints."""
        return len(self.returned)

    @cached_property
    def relevant(self) -> IntArray:
        """Number of relevant labels of each datapoint, (n,)."""
        return np.diff(self.truth.indptr).astype(np.int64)

    def within(self, k: int) -> Judged:
        """The same ranking cut off after place k."""
        if k < 1:
            raise UsageError(f"k is {k}; it must be at least 1")
        top = self.places < k
        hits = self.rows[top], self.places[top], self.labels[top]
        return Judged(*hits, np.minimum(self.returned, k), self.truth)


def judge(predicted: npt.ArrayLike, truth: csr_matrix) -> Judged:
    """Find the hits of `predicted` (n, k), label rows best first, −1 after the last, in `truth` (n, L).

    >>> truth = csr_matrix([[1, 0, 1], [0, 1, 0]], dtype=bool)
    >>> judged = judge([[2, 1], [0, -1]], truth)  # row 0 hits at its first place, row 1 never
    >>> judged.rows.tolist(), judged.places.tolist(), judged.labels.tolist()
    ([0], [0], [2])
    """
    ranking = _checked(np.asarray(predicted), truth.shape)
    truth = canonical(truth)
    step = max(1, _BLOCK // ranking.shape[1])
    blocks = [slice(start, start + step) for start in range(0, len(ranking), step)]
    row, place = np.nonzero(np.concatenate([_lookup(ranking[block], truth[block]) for block in blocks]))
    returned = np.count_nonzero(ranking >= 0, axis=1).astype(np.int64)
    return Judged(row, place, ranking[row, place].astype(np.int64), returned, truth)


def canonical(relevance: csr_matrix) -> csr_matrix:
    """The matrix with sorted columns, no duplicates and no stored zeros; copied only if it must change."""
    relevance = csr_matrix(relevance, dtype=bool)
    if not relevance.has_canonical_format or not relevance.data.all():
        relevance = relevance.copy()
        relevance.sum_duplicates()
        relevance.eliminate_zeros()
    return relevance


def _checked(ranking: npt.NDArray[np.integer], shape: tuple[int, int]) -> npt.NDArray[np.integer]:
    """The ranking, or an error that says why it cannot be held against a truth of this shape."""
    n, labels = shape
    if ranking.ndim != 2 or not ranking.shape[1] or not np.issubdtype(ranking.dtype, np.integer):
        raise UsageError(f"expected predictions as integers (n, k), found {ranking.dtype} {ranking.shape}")
    if len(ranking) != n or 0 in shape:
        raise UsageError(
            f"{len(ranking)} predicted rows for a truth of shape {shape}; expected as many, not 0"
        )
    if ranking.min() < -1 or ranking.max() >= labels:
        raise UsageError(f"predicted labels span {ranking.min()}…{ranking.max()}; expected −1…{labels - 1}")
    if np.any((ranking[:, :-1] < 0) & (ranking[:, 1:] >= 0)):
        raise UsageError("a predicted row has a label after a −1; −1 may only close a row")
    return ranking


def _lookup(ranking: npt.NDArray[np.integer], truth: csr_matrix) -> npt.NDArray[np.bool_]:
    """Which labels of a block of the ranking are relevant, (b, k): SciPy's search inside each CSR row."""
    rows = np.repeat(np.arange(len(ranking)), ranking.shape[1])  # (b·k,)
    labels = ranking.ravel()
    found = np.asarray(truth[rows, np.maximum(labels, 0)], dtype=bool).ravel() & (labels >= 0)
    return found.reshape(ranking.shape)
