"""Every metric as a ratio of two sums over datapoints, so that it can be resampled without ranking again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_matrix

from mufin.metrics import FloatArray, IntArray, Judged, judge

AT = (1, 3, 5)


@dataclass(frozen=True)
class Pointwise:
    """metric = scale · Σ reached / Σ possible, both sums over the n datapoints.

    Coverage is not among them: it counts labels, not datapoints.
    """

    names: tuple[str, ...]  # as `mufin.metrics.evaluate` has them
    reached: FloatArray  # (n, M)
    possible: FloatArray  # (n, M)

    @property
    def scale(self) -> FloatArray:
        """100 for metrics that are percentages, else 1; (M,)."""
        return np.array([100.0 if "@" in name else 1.0 for name in self.names])

    def values(self) -> dict[str, float]:
        """Each metric over all datapoints."""
        found = self.scale * ratio(self.reached.sum(axis=0), self.possible.sum(axis=0))
        return dict(zip(self.names, found.tolist(), strict=True))


def pointwise(predicted: npt.ArrayLike, truth: csr_matrix, inverse_propensity: FloatArray) -> Pointwise:
    """All metrics of `metrics.evaluate` but coverage, datapoint by datapoint.

    >>> truth = csr_matrix([[1, 0, 1], [0, 1, 0]], dtype=bool)
    >>> pointwise([[2, 1], [0, 1]], truth, np.ones(3)).values()["P@1"]
    50.0
    """
    judged = judge(predicted, truth)
    ones = np.ones(judged.n)
    columns: dict[str, tuple[FloatArray, FloatArray]] = {}
    for k in AT:
        columns[f"P@{k}"] = _sum(judged.within(k)) / k, ones
    for k in AT:
        columns[f"nDCG@{k}"] = _ndcg(judged.within(k), k), ones
    for k in (10, 100):
        columns[f"R@{k}"] = _sum(judged.within(k)) / np.maximum(judged.relevant, 1), ones
    best = _ideal(judged, inverse_propensity)
    for k in AT:
        gained, could = judged.within(k), best.within(k)
        columns[f"PSP@{k}"] = _gain(gained, inverse_propensity), _gain(could, inverse_propensity)
    for k in AT:
        gained, could = judged.within(k), best.within(k)
        columns[f"PSnDCG@{k}"] = (
            _ndcg(gained, k, inverse_propensity),
            _ndcg(could, k, inverse_propensity),
        )
    columns["AUC"] = _auc(judged.within(100)), ones
    columns["MRR"] = _first(judged), ones
    reached, possible = (np.stack(same, axis=1) for same in zip(*columns.values(), strict=True))
    return Pointwise(tuple(columns), reached, possible)


def ratio(reached: FloatArray, possible: FloatArray) -> FloatArray:
    """reached / possible, and 0 where nothing was possible."""
    return np.divide(reached, possible, out=np.zeros_like(reached), where=possible != 0)


def _sum(judged: Judged, weights: FloatArray | None = None) -> FloatArray:
    """The number of hits of each datapoint, or the sum of their weights: (n,)."""
    return np.bincount(judged.rows, weights, minlength=judged.n).astype(np.float64)


def _gain(judged: Judged, q: FloatArray) -> FloatArray:
    return _sum(judged, q[judged.labels])


def _ndcg(judged: Judged, k: int, q: FloatArray | None = None) -> FloatArray:
    """Σ_hits q / log₂(p + 1) over Σ_{p ≤ min(k, relevant)} 1 / log₂(p + 1)."""
    discount = 1 / np.log2(np.arange(2, k + 2))
    gains = discount[judged.places] * (1.0 if q is None else q[judged.labels])
    ideal = np.cumsum(discount)[np.clip(judged.relevant, 1, k) - 1]
    return _sum(judged, gains) / ideal


def _ideal(judged: Judged, q: FloatArray) -> Judged:
    """The ranking that puts each datapoint's relevant labels first, those of the largest q in front."""
    truth = judged.truth
    rows: IntArray = np.repeat(np.arange(judged.n), judged.relevant)
    order = np.lexsort((-q[truth.indices], rows))
    places = np.arange(truth.nnz) - truth.indptr[rows]
    return Judged(rows, places, truth.indices[order].astype(np.int64), judged.relevant, truth)


def _auc(judged: Judged) -> FloatArray:
    """Of each datapoint the share of (relevant, irrelevant) pairs in the right order; 0 without a hit."""
    hits = _sum(judged)
    order = np.arange(len(judged.rows)) - np.searchsorted(judged.rows, judged.rows)
    wrong = _sum(judged, (judged.places - order).astype(np.float64))
    pairs = hits * (judged.returned - hits)
    return np.where(hits > 0, 1 - wrong / np.maximum(pairs, 1), 0.0)


def _first(judged: Judged) -> FloatArray:
    """1 / place of each datapoint's first hit, 0 without one."""
    first = np.zeros(judged.n)
    np.maximum.at(first, judged.rows, 1 / (judged.places + 1))
    return first
