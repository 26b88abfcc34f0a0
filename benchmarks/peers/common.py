"""What the peers share: texts, TF-IDF, and from scores to label rows."""

from __future__ import annotations

import os

import numpy as np
from scipy.sparse import csr_matrix

from mufin import Catalogue
from mufin.data.split import Split
from mufin.evaluate import baselines
from mufin.evaluate.score import DEPTH


def texts_of(catalogue: Catalogue, points: Split) -> list[str]:
    """All texts of each point as one line."""
    lines = [" ".join(texts or ()) for texts in catalogue.items.texts.to_pylist()]
    groups = np.split(points.members, points.offsets[1:-1])
    return [" ".join(lines[int(row)] for row in group).strip() for group in groups]


def tfidf(catalogue: Catalogue) -> tuple[csr_matrix, csr_matrix]:
    """Word 1–2-grams and character 3–5-grams of the train and the test points, (N, V) and (n, V)."""
    return baselines.tfidf(*(texts_of(catalogue, catalogue.split(name)) for name in ("train", "test")))


def threads() -> int:
    """How many a peer may use: as many as `accuracy.py` leaves to each of its processes."""
    return int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1)


def allowed(ranked: np.ndarray, exclude: csr_matrix, k: int = DEPTH) -> np.ndarray:
    """Label rows (n, m), best first, −1 for none, cut to k without what is never shown for the point."""
    rows = np.full((len(ranked), k), -1, np.int64)
    for i, labels in enumerate(ranked.tolist()):
        hidden = {-1, *exclude.indices[exclude.indptr[i] : exclude.indptr[i + 1]].tolist()}
        kept = [label for label in labels if label not in hidden][:k]
        rows[i, : len(kept)] = kept
    return rows


def extra(exclude: csr_matrix) -> int:
    """How many more labels to ask for, so that enough are left after the exclusion."""
    return int(np.diff(exclude.indptr).max(initial=0))


def best_columns(scores: np.ndarray, exclude: csr_matrix, k: int = DEPTH) -> np.ndarray:
    """The k best columns of each row of dense scores (b, L), without the excluded ones."""
    hidden = exclude.toarray().astype(bool)
    scores = np.where(hidden, -np.inf, scores)
    k = min(k, scores.shape[1])
    top = np.argpartition(-scores, k - 1, axis=1)[:, :k]
    order = np.argsort(-np.take_along_axis(scores, top, axis=1), axis=1, kind="stable")
    rows = np.take_along_axis(top, order, axis=1)
    return np.where(np.isinf(np.take_along_axis(scores, rows, axis=1)), -1, rows)
