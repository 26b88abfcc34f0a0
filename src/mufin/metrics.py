"""Metrics of ranked labels: P, nDCG, R, PSP, PSnDCG, AUC, MRR, coverage; NumPy and SciPy only.

`judge` finds the hits once; every metric then reads only these few. At-k metrics return an array of their
values at places 1, …, k, so `precision(judged, 5)[4]` is P@5. All values lie between 0 and 1; only `evaluate`
speaks in percent.

Conventions (napkinXC's): places without a label (−1, or beyond the last column) are misses; a datapoint
without relevant labels scores 0 and stays in the average, whose divisor is always n.
"""

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
    truth = _canonical(truth)
    step = max(1, _BLOCK // ranking.shape[1])
    blocks = [slice(start, start + step) for start in range(0, len(ranking), step)]
    row, place = np.nonzero(np.concatenate([_lookup(ranking[block], truth[block]) for block in blocks]))
    returned = np.count_nonzero(ranking >= 0, axis=1).astype(np.int64)
    return Judged(row, place, ranking[row, place].astype(np.int64), returned, truth)


def precision(judged: Judged, k: int = 5) -> FloatArray:
    """P@j = hits in the top j / j, averaged, for j = 1, …, k.

    >>> precision(judge([[0, 1]], csr_matrix([[1, 0, 1]], dtype=bool)), k=2).tolist()
    [1.0, 0.5]
    """
    judged = judged.within(k)
    return _up_to(judged.places, np.ones(len(judged.places)), k) / (judged.n * np.arange(1, k + 1))


def recall(judged: Judged, k: int = 10) -> FloatArray:
    """R@j = hits in the top j / relevant labels, averaged, for j = 1, …, k.

    >>> recall(judge([[0, 1, 2]], csr_matrix([[1, 0, 1]], dtype=bool)), k=3).tolist()
    [0.5, 0.5, 1.0]
    """
    judged = judged.within(k)
    return _up_to(judged.places, 1 / judged.relevant[judged.rows], k) / judged.n


def ndcg(judged: Judged, k: int = 5) -> FloatArray:
    """nDCG@j = Σ_{hits p ≤ j} 1/log₂(p + 1) / Σ_{p ≤ min(j, relevant)} 1/log₂(p + 1), averaged, j = 1, …, k.

    >>> ndcg(judge([[1, 0, 2]], csr_matrix([[1, 0, 0]], dtype=bool)), k=3).round(3).tolist()  # 1/log₂3
    [0.0, 0.631, 0.631]
    """
    judged = judged.within(k)
    gains = np.ones(len(judged.places))
    return _normalised_dcg(judged.relevant[judged.rows], judged.places, gains, k) / judged.n


def propensities(train_relevance: csr_matrix, a: float = 0.55, b: float = 1.5) -> FloatArray:
    """Inverse propensity of each label, 1 + C (N_l + b)^−a with C = (ln N − 1)(b + 1)^a (Jain et al., 2016).

    N datapoints, N_l of them with label l: rare labels weigh more. Amazon data sets use a = 0.6, b = 2.6.

    >>> train = csr_matrix([[1, 1, 0], [1, 0, 0], [1, 0, 0], [1, 0, 0]], dtype=bool)
    >>> bool(np.all(np.diff(propensities(train)) > 0))  # labels seen 4 times, once, never
    True
    """
    train = _canonical(train_relevance)
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
    judged = judged.within(k)
    _, best_places, best_gains = _ideal(judged, inverse_propensity, k)
    reached = _up_to(judged.places, inverse_propensity[judged.labels], k)
    return _ratio(reached, _up_to(best_places, best_gains, k))


def psndcg(judged: Judged, inverse_propensity: FloatArray, k: int = 5) -> FloatArray:
    """PSnDCG@j = Σ over datapoints of nDCG@j with gains q_l / the largest such Σ, j = 1, …, k.

    >>> judged = judge([[0, 1]], csr_matrix([[1, 1]], dtype=bool))
    >>> psndcg(judged, np.array([1.0, 4.0]), k=2).round(3).tolist()  # (1 + 4/log₂3) / (4 + 1/log₂3)
    [0.25, 0.761]
    """
    judged = judged.within(k)
    best = _normalised_dcg(*_ideal(judged, inverse_propensity, k), k)
    gains = inverse_propensity[judged.labels]
    reached = _normalised_dcg(judged.relevant[judged.rows], judged.places, gains, k)
    return _ratio(reached, best)


def auc(judged: Judged, k: int = 100) -> float:
    """Share of (relevant, irrelevant) pairs inside the top k that are ordered rightly, averaged.

    0 without a hit. 1 when all that was returned is relevant: no pair is ordered wrongly. Empty places belong
    to no pair.

    >>> truth = csr_matrix([[1, 0, 0, 1]], dtype=bool)
    >>> auc(judge([[0, 1, 3, 2]], truth))  # of (0,1) (0,2) (3,1) (3,2) only (3,1) is wrong
    0.75
    """
    judged = judged.within(k)
    before = judged.places - _order_within(judged.rows)  # (H,) irrelevant labels above each hit
    wrong = np.bincount(judged.rows, before, minlength=judged.n)  # (n,) pairs
    hits = np.bincount(judged.rows, minlength=judged.n)  # (n,)
    pairs = hits * (judged.returned - hits)  # (n,)
    right = 1 - wrong / np.maximum(pairs, 1)
    return float(right[hits > 0].sum() / judged.n)


def mrr(judged: Judged) -> float:
    """Mean of 1 / place of the first hit, over all places given; 0 without a hit.

    >>> mrr(judge([[0, 1], [0, 1]], csr_matrix([[1, 0], [0, 1]], dtype=bool)))
    0.75
    """
    first = _order_within(judged.rows) == 0
    return float((1 / (judged.places[first] + 1)).sum() / judged.n)


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
    values = {"P": precision(judged, 5), "nDCG": ndcg(judged, 5), "R": recall(judged, 100)}
    places = {"P": (1, 3, 5), "nDCG": (1, 3, 5), "R": (10, 100), "PSP": (1, 3, 5), "PSnDCG": (1, 3, 5)}
    if inverse_propensity is not None:
        values["PSP"] = psp(judged, inverse_propensity, 5)
        values["PSnDCG"] = psndcg(judged, inverse_propensity, 5)
    table = {f"{name}@{k}": 100 * float(at[k - 1]) for name, at in values.items() for k in places[name]}
    return table | {"AUC": auc(judged), "MRR": mrr(judged), "coverage@5": 100 * float(coverage(judged, 5)[4])}


def _lookup(ranking: npt.NDArray[np.integer], truth: csr_matrix) -> npt.NDArray[np.bool_]:
    """Which labels of a block of the ranking are relevant, (b, k): SciPy's search inside each CSR row."""
    rows = np.repeat(np.arange(len(ranking)), ranking.shape[1])  # (b·k,)
    labels = ranking.ravel()
    found = np.asarray(truth[rows, np.maximum(labels, 0)], dtype=bool).ravel() & (labels >= 0)
    return found.reshape(ranking.shape)


def _up_to(places: IntArray, gains: FloatArray, k: int) -> FloatArray:
    """Σ of the gains at places up to j, for j = 1, …, k."""
    return np.cumsum(np.bincount(places, gains, minlength=k), dtype=np.float64)


def _ideal(judged: Judged, q: FloatArray, k: int) -> tuple[IntArray, IntArray, FloatArray]:
    """The top k of the best ranking under gains q: (relevant labels of its datapoint, place, gain)."""
    truth, labels = judged.truth, judged.truth.shape[1]
    if q.shape != (labels,):
        raise UsageError(f"inverse propensities of shape {q.shape}; expected one a label, ({labels},)")
    best_first = np.argsort(-q, kind="stable")  # (L,)
    rank = np.argsort(best_first)  # its inverse
    rows = np.repeat(np.arange(judged.n), judged.relevant)  # (nnz,)
    # One sort of the numbers row · L + rank orders every row at once.
    gains = q[best_first[np.sort(rows * labels + rank[truth.indices]) - rows * labels]]
    places = np.arange(truth.nnz) - truth.indptr[rows]
    top = places < k
    return judged.relevant[rows[top]], places[top], gains[top]


def _normalised_dcg(relevant: IntArray, places: IntArray, gains: FloatArray, k: int) -> FloatArray:
    """Σ over datapoints of Σ_{p ≤ j} gain / log₂(p + 1) over its ideal, for j = 1, …, k.

    The ideal depends on min(relevant, k) =: t and j alone, so hits are first added up by (t, place).
    """
    discount = 1 / np.log2(np.arange(2, k + 2))  # (k,)
    cell = np.minimum(relevant, k) * k + places
    by_size = np.bincount(cell, gains, minlength=(k + 1) * k).reshape(k + 1, k)  # row t, column place
    dcg = np.cumsum(by_size * discount, axis=1)  # (k + 1, k)
    ideal = np.cumsum(discount)[np.minimum.outer(np.arange(k + 1) - 1, np.arange(k))]  # row 0 is never hit
    return np.asarray((dcg / ideal).sum(axis=0), dtype=np.float64)


def _order_within(rows: IntArray) -> IntArray:
    """0, 1, 2, … along each run of equal numbers of the ascending `rows`."""
    return np.arange(len(rows)) - np.searchsorted(rows, rows)


def _ratio(reached: FloatArray, best: FloatArray) -> FloatArray:
    """reached / best, and 0 where nothing could be reached."""
    return np.divide(reached, best, out=np.zeros_like(reached), where=best != 0)


def _canonical(relevance: csr_matrix) -> csr_matrix:
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
