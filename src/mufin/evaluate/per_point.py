"""Ranking metrics per datapoint, as numerators and denominators that can be summed, grouped and resampled.

The metrics at k take ascending cutoffs (C,) and return one column per cutoff, (n, C).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mufin.errors import UsageError
from mufin.evaluate.relevant_hits import FloatArray, IntArray, RelevantHits

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
    >>> from mufin.evaluate.relevant_hits import find_relevant
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
