"""napkinXC (Jasinska-Kobus et al., 2020) on TF-IDF: a probabilistic label tree, and one-vs-rest."""

from __future__ import annotations

import hashlib
import tempfile
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from mufin import Catalogue
from mufin.encode.cache_folder import cache_folder
from mufin.evaluate.score import DEPTH
from peers.common import allowed, extra, tfidf, threads

BLOCK_LABELS = 2000  # trained at a time in one-vs-rest


def plt(catalogue: Catalogue, seed: int, **settings: Any) -> np.ndarray:
    """A tree of logistic regressions over labels clustered by their training texts."""
    from napkinxc.models import PLT

    train, test = catalogue.split("train"), catalogue.split("test")
    points, queries = tfidf(catalogue)
    labelled = np.flatnonzero(np.diff(train.relevance.indptr))  # the tree needs points with labels
    settings |= {"seed": seed}
    labels, _ = _ranked(
        PLT, points[labelled], train.relevance[labelled], queries, DEPTH + extra(test.exclude), settings
    )
    return allowed(labels, test.exclude)


def one_vs_rest(catalogue: Catalogue, seed: int, liblinear_c: float, **tree: Any) -> np.ndarray:
    """One logistic regression per label; settings of the tree are ignored.

    Labels are independent, so they are trained in blocks, which are cached.
    """
    from napkinxc.models import BR  # OVR is for points with a single label

    train, test = catalogue.split("train"), catalogue.split("test")
    points, queries = tfidf(catalogue)
    k, settings = DEPTH + extra(test.exclude), {"liblinear_c": liblinear_c}
    labels, scores = [], []
    for start in range(0, train.relevance.shape[1], BLOCK_LABELS):
        relation = csr_matrix(train.relevance[:, start : start + BLOCK_LABELS])
        data = (points.data, points.indices, relation.indices, relation.indptr, queries.data, queries.indices)
        digest = hashlib.blake2b(repr((settings, k)).encode(), digest_size=12)
        for array in data:
            digest.update(np.ascontiguousarray(array).tobytes())
        path = cache_folder() / "benchmarks" / "napkinxc" / f"{digest.hexdigest()}.npz"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            found = _ranked(BR, points, relation, queries, k, settings)
            temporary = path.with_suffix(".tmp.npz")
            np.savez_compressed(temporary, labels=found[0], scores=found[1])
            temporary.replace(path)
        with np.load(path) as block:
            labels.append(np.where(block["labels"] >= 0, block["labels"] + start, -1))
            scores.append(block["scores"])
    joined, score = np.concatenate(labels, axis=1), np.concatenate(scores, axis=1)
    best = np.argsort(-score, axis=1, kind="stable")[:, :k]
    return allowed(np.take_along_axis(joined, best, axis=1), test.exclude)


def _ranked(
    kind: Any, points: csr_matrix, relation: csr_matrix, queries: csr_matrix, k: int, settings: dict[str, Any]
) -> tuple[np.ndarray, np.ndarray]:
    """Train, and return the k most probable labels (n, k), padded with −1, and their probabilities."""
    rows = [row.tolist() for row in np.split(relation.indices, relation.indptr[1:-1])]
    with tempfile.TemporaryDirectory() as folder:
        model = kind(folder, threads=threads(), verbose=0, **settings)
        model.fit(points, rows)
        found = model.predict_proba(queries, top_k=k)
    labels = np.full((len(found), k), -1, np.int32)
    scores = np.full((len(found), k), -np.inf, np.float32)
    for i, row in enumerate(found):
        if row:
            labels[i, : len(row)], scores[i, : len(row)] = zip(*row, strict=True)
    return labels, scores
