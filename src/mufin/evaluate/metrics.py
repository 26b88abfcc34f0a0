"""Metrics of ranked labels: P, nDCG, R, PSP, PSnDCG, AUC, MRR, coverage; NumPy and SciPy only.

`judge` finds the hits once. Every metric but coverage is then computed per datapoint, as a ratio of two sums
over datapoints, so that it can also be grouped and resampled (`Pointwise`). At-k metrics return an array of
their values at places 1, …, k, so `precision(judged, 5)[4]` is P@5. All values lie between 0 and 1; only
`evaluate` and `Pointwise` speak in percent.

Conventions (napkinXC's): places without a label (−1, or beyond the last column) are misses; a datapoint
without relevant labels scores 0 and stays in the average, whose divisor is always n.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_matrix

from mufin.errors import UsageError
from mufin.evaluate.relevant_hits import FloatArray, IntArray, Judged, canonical, judge

__all__ = [
    "FloatArray", "IntArray", "Judged", "Pointwise", "auc", "coverage", "evaluate", "fitb_accuracy", "judge",
    "mrr", "ndcg", "pointwise", "precision", "propensities", "psndcg", "psp", "ratio", "recall",
]  # fmt: skip

AT = np.array([1, 3, 5])
FAR = np.array([10, 100])  # recall; AUC looks as far


@dataclass(frozen=True)
class Pointwise:
    """metric = scale · Σ reached / Σ possible, both sums over the n datapoints.

    Coverage is not among them: it counts labels, not datapoints.
    """

    names: tuple[str, ...]  # as `evaluate` has them
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

    def only(self, *names: str) -> Pointwise:
        """These metrics alone."""
        columns = [self.names.index(name) for name in names]
        return Pointwise(names, self.reached[:, columns], self.possible[:, columns])


def pointwise(
    predicted: npt.ArrayLike, truth: csr_matrix, inverse_propensity: FloatArray | None = None
) -> Pointwise:
    """All metrics of `evaluate` but coverage, per datapoint.

    >>> truth = csr_matrix([[1, 0, 1], [0, 1, 0]], dtype=bool)
    >>> pointwise([[2, 1], [0, 1]], truth).only("P@1", "R@10").reached.tolist()
    [[1.0, 0.5], [0.0, 1.0]]
    """
    return _pointwise(judge(predicted, truth), inverse_propensity)


def precision(judged: Judged, k: int = 5) -> FloatArray:
    """P@j = hits in the top j / j, averaged, for j = 1, …, k.

    >>> precision(judge([[0, 1]], csr_matrix([[1, 0, 1]], dtype=bool)), k=2).tolist()
    [1.0, 0.5]
    """
    return _mean(_precision(judged, _every(k)))


def recall(judged: Judged, k: int = 10) -> FloatArray:
    """R@j = hits in the top j / relevant labels, averaged, for j = 1, …, k.

    >>> recall(judge([[0, 1, 2]], csr_matrix([[1, 0, 1]], dtype=bool)), k=3).tolist()
    [0.5, 0.5, 1.0]
    """
    return _mean(_recall(judged, _every(k)))


def ndcg(judged: Judged, k: int = 5) -> FloatArray:
    """nDCG@j = Σ_{hits p ≤ j} 1/log₂(p + 1) / Σ_{p ≤ min(j, relevant)} 1/log₂(p + 1), averaged, j = 1, …, k.

    >>> ndcg(judge([[1, 0, 2]], csr_matrix([[1, 0, 0]], dtype=bool)), k=3).round(3).tolist()  # 1/log₂3
    [0.0, 0.631, 0.631]
    """
    return _mean(_ndcg(judged, _every(k)))


def propensities(train_relevance: csr_matrix, a: float = 0.55, b: float = 1.5) -> FloatArray:
    """Inverse propensity of each label, 1 + C (N_l + b)^−a with C = (ln N − 1)(b + 1)^a (Jain et al., 2016).

    N datapoints, N_l of them with label l: rare labels weigh more. Amazon data sets use a = 0.6, b = 2.6.

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


def psp(judged: Judged, inverse_propensity: FloatArray, k: int = 5) -> FloatArray:
    """PSP@j = Σ of q_l over the hits in the top j / the largest such Σ any ranking can reach, j = 1, …, k.

    Both sums run over all datapoints before the division, as the published tables do.

    >>> judged = judge([[0, 1]], csr_matrix([[1, 1]], dtype=bool))
    >>> psp(judged, np.array([1.0, 4.0]), k=2).tolist()  # 1/4, then 5/5
    [0.25, 1.0]
    """
    q, both = inverse_propensity, (judged, _ideal(judged, inverse_propensity))
    return ratio(*(_gain(ranking, _every(k), q).sum(axis=0) for ranking in both))


