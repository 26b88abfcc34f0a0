"""What `accuracy.py` measures beyond `mufin.metrics`: tail labels, calibration, paired differences, leaks.

A row of the benchmark keeps, point by point, what happened at the first ten places; every figure here is
computed from that, so that two rows can be compared without running either again.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix

from mufin import Catalogue, metrics

TOP = 10
TAIL = 5  # a tail label has at most this many training points
RESAMPLES = 10_000


@dataclass(frozen=True)
class Kept:
    """The first ten places of every test point."""

    hits: np.ndarray  # (n, 10) bool
    relevant: np.ndarray  # (n,) how many labels are relevant
    tail: np.ndarray  # (n,) share of its tail labels among the ten, NaN for a point without one
    probability: np.ndarray  # (n, 10), NaN where the method gives none or there is no label

    @classmethod
    def of(
        cls, labels: np.ndarray, truth: csr_matrix, train: csr_matrix, probability: np.ndarray | None = None
    ) -> Kept:
        """From label rows (n, k ≥ 10), best first, −1 for none."""
        top = labels[:, :TOP]
        judged = metrics.judge(top, truth)
        hits = np.zeros(top.shape, bool)
        hits[judged.rows, judged.places] = True
        if probability is None:
            probability = np.full(top.shape, np.nan)
        given = np.where(top >= 0, probability[:, :TOP], np.nan).astype(np.float32)
        return cls(hits, judged.relevant, tail_recall(top, truth, train), given)

    def values(self) -> dict[str, np.ndarray]:
        """P@1, P@5 and R@10 of each point, in percent."""
        share = self.hits.sum(axis=1) / np.maximum(self.relevant, 1)
        each = {"P@1": self.hits[:, 0], "P@5": self.hits[:, :5].mean(axis=1), "R@10": share}
        return {name: 100.0 * value for name, value in each.items()}

    def figures(self) -> dict[str, float]:
        """The figures of a row that `mufin.metrics.evaluate` does not have."""
        found = {"tail R@10": 100 * float(np.nanmean(self.tail))} if not np.isnan(self.tail).all() else {}
        for name, places in (("ECE top 10", TOP), ("ECE top 1", 1)):
            given = ~np.isnan(self.probability[:, :places])
            if given.any():
                chosen = self.probability[:, :places][given], self.hits[:, :places][given]
                found[name] = expected_calibration_error(*chosen)
        return found

    def save(self, path: Path) -> None:
        """Write a file that appears only when it is whole."""
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".tmp.npz")
        np.savez_compressed(temporary, **vars(self))
        temporary.replace(path)

    @classmethod
    def load(cls, path: Path) -> Kept:
        with np.load(path) as arrays:
            return cls(**arrays)


def tail_recall(labels: np.ndarray, truth: csr_matrix, train: csr_matrix) -> np.ndarray:
    """Recall of each point's tail labels among `labels` (n, k), NaN for a point that has none.

    >>> train = csr_matrix(np.array([[1, 0]] * 6, dtype=bool))  # label 0 is seen 6 times, label 1 never
    >>> truth = csr_matrix(np.array([[1, 1], [1, 0], [0, 1]], dtype=bool))
    >>> tail_recall(np.array([[1, 0], [0, 1], [0, -1]]), truth, train).tolist()
    [1.0, nan, 0.0]
    """
    rare = np.bincount(train.indices, minlength=train.shape[1]) <= TAIL  # (L,)
    judged = metrics.judge(labels, truth)
    found = np.bincount(judged.rows[rare[judged.labels]], minlength=judged.n)
    owner = np.repeat(np.arange(judged.n), judged.relevant)
    wanted = np.bincount(owner[rare[judged.truth.indices]], minlength=judged.n)
    return np.divide(found, wanted, out=np.full(judged.n, np.nan), where=wanted > 0)


def expected_calibration_error(probability: np.ndarray, relevant: np.ndarray, bins: int = 15) -> float:
    """Σ over bins of equal width of |share relevant − mean probability| · share of all; both arrays flat.

    >>> expected_calibration_error(
    ...     np.array([0.9, 0.9, 0.1]), np.array([True, False, False])
    ... )  # (0.8 + 0.1) / 3
    0.3
    """
    number = np.minimum((probability * bins).astype(np.int64), bins - 1)
    gap = np.bincount(number, relevant.astype(np.float64) - probability, minlength=bins)
    return round(float(np.abs(gap).sum() / len(probability)), 6)


def paired_difference(ours: list[Kept], theirs: list[Kept], seed: int = 0) -> dict[str, list[float]]:
    """[mean, low, high] of ours − theirs in points: 95 % of the bootstrap over test points.

    Several seeds of a row are averaged point by point first, so that what is drawn anew is the test set.
    """
    n = len(ours[0].relevant)
    draws = np.random.default_rng(seed)
    gaps = {
        name: np.mean([kept.values()[name] for kept in ours], axis=0)
        - np.mean([kept.values()[name] for kept in theirs], axis=0)
        for name in ours[0].values()
    }
    stacked = np.stack(list(gaps.values()), axis=1)  # (n, 3)
    means = np.empty((RESAMPLES, stacked.shape[1]))
    for start in range(0, RESAMPLES, 200):
        drawn = draws.integers(0, n, (min(200, RESAMPLES - start), n))
        means[start : start + len(drawn)] = stacked[drawn].mean(axis=1)
    low, high = np.percentile(means, [2.5, 97.5], axis=0)
    return {
        name: [round(float(v), 3) for v in (stacked[:, i].mean(), low[i], high[i])]
        for i, name in enumerate(gaps)
    }


def leaks(catalogue: Catalogue) -> dict[str, int] | None:
    """How many test pairs (a, b) stand in `train`, as (a, b) or as (b, a); None where labels are no items.

    Also how many are together in a set: those files must not be trained on and then asked for `test`; and how
    many items of the questions are in one: those would not be new to a model that is trained on sets.
    """
    if catalogue.labels is not catalogue.items:
        return None
    train, test = _pairs(catalogue, "train"), _pairs(catalogue, "test")
    together = csr_matrix(train.shape, dtype=bool)
    for name in catalogue.sets:
        together = together + _together(catalogue, name)
    asked = [catalogue.questions(name) for name in questions_of(catalogue)]
    items = [rows for questions in asked for rows in (*questions.query, questions.choices.ravel())]
    known = np.diff(together.indptr) > 0
    return {
        "test pairs": int(test.nnz),
        "same in train": int(test.multiply(train).nnz),
        "reversed in train": int(test.multiply(train.T).nnz),
        "in sets": int(test.multiply(together).nnz),
        "items of questions": len(set(np.concatenate([np.zeros(0, np.int64), *items]).tolist())),
        "of them in sets": len({row for rows in items for row in rows[known[rows]].tolist()}),
    }


def questions_of(catalogue: Catalogue) -> list[str]:
    """The names of the files of fill-in-the-blank questions."""
    return [name for name, part in catalogue.parts.items() if part.kind == "questions"]


def _pairs(catalogue: Catalogue, name: str) -> csr_matrix:
    """The pairs of a split, (items, items) bool."""
    split = catalogue.split(name)
    owner = np.repeat(np.arange(len(split)), np.diff(split.offsets))
    shape = (len(split), len(catalogue.items))
    membership = csr_matrix((np.ones(len(owner), bool), (owner, split.members)), shape=shape)
    return csr_matrix(membership.T @ split.relevance, dtype=bool)


def _together(catalogue: Catalogue, name: str) -> csr_matrix:
    """Which items stand in one set of this file, (items, items) bool."""
    sets = catalogue.parts[name].table().column("items").to_pylist()
    pairs = [pair for ids in sets for pair in combinations(catalogue.items.rows(ids), 2)]
    rows = np.array(pairs, np.int64).reshape(-1, 2)
    both = np.concatenate([rows, rows[:, ::-1]])
    shape = (len(catalogue.items),) * 2
    return csr_matrix((np.ones(len(both), bool), (both[:, 0], both[:, 1])), shape=shape)
