"""RelevantHits: the relevant labels of a ranking, from which all metrics are computed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_matrix

from mufin.errors import UsageError

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

_LOOKUP_CELLS = 1 << 20  # predictions looked up at once; bounds memory


@dataclass(frozen=True)
class RelevantHits:
    """The relevant labels among the predictions, sorted by datapoint, then by rank."""

    rows: IntArray  # (H,) datapoint of each hit
    ranks: IntArray  # (H,) rank of each hit, 0 = best
    labels: IntArray  # (H,) label of each hit
    predicted: IntArray  # (n,) number of labels predicted for each datapoint
    truth: csr_matrix  # (n, L)

    @property
    def n(self) -> int:
        """Number of datapoints."""
        return len(self.predicted)

    @cached_property
    def relevant(self) -> IntArray:
        """Number of relevant labels of each datapoint, (n,)."""
        return np.diff(self.truth.indptr).astype(np.int64)

    def top(self, k: int) -> RelevantHits:
        """The hits among the first k predictions."""
        if k < 1:
            raise UsageError(f"k is {k}; it must be at least 1")
        kept = self.ranks < k
        hits = self.rows[kept], self.ranks[kept], self.labels[kept]
        return RelevantHits(*hits, np.minimum(self.predicted, k), self.truth)


def find_relevant(predicted: npt.ArrayLike, truth: csr_matrix) -> RelevantHits:
    """Find the relevant labels among `predicted` (n, k): label rows, best first, padded with −1.

    >>> truth = csr_matrix([[1, 0, 1], [0, 1, 0]], dtype=bool)
    >>> hits = find_relevant([[2, 1], [0, -1]], truth)  # row 0 has a hit at rank 0, row 1 has none
    >>> hits.rows.tolist(), hits.ranks.tolist(), hits.labels.tolist()
    ([0], [0], [2])
    """
    ranking = _checked(np.asarray(predicted), truth.shape)
    truth = canonical(truth)
    step = max(1, _LOOKUP_CELLS // ranking.shape[1])
    blocks = [slice(start, start + step) for start in range(0, len(ranking), step)]
    row, rank = np.nonzero(np.concatenate([_lookup(ranking[block], truth[block]) for block in blocks]))
    lengths = np.count_nonzero(ranking >= 0, axis=1).astype(np.int64)
    return RelevantHits(row, rank, ranking[row, rank].astype(np.int64), lengths, truth)


def canonical(relevance: csr_matrix) -> csr_matrix:
    """Sort columns, merge duplicates and drop stored zeros; copies only if something changes."""
    relevance = csr_matrix(relevance, dtype=bool)
    if not relevance.has_canonical_format or not relevance.data.all():
        relevance = relevance.copy()
        relevance.sum_duplicates()
        relevance.eliminate_zeros()
    return relevance


def _checked(ranking: npt.NDArray[np.integer], shape: tuple[int, int]) -> npt.NDArray[np.integer]:
    """Return the ranking, or raise if it does not fit a truth of this shape."""
    n, labels = shape
    if ranking.ndim != 2 or not ranking.shape[1] or not np.issubdtype(ranking.dtype, np.integer):
        raise UsageError(f"expected predictions as integers (n, k), found {ranking.dtype} {ranking.shape}")
    if len(ranking) != n or 0 in shape:
        raise UsageError(
            f"{len(ranking)} predicted rows for a truth of shape {shape}; expected {n} rows, not empty"
        )
    if ranking.min() < -1 or ranking.max() >= labels:
        raise UsageError(f"predicted labels span {ranking.min()}…{ranking.max()}; expected −1…{labels - 1}")
    if np.any((ranking[:, :-1] < 0) & (ranking[:, 1:] >= 0)):
        raise UsageError("a predicted row has a label after a −1; −1 may only pad the end of a row")
    return ranking


def _lookup(ranking: npt.NDArray[np.integer], truth: csr_matrix) -> npt.NDArray[np.bool_]:
    """Which predictions of a block are relevant, (b, k)."""
    rows = np.repeat(np.arange(len(ranking)), ranking.shape[1])  # (b·k,)
    labels = ranking.ravel()
    found = np.asarray(truth[rows, np.maximum(labels, 0)], dtype=bool).ravel() & (labels >= 0)
    return found.reshape(ranking.shape)
