"""Metrics of each datapoint, from the hits that are relevant."""

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


CUTOFFS = np.array([1, 3, 5])
RECALL_CUTOFFS = np.array([10, 100])
AUC_CUTOFF = 100


@dataclass(frozen=True)
class PointMetrics:
    """Metrics per datapoint: metric = scale · Σ numerator / Σ denominator, summed over n datapoints.

    Coverage is missing, since it counts labels, not datapoints.
    """

    names: tuple[str, ...]  # as in `evaluate`
    numerator: FloatArray  # (n, M)
    denominator: FloatArray  # (n, M)

    @property
    def scale(self) -> FloatArray:
        """100 for percentages, else 1; (M,)."""
        return np.array([100.0 if "@" in name else 1.0 for name in self.names])

    def values(self) -> dict[str, float]:
        """Each metric over all datapoints."""
        found = self.scale * ratio(self.numerator.sum(axis=0), self.denominator.sum(axis=0))
        return dict(zip(self.names, found.tolist(), strict=True))

    def select(self, *names: str) -> PointMetrics:
        """Keep only these metrics."""
        columns = [self.names.index(name) for name in names]
        return PointMetrics(names, self.numerator[:, columns], self.denominator[:, columns])


def point_metrics(hits: RelevantHits, inverse_propensity: FloatArray | None = None) -> PointMetrics:
    """All metrics of `metrics.evaluate` except coverage, per datapoint and in the same order.

    >>> from scipy.sparse import csr_matrix
    >>> from mufin.evaluate.per_point import find_relevant
    >>> hits = find_relevant([[2, 1], [0, 1]], csr_matrix([[1, 0, 1], [0, 1, 0]], dtype=bool))
    >>> point_metrics(hits).select("P@1", "R@10").numerator.tolist()
    [[1.0, 0.5], [0.0, 1.0]]
    """
    q = inverse_propensity
    named = [("P", CUTOFFS), ("nDCG", CUTOFFS), ("R", RECALL_CUTOFFS)]
    numerator = [precision(hits, CUTOFFS), ndcg(hits, CUTOFFS), recall(hits, RECALL_CUTOFFS)]
    denominator = [np.ones_like(table) for table in numerator]
    if q is not None:
        named += [("PSP", CUTOFFS), ("PSnDCG", CUTOFFS)]
        ideal = ideal_ranking(hits, q)
        numerator += [propensity_gain(hits, CUTOFFS, q), ndcg(hits, CUTOFFS, q)]
        denominator += [propensity_gain(ideal, CUTOFFS, q), ndcg(ideal, CUTOFFS, q)]
    names = [f"{name}@{k}" for name, cutoffs in named for k in cutoffs]
    single = np.stack([auc(hits, AUC_CUTOFF), reciprocal_rank(hits)], axis=1)
    return PointMetrics(
        (*names, "AUC", "MRR"),
        # Contiguous columns sum to exactly the numbers of `auc` and `mrr`.
        np.asfortranarray(np.concatenate([*numerator, single], axis=1)),
        np.asfortranarray(np.concatenate([*denominator, np.ones_like(single)], axis=1)),
    )


def precision(hits: RelevantHits, cutoffs: IntArray) -> FloatArray:
    """P@j of each datapoint."""
    return _cumulative(hits.top(cutoffs[-1]), cutoffs) / cutoffs


def recall(hits: RelevantHits, cutoffs: IntArray) -> FloatArray:
    """R@j of each datapoint."""
    return _cumulative(hits.top(cutoffs[-1]), cutoffs) / np.maximum(hits.relevant, 1)[:, None]


def propensity_gain(hits: RelevantHits, cutoffs: IntArray, q: FloatArray) -> FloatArray:
    """Σ of q over the hits in the top j."""
    hits = hits.top(cutoffs[-1])
    return _cumulative(hits, cutoffs, q[hits.labels])


def ndcg(hits: RelevantHits, cutoffs: IntArray, q: FloatArray | None = None) -> FloatArray:
    """nDCG@j with gains q: Σ_hits q / log₂(p + 1) / Σ_{p ≤ min(j, relevant)} 1 / log₂(p + 1)."""
    hits = hits.top(cutoffs[-1])
    discount = 1 / np.log2(np.arange(2, cutoffs[-1] + 2))
    gains = discount[hits.ranks] * (1.0 if q is None else q[hits.labels])
    ideal = np.cumsum(discount)[np.minimum(np.maximum(hits.relevant, 1)[:, None], cutoffs) - 1]
    return np.asarray(_cumulative(hits, cutoffs, gains) / ideal, np.float64)


def auc(hits: RelevantHits, k: int) -> FloatArray:
    """The fraction of (relevant, irrelevant) pairs in the right order, 0 without a hit; (n,)."""
    hits = hits.top(k)
    found = np.bincount(hits.rows, minlength=hits.n)
    above = hits.ranks - _index_within_row(hits)  # (H,) irrelevant labels above each hit
    wrong = np.bincount(hits.rows, above, minlength=hits.n)
    pairs = found * (hits.predicted - found)
    return np.where(found > 0, 1 - wrong / np.maximum(pairs, 1), 0.0)


def reciprocal_rank(hits: RelevantHits) -> FloatArray:
    """Reciprocal rank of the first hit, 0 without one; (n,)."""
    found = np.zeros(hits.n)
    first = _index_within_row(hits) == 0
    found[hits.rows[first]] = 1 / (hits.ranks[first] + 1)
    return found


def ideal_ranking(hits: RelevantHits, q: FloatArray) -> RelevantHits:
    """The ideal ranking: the relevant labels of each datapoint, largest q first."""
    truth, labels = hits.truth, hits.truth.shape[1]
    if q.shape != (labels,):
        raise UsageError(f"inverse propensities of shape {q.shape}; expected one per label, ({labels},)")
    best_first = np.argsort(-q, kind="stable")  # (L,)
    rank = np.argsort(best_first)  # its inverse
    rows = np.repeat(np.arange(hits.n), hits.relevant)  # (nnz,)
    # Sorting the keys row · L + rank sorts all rows at once.
    found = best_first[np.sort(rows * labels + rank[truth.indices]) - rows * labels]
    ranks = np.arange(truth.nnz) - truth.indptr[rows]
    return RelevantHits(rows, ranks, found, hits.relevant, truth)


def ratio(numerator: FloatArray, denominator: FloatArray) -> FloatArray:
    """numerator / denominator, and 0 where the denominator is 0."""
    return np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator != 0)


def _cumulative(hits: RelevantHits, cutoffs: IntArray, gains: FloatArray | None = None) -> FloatArray:
    """Number of hits in the top j of each datapoint, or the sum of their gains, (n, C).

    Requires that no hit lies beyond the last cutoff.
    """
    cell = hits.rows * len(cutoffs) + np.searchsorted(cutoffs, hits.ranks, side="right")
    found = np.bincount(cell, gains, minlength=hits.n * len(cutoffs)).reshape(hits.n, len(cutoffs))
    return np.cumsum(found, axis=1, dtype=np.float64)


def _index_within_row(hits: RelevantHits) -> IntArray:
    """Number the hits of each datapoint 0, 1, 2, …; (H,)."""
    counts = np.bincount(hits.rows, minlength=hits.n)
    return np.arange(len(hits.rows)) - (np.cumsum(counts) - counts)[hits.rows]