def psndcg(judged: Judged, inverse_propensity: FloatArray, k: int = 5) -> FloatArray:
    """PSnDCG@j = Σ over datapoints of nDCG@j with gains q_l / the largest such Σ, j = 1, …, k.

    >>> judged = judge([[0, 1]], csr_matrix([[1, 1]], dtype=bool))
    >>> psndcg(judged, np.array([1.0, 4.0]), k=2).round(3).tolist()  # (1 + 4/log₂3) / (4 + 1/log₂3)
    [0.25, 0.761]
    """
    q, both = inverse_propensity, (judged, _ideal(judged, inverse_propensity))
    return ratio(*(_ndcg(ranking, _every(k), q).sum(axis=0) for ranking in both))


def auc(judged: Judged, k: int = 100) -> float:
    """Share of (relevant, irrelevant) pairs inside the top k that are ordered rightly, averaged.

    0 without a hit. 1 when all that was returned is relevant: no pair is ordered wrongly. Empty places belong
    to no pair.

    >>> truth = csr_matrix([[1, 0, 0, 1]], dtype=bool)
    >>> auc(judge([[0, 1, 3, 2]], truth))  # of (0,1) (0,2) (3,1) (3,2) only (3,1) is wrong
    0.75
    """
    return float(_auc(judged, k).mean())


def mrr(judged: Judged) -> float:
    """Mean of 1 / place of the first hit, over all places given; 0 without a hit.

    >>> mrr(judge([[0, 1], [0, 1]], csr_matrix([[1, 0], [0, 1]], dtype=bool)))
    0.75
    """
    return float(_reciprocal(judged).mean())


def coverage(judged: Judged, k: int = 5) -> FloatArray:
    """Share of the labels that occur in the truth that are a hit in some top j, for j = 1, …, k.

    >>> coverage(judge([[0, 1], [0, 1]], csr_matrix([[1, 0], [0, 1]], dtype=bool)), k=2).tolist()
    [0.5, 1.0]
    """
    judged = judged.within(k)
    first = np.full(judged.truth.shape[1], k)  # (L,) best place at which a label is a hit; k = never
    np.minimum.at(first, judged.labels, judged.places)
    found = np.cumsum(np.bincount(first, minlength=k + 1)[:k])  # (k,)
    return found / max(1, int(np.count_nonzero(np.bincount(judged.truth.indices))))


def fitb_accuracy(chosen: npt.ArrayLike, answers: npt.ArrayLike) -> float:
    """Share of fill-in-the-blank questions whose chosen candidate is the answer; both (Q,) candidate numbers.

    >>> fitb_accuracy([3, 0, 1, 2], [3, 0, 0, 0])
    0.5
    """
    left, right = np.asarray(chosen), np.asarray(answers)  # (Q,)
    if left.shape != right.shape or left.ndim != 1 or not len(left):
        raise UsageError(f"expected one choice an answer, found shapes {left.shape} and {right.shape}")
    return float(np.mean(left == right))


def evaluate(
    predicted: npt.ArrayLike, truth: csr_matrix, inverse_propensity: FloatArray | None = None
) -> dict[str, float]:
    """All metrics by name: those with an @ in percent, AUC and MRR between 0 and 1.

    PSP and PSnDCG are there only with `inverse_propensity` (see `propensities`).

    >>> evaluate([[0, 1]], csr_matrix([[1, 0, 1]], dtype=bool))["R@10"]
    50.0
    """
    judged = judge(predicted, truth)
    values = _pointwise(judged, inverse_propensity).values()
    return values | {"coverage@5": 100 * float(coverage(judged, 5)[4])}


def ratio(reached: FloatArray, possible: FloatArray) -> FloatArray:
    """reached / possible, and 0 where nothing was possible."""
    return np.divide(reached, possible, out=np.zeros_like(reached), where=possible != 0)


# -- per datapoint, (n, C): `cuts` (C,) are the places j at which a metric is taken, ascending ---------------


def _precision(judged: Judged, cuts: IntArray) -> FloatArray:
    return _sums(judged.within(cuts[-1]), cuts) / cuts


def _recall(judged: Judged, cuts: IntArray) -> FloatArray:
    return _sums(judged.within(cuts[-1]), cuts) / np.maximum(judged.relevant, 1)[:, None]


def _gain(judged: Judged, cuts: IntArray, q: FloatArray) -> FloatArray:
    """Σ_hits q."""
    judged = judged.within(cuts[-1])
    return _sums(judged, cuts, q[judged.labels])


