"""What `accuracy.py` measures beyond `evaluate.metrics`: tail recall, calibration, differences, leaks.

Each row of the benchmark keeps some metrics and the first ten hits per test point, so that two rows can be
compared without running either again.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix

from mufin import Catalogue
from mufin.evaluate.bootstrap import paired
from mufin.evaluate.metrics import expected_calibration_error
from mufin.evaluate.per_point import PointMetrics, find_relevant, point_metrics

KEPT_HITS = 10
TAIL_FREQUENCY = 5  # a tail label has at most this many training points
COMPARED = ("P@1", "P@5", "R@10")


@dataclass(frozen=True)
class Kept:
    """Metrics and the first ten hits of every test point."""

    metrics: np.ndarray  # (n, 3) those of COMPARED, between 0 and 1
    tail: np.ndarray  # (n,) recall of its tail labels in the top ten, NaN if it has none
    hits: np.ndarray  # (n, 10) bool
    probability: np.ndarray  # (n, 10), NaN if the method gives none or there is no label

    @classmethod
    def of(
        cls, labels: np.ndarray, truth: csr_matrix, train: csr_matrix, probability: np.ndarray | None = None
    ) -> Kept:
        """From label rows (n, k ≥ 10), best first, padded with −1."""
        top = labels[:, :KEPT_HITS]
        relevant = find_relevant(top, truth)
        hits = np.zeros(top.shape, bool)
        hits[relevant.rows, relevant.ranks] = True
        if probability is None:
            probability = np.full(top.shape, np.nan)
        given = np.where(top >= 0, probability[:, :KEPT_HITS], np.nan).astype(np.float32)
        metrics = point_metrics(relevant).select(*COMPARED).numerator
        return cls(metrics, tail_recall(top, truth, train), hits, given)

    def figures(self) -> dict[str, float]:
        """The figures that `mufin.evaluate.metrics.evaluate` does not compute."""
        found = {"tail R@10": 100 * float(np.nanmean(self.tail))} if not np.isnan(self.tail).all() else {}
        for name, k in (("ECE top 10", KEPT_HITS), ("ECE top 1", 1)):
            given = ~np.isnan(self.probability[:, :k])
            if given.any():
                chosen = self.probability[:, :k][given], self.hits[:, :k][given]
                found[name] = round(expected_calibration_error(*chosen), 6)
        return found

    def save(self, path: Path) -> None:
        """Write atomically."""
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".tmp.npz")
        np.savez_compressed(temporary, **vars(self))
        temporary.replace(path)

    @classmethod
    def load(cls, path: Path) -> Kept:
        with np.load(path) as arrays:
            return cls(**arrays)


def tail_recall(labels: np.ndarray, truth: csr_matrix, train: csr_matrix) -> np.ndarray:
    """R@10 of each point over its tail labels, NaN if it has none.

    >>> train = csr_matrix(np.array([[1, 0]] * 6, dtype=bool))  # label 0 occurs 6 times, label 1 never
    >>> truth = csr_matrix(np.array([[1, 1], [1, 0], [0, 1]], dtype=bool))
    >>> tail_recall(np.array([[1, 0], [0, 1], [0, -1]]), truth, train).tolist()
    [1.0, nan, 0.0]
    """
    rare = np.bincount(train.indices, minlength=train.shape[1]) <= TAIL_FREQUENCY  # (L,)
    tail = csr_matrix(truth.multiply(rare), dtype=bool)
    tail.eliminate_zeros()
    recall = point_metrics(find_relevant(labels, tail)).select("R@10").numerator[:, 0]
    return np.where(np.diff(tail.indptr) > 0, recall, np.nan)


def paired_difference(ours: list[Kept], theirs: list[Kept]) -> dict[str, list[float]]:
    """[mean, low, high] of ours − theirs in points, with a 95 % bootstrap interval over test points.

    Seeds are averaged per point first, so that only the test set is resampled.
    """
    means = [np.mean([kept.metrics for kept in row], axis=0) for row in (ours, theirs)]
    found = paired(*(PointMetrics(COMPARED, mean, np.ones_like(mean)) for mean in means))
    return {name: [round(v, 3) for v in (d.value, d.low, d.high)] for name, d in found.items()}


def leaks(catalogue: Catalogue) -> dict[str, int] | None:
    """Count the test pairs (a, b) that occur in `train` as (a, b) or (b, a); None unless labels are items.

    Also count the test pairs that share a set, since a model trained on those sets must not be evaluated on
    `test`, and the items of questions that occur in a set, which a model trained on sets has seen.
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
    """The names of the fill-in-the-blank files."""
    return [name for name, part in catalogue.parts.items() if part.kind == "questions"]


def _pairs(catalogue: Catalogue, name: str) -> csr_matrix:
    """The pairs of a split, (items, items) bool."""
    split = catalogue.split(name)
    owner = np.repeat(np.arange(len(split)), np.diff(split.offsets))
    shape = (len(split), len(catalogue.items))
    membership = csr_matrix((np.ones(len(owner), bool), (owner, split.members)), shape=shape)
    return csr_matrix(membership.T @ split.relevance, dtype=bool)


def _together(catalogue: Catalogue, name: str) -> csr_matrix:
    """Which items share a set of this file, (items, items) bool."""
    sets = catalogue.parts[name].table().column("items").to_pylist()
    pairs = [pair for ids in sets for pair in combinations(catalogue.items.rows(ids), 2)]
    rows = np.array(pairs, np.int64).reshape(-1, 2)
    both = np.concatenate([rows, rows[:, ::-1]])
    shape = (len(catalogue.items),) * 2
    return csr_matrix((np.ones(len(both), bool), (both[:, 0], both[:, 1])), shape=shape)
