"""Shared by the peers: texts, TF-IDF, and label rows from scores."""

from __future__ import annotations

import os

import numpy as np
from scipy.sparse import csr_matrix

from mufin import Catalogue
from mufin.data.split import Split
from mufin.evaluate import baselines
from mufin.evaluate.score import DEPTH


def texts_of(catalogue: Catalogue, points: Split) -> list[str]:
    """The texts of each point, joined."""
    lines = [" ".join(texts or ()) for texts in catalogue.items.texts.to_pylist()]
    groups = np.split(points.members, points.offsets[1:-1])
    return [" ".join(lines[int(row)] for row in group).strip() for group in groups]


def tfidf(catalogue: Catalogue) -> tuple[csr_matrix, csr_matrix]:
    """TF-IDF of word 1–2-grams and character 3–5-grams of train and test points, (N, V) and (n, V)."""
    return baselines.tfidf(*(texts_of(catalogue, catalogue.split(name)) for name in ("train", "test")))


def threads() -> int:
    """The number of threads that `accuracy.py` assigns to each of its processes."""
    return int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1)


def allowed(ranked: np.ndarray, exclude: csr_matrix, k: int = DEPTH) -> np.ndarray:
    """Remove excluded labels from label rows (n, m), best first, padded with −1, and keep the first k."""
    rows = np.full((len(ranked), k), -1, np.int64)
    for i, labels in enumerate(ranked.tolist()):
        hidden = {-1, *exclude.indices[exclude.indptr[i] : exclude.indptr[i + 1]].tolist()}
        kept = [label for label in labels if label not in hidden][:k]
        rows[i, : len(kept)] = kept
    return rows


def extra(exclude: csr_matrix) -> int:
    """How many more labels to request, so that k remain after exclusion."""
    return int(np.diff(exclude.indptr).max(initial=0))


def best_columns(scores: np.ndarray, exclude: csr_matrix, k: int = DEPTH) -> np.ndarray:
    """The k best eligible columns of each row of dense scores (b, L)."""
    hidden = exclude.toarray().astype(bool)
    scores = np.where(hidden, -np.inf, scores)
    k = min(k, scores.shape[1])
    top = np.argpartition(-scores, k - 1, axis=1)[:, :k]
    order = np.argsort(-np.take_along_axis(scores, top, axis=1), axis=1, kind="stable")
    rows = np.take_along_axis(top, order, axis=1)
    return np.where(np.isinf(np.take_along_axis(scores, rows, axis=1)), -1, rows)
