"""Metrics of a ranking: P, nDCG, R, PSP, PSnDCG, AUC, MRR, coverage, calibration error."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_matrix

from mufin.errors import UsageError
from mufin.evaluate import per_point
from mufin.evaluate.per_point import (
    AUC_CUTOFF,
    FloatArray,
    IntArray,
    RelevantHits,
    canonical,
    find_relevant,
    ratio,
)

__all__ = [
    "auc", "coverage", "evaluate", "find_relevant", "fitb_accuracy", "mrr", "ndcg", "precision",
    "propensities", "psndcg", "psp", "recall",
]  # fmt: skip


def precision(hits: RelevantHits, k: int = 5) -> FloatArray:
    """P@j = hits in the top j / j, averaged, for j = 1, …, k.

    >>> precision(find_relevant([[0, 1]], csr_matrix([[1, 0, 1]], dtype=bool)), k=2).tolist()
    [1.0, 0.5]
    """
    return _mean(per_point.precision(hits, _all_cutoffs(k)))


def recall(hits: RelevantHits, k: int = 10) -> FloatArray:
    """R@j = hits in the top j / relevant labels, averaged, for j = 1, …, k.

    >>> recall(find_relevant([[0, 1, 2]], csr_matrix([[1, 0, 1]], dtype=bool)), k=3).tolist()
    [0.5, 0.5, 1.0]
    """
    return _mean(per_point.recall(hits, _all_cutoffs(k)))


def ndcg(hits: RelevantHits, k: int = 5) -> FloatArray:
    """nDCG@j = Σ_{hits p ≤ j} 1/log₂(p + 1) / Σ_{p ≤ min(j, relevant)} 1/log₂(p + 1), averaged, j = 1, …, k.

    >>> hits = find_relevant([[1, 0, 2]], csr_matrix([[1, 0, 0]], dtype=bool))
    >>> ndcg(hits, k=3).round(3).tolist()  # 1/log₂3
    [0.0, 0.631, 0.631]
    """
    return _mean(per_point.ndcg(hits, _all_cutoffs(k)))


def propensities(train_relevance: csr_matrix, a: float = 0.55, b: float = 1.5) -> FloatArray:
    """Inverse propensity of each label, 1 + C (N_l + b)^−a with C = (ln N − 1)(b + 1)^a (Jain et al., 2016).

    N is the number of datapoints, N_l of which have label l: rare labels weigh more. Amazon data sets use
    a = 0.6, b = 2.6.

    >>> train = csr_matrix([[1, 1, 0], [1, 0, 0], [1, 0, 0], [1, 0, 0]], dtype=bool)
    >>> bool(np.all(np.diff(propensities(train)) > 0))  # labels seen 4 times, once, never
    True
    """
    train = canonical(train_relevance)
    n, labels = train.shape
    if n == 0:
        raise UsageError("propensities need training datapoints; the relevance matrix has no rows")
    frequency = np.bincount(train.indices, minlength=labels)  # (L,)
    c = (np.log(n) - 1) * (b + 1) ** a
    return np.asarray(1 + c * (frequency + b) ** -a, dtype=np.float64)


def psp(hits: RelevantHits, inverse_propensity: FloatArray, k: int = 5) -> FloatArray:
    """PSP@j = Σ of q_l over the hits in the top j / the largest sum any ranking can reach, j = 1, …, k.

    Both sums run over all datapoints before the division, as in published tables.

    >>> hits = find_relevant([[0, 1]], csr_matrix([[1, 1]], dtype=bool))
    >>> psp(hits, np.array([1.0, 4.0]), k=2).tolist()  # 1/4, then 5/5
    [0.25, 1.0]
    """
    q, both = inverse_propensity, (hits, per_point.ideal_ranking(hits, inverse_propensity))
    return ratio(*(per_point.propensity_gain(ranking, _all_cutoffs(k), q).sum(axis=0) for ranking in both))


def psndcg(hits: RelevantHits, inverse_propensity: FloatArray, k: int = 5) -> FloatArray:
    """PSnDCG@j = Σ of nDCG@j with gains q_l over datapoints / the largest such sum, j = 1, …, k.

    >>> hits = find_relevant([[0, 1]], csr_matrix([[1, 1]], dtype=bool))
    >>> psndcg(hits, np.array([1.0, 4.0]), k=2).round(3).tolist()  # (1 + 4/log₂3) / (4 + 1/log₂3)
    [0.25, 0.761]
    """
    q, both = inverse_propensity, (hits, per_point.ideal_ranking(hits, inverse_propensity))
    return ratio(*(per_point.ndcg(ranking, _all_cutoffs(k), q).sum(axis=0) for ranking in both))


def auc(hits: RelevantHits, k: int = AUC_CUTOFF) -> float:
    """Fraction of (relevant, irrelevant) pairs in the top k that are in the right order, averaged.

    0 without a hit; 1 if all predictions are relevant. Missing predictions form no pairs.

    >>> truth = csr_matrix([[1, 0, 0, 1]], dtype=bool)
    >>> auc(find_relevant([[0, 1, 3, 2]], truth))  # of (0,1) (0,2) (3,1) (3,2) only (3,1) is wrong
    0.75
    """
    return float(per_point.auc(hits, k).mean())


def mrr(hits: RelevantHits) -> float:
    """Mean reciprocal rank of the first hit; 0 without a hit.

    >>> mrr(find_relevant([[0, 1], [0, 1]], csr_matrix([[1, 0], [0, 1]], dtype=bool)))
    0.75
    """
    return float(per_point.reciprocal_rank(hits).mean())


def coverage(hits: RelevantHits, k: int = 5) -> FloatArray:
    """Fraction of the labels in the truth that are a hit in some top j, for j = 1, …, k.

    >>> coverage(find_relevant([[0, 1], [0, 1]], csr_matrix([[1, 0], [0, 1]], dtype=bool)), k=2).tolist()
    [0.5, 1.0]
    """
    hits = hits.top(k)
    first = np.full(hits.truth.shape[1], k)  # (L,) best rank at which a label is a hit; k = never
    np.minimum.at(first, hits.labels, hits.ranks)
    found = np.cumsum(np.bincount(first, minlength=k + 1)[:k])  # (k,)
    return found / max(1, int(np.count_nonzero(np.bincount(hits.truth.indices))))


def fitb_accuracy(chosen: npt.ArrayLike, answers: npt.ArrayLike) -> float:
    """Fraction of fill-in-the-blank questions answered correctly; both arguments are choice indices (Q,).

    >>> fitb_accuracy([3, 0, 1, 2], [3, 0, 0, 0])
    0.5
    """
    left, right = np.asarray(chosen), np.asarray(answers)  # (Q,)
    if left.shape != right.shape or left.ndim != 1 or not len(left):
        raise UsageError(f"expected one choice per answer, found shapes {left.shape} and {right.shape}")
    return float(np.mean(left == right))


def evaluate(
    predicted: npt.ArrayLike, truth: csr_matrix, inverse_propensity: FloatArray | None = None
) -> dict[str, float]:
    """All metrics by name: those with an @ in percent, AUC and MRR between 0 and 1.

    PSP and PSnDCG are included only with `inverse_propensity` (see `propensities`).

    >>> evaluate([[0, 1]], csr_matrix([[1, 0, 1]], dtype=bool))["R@10"]
    50.0
    """
    hits = find_relevant(predicted, truth)
    values = per_point.point_metrics(hits, inverse_propensity).values()
    return values | {"coverage@5": 100 * float(coverage(hits, 5)[4])}


def _all_cutoffs(k: int) -> IntArray:
    """The cutoffs 1, …, k."""
    if k < 1:
        raise UsageError(f"k is {k}; it must be at least 1")
    return np.arange(1, k + 1)


def _mean(table: FloatArray) -> FloatArray:
    return np.asarray(table.mean(axis=0), np.float64)


CALIBRATION_BINS = 15


def calibration_curve(
    probability: npt.ArrayLike, relevant: npt.ArrayLike, bins: int = CALIBRATION_BINS
) -> tuple[IntArray, FloatArray, FloatArray]:
    """For each of `bins` equal ranges of probability: count, mean probability, fraction that is relevant.

    >>> count, predicted, observed = calibration_curve([0.1, 0.9, 0.7], [False, True, False], bins=2)
    >>> count.tolist(), predicted.tolist(), observed.tolist()
    ([1, 2], [0.1, 0.8], [0.0, 0.5])
    """
    p, y = np.asarray(probability, np.float64).ravel(), np.asarray(relevant, np.float64).ravel()
    if p.shape != y.shape:
        raise UsageError(f"{len(p)} probabilities for {len(y)} relevance values; expected one each")
    if bins < 1:
        raise UsageError(f"bins is {bins}; it must be at least 1")
    which = np.clip((p * bins).astype(np.int64), 0, bins - 1)
    count = np.bincount(which, minlength=bins)
    mean = [np.bincount(which, values, minlength=bins) / np.maximum(count, 1) for values in (p, y)]
    return count, mean[0], mean[1]


def expected_calibration_error(
    probability: npt.ArrayLike, relevant: npt.ArrayLike, bins: int = CALIBRATION_BINS
) -> float:
    """ECE = Σ over bins of (fraction of all in the bin) · |mean probability − fraction that is relevant|.

    >>> round(expected_calibration_error([0.1, 0.9, 0.7], [False, True, False], bins=2), 6)  # 0.1/3 + 0.6/3
    0.233333
    """
    count, predicted, observed = calibration_curve(probability, relevant, bins)
    return float((count * np.abs(predicted - observed)).sum() / max(1, count.sum()))