def _ndcg(judged: Judged, cuts: IntArray, q: FloatArray | None = None) -> FloatArray:
    """Σ_hits q / log₂(p + 1) over Σ_{p ≤ min(j, relevant)} 1 / log₂(p + 1)."""
    judged = judged.within(cuts[-1])
    discount = 1 / np.log2(np.arange(2, cuts[-1] + 2))
    gains = discount[judged.places] * (1.0 if q is None else q[judged.labels])
    ideal = np.cumsum(discount)[np.minimum(np.maximum(judged.relevant, 1)[:, None], cuts) - 1]
    return np.asarray(_sums(judged, cuts, gains) / ideal, np.float64)


def _auc(judged: Judged, k: int) -> FloatArray:
    """The share of (relevant, irrelevant) pairs in the right order, 0 without a hit; (n,)."""
    judged = judged.within(k)
    hits = np.bincount(judged.rows, minlength=judged.n)
    above = judged.places - _order_within(judged)  # (H,) irrelevant labels above each hit
    wrong = np.bincount(judged.rows, above, minlength=judged.n)
    pairs = hits * (judged.returned - hits)
    return np.where(hits > 0, 1 - wrong / np.maximum(pairs, 1), 0.0)


def _reciprocal(judged: Judged) -> FloatArray:
    """1 / place of the first hit, 0 without one; (n,)."""
    found = np.zeros(judged.n)
    first = _order_within(judged) == 0
    found[judged.rows[first]] = 1 / (judged.places[first] + 1)
    return found


def _pointwise(judged: Judged, q: FloatArray | None) -> Pointwise:
    """The columns of all metrics, in the order of `evaluate`."""
    named = [("P", AT), ("nDCG", AT), ("R", FAR)]
    reached = [_precision(judged, AT), _ndcg(judged, AT), _recall(judged, FAR)]
    possible = [np.ones_like(table) for table in reached]
    if q is not None:
        named += [("PSP", AT), ("PSnDCG", AT)]
        ideal = _ideal(judged, q)
        reached += [_gain(judged, AT, q), _ndcg(judged, AT, q)]
        possible += [_gain(ideal, AT, q), _ndcg(ideal, AT, q)]
    names = [f"{name}@{k}" for name, cuts in named for k in cuts]
    single = np.stack([_auc(judged, FAR[-1]), _reciprocal(judged)], axis=1)
    return Pointwise(
        (*names, "AUC", "MRR"),
        # Contiguous columns sum to the very numbers of `auc` and `mrr`.
        np.asfortranarray(np.concatenate([*reached, single], axis=1)),
        np.asfortranarray(np.concatenate([*possible, np.ones_like(single)], axis=1)),
    )


def _sums(judged: Judged, cuts: IntArray, gains: FloatArray | None = None) -> FloatArray:
    """The number of hits in the top j of each datapoint, or the sum of their gains: (n, C).

    No hit lies beyond the last cut.
    """
    cell = judged.rows * len(cuts) + np.searchsorted(cuts, judged.places, side="right")
    found = np.bincount(cell, gains, minlength=judged.n * len(cuts)).reshape(judged.n, len(cuts))
    return np.cumsum(found, axis=1, dtype=np.float64)


def _every(k: int) -> IntArray:
    """All places 1, …, k."""
    if k < 1:
        raise UsageError(f"k is {k}; it must be at least 1")
    return np.arange(1, k + 1)


def _mean(table: FloatArray) -> FloatArray:
    return np.asarray(table.mean(axis=0), np.float64)


def _ideal(judged: Judged, q: FloatArray) -> Judged:
    """The ranking of each datapoint's relevant labels alone, largest q first."""
    truth, labels = judged.truth, judged.truth.shape[1]
    if q.shape != (labels,):
        raise UsageError(f"inverse propensities of shape {q.shape}; expected one a label, ({labels},)")
    best_first = np.argsort(-q, kind="stable")  # (L,)
    rank = np.argsort(best_first)  # its inverse
    rows = np.repeat(np.arange(judged.n), judged.relevant)  # (nnz,)
    # One sort of the numbers row · L + rank orders every row at once.
    found = best_first[np.sort(rows * labels + rank[truth.indices]) - rows * labels]
    places = np.arange(truth.nnz) - truth.indptr[rows]
    return Judged(rows, places, found, judged.relevant, truth)


def _order_within(judged: Judged) -> IntArray:
    """0, 1, 2, … along the hits of each datapoint; (H,)."""
    counts = np.bincount(judged.rows, minlength=judged.n)
    return np.arange(len(judged.rows)) - (np.cumsum(counts) - counts)[judged.rows]
