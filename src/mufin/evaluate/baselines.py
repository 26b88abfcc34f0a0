"""Two baselines: the most popular labels, and TF-IDF nearest neighbours of the text.

Both return label rows (n, k), best first, padded with −1 if fewer than k labels are eligible. `exclude`
(n, L) marks labels that must not be predicted for a datapoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_matrix, hstack

from mufin.data.catalogue import Catalogue
from mufin.data.items import Items
from mufin.data.split import Split
from mufin.errors import UsageError
from mufin.evaluate.per_point import IntArray

_MOST_PAIRS = 200_000_000  # of points compared by words, a minute or two
_DENSE_CELLS = 1 << 23  # of the largest dense block: 32 MB of float32


def baselines(catalogue: Catalogue, points: Split, k: int) -> dict[str, IntArray]:
    """The labels (n, k) of each baseline by name, if the data allow it.

    Both need a split `train` other than the one evaluated; TF-IDF needs texts and not too many points.
    """
    train = catalogue.split("train") if "train" in catalogue.splits else None
    if train is None or train is points or not len(train):
        return {}
    found = {"Popularity": popularity(train.relevance, len(points), k, points.exclude)}
    if len(train) * len(points) > _MOST_PAIRS:
        return found
    known, asked = _texts(catalogue.items, train), _texts(catalogue.items, points)
    if any(known) and any(asked):
        near = tfidf_neighbours(known, train.relevance, asked, k, exclude=points.exclude)
        found["TF-IDF neighbours"] = near
    return found


def _texts(items: Items, points: Split) -> list[str]:
    """The texts of the items of each datapoint, joined."""
    texts = items.texts.take(points.members).to_pylist()
    joined = [" ".join(some or ()).strip() for some in texts]
    ends = points.offsets.tolist()
    return [" ".join(joined[a:b]).strip() for a, b in pairwise(ends)]


def popularity(train_relevance: csr_matrix, n: int, k: int, exclude: csr_matrix | None = None) -> IntArray:
    """The k most frequent training labels for each of n datapoints, without its excluded ones.

    >>> train = csr_matrix([[0, 1, 1], [0, 0, 1]], dtype=bool)  # seen 0, 1, 2 times
    >>> popularity(train, n=2, k=2, exclude=csr_matrix([[0, 0, 0], [0, 0, 1]], dtype=bool)).tolist()
    [[2, 1], [1, 0]]
    """
    _check(k, n, exclude)
    frequency = np.asarray(train_relevance.astype(bool).sum(axis=0), dtype=np.int64).ravel()  # (L,)
    depth = k if exclude is None else k + int(np.diff(exclude.indptr).max(initial=0))
    candidates = np.argsort(-frequency, kind="stable")[:depth]  # enough for k after any exclusion
    predicted = np.full((n, k), -1, np.int64)
    if exclude is None:
        predicted[:, : len(candidates)] = candidates
        return predicted
    step = max(1, _DENSE_CELLS // max(1, len(candidates)))
    for start in range(0, n, step):
        hidden = exclude[start : start + step, candidates].toarray().astype(bool)  # (b, depth)
        allowed_first = np.argsort(hidden, axis=1, kind="stable")[:, :k]
        labels = np.where(np.take_along_axis(hidden, allowed_first, axis=1), -1, candidates[allowed_first])
        predicted[start : start + step, : labels.shape[1]] = labels
    return predicted


def tfidf_neighbours(
    train_texts: Sequence[str],
    train_relevance: csr_matrix,
    test_texts: Sequence[str],
    k: int,
    neighbours: int = 50,
    exclude: csr_matrix | None = None,
) -> IntArray:
    """The labels of the nearest training texts; each neighbour votes with its squared similarity.

    vote(l) = Σ_{i among the nearest} ⟨x, x_i⟩² y_il, x = TF-IDF of word 1–2-grams and character 3–5-grams.
    Squaring keeps many distant neighbours from outvoting a few near ones.
    """
    _check(k, len(test_texts), exclude)
    if len(train_texts) != train_relevance.shape[0]:
        raise UsageError(f"{len(train_texts)} training texts for {train_relevance.shape[0]} relevance rows")
    if neighbours < 1:
        raise UsageError(f"neighbours is {neighbours}; it must be at least 1")
    predicted = np.full((len(test_texts), k), -1, np.int64)
    if not len(test_texts) or not any(text.strip() for text in train_texts):
        return predicted
    train, test = tfidf(train_texts, test_texts)
    relevance = csr_matrix(train_relevance, dtype=np.float32)
    columns = csr_matrix(train.T)  # (V, N)
    step = max(1, _DENSE_CELLS // max(1, len(train_texts)))
    for start in range(0, len(test_texts), step):
        nearest = _nearest((test[start : start + step] @ columns).toarray(), neighbours)  # (b, N)
        votes = csr_matrix(nearest.power(2) @ relevance)  # (b, L)
        if exclude is not None:
            votes = csr_matrix(votes - votes.multiply(exclude[start : start + step]))
        predicted[start : start + step] = _top_labels(votes, k)
    return predicted


def tfidf(train_texts: Sequence[str], test_texts: Sequence[str]) -> tuple[csr_matrix, csr_matrix]:
    """Concatenate word and character TF-IDF, (N, V) and (n, V), each normalised on its own."""
    try:
        from sklearn.feature_extraction.text import TfidfVectorizer
    except ImportError as error:
        raise UsageError(
            "the TF-IDF baseline needs scikit-learn, which is not installed; run: pip install 'mufin[report]'"
        ) from error
    halves = [
        TfidfVectorizer(ngram_range=(1, 2), token_pattern=r"\S+", sublinear_tf=True, dtype=np.float32),
        TfidfVectorizer(ngram_range=(3, 5), analyzer="char", sublinear_tf=True, dtype=np.float32),
    ]
    padded = [
        [f" {text} " for text in texts] for texts in (train_texts, test_texts)
    ]  # so that even "a" has a 3-gram
    train = hstack([half.fit_transform(padded[0]) for half in halves], format="csr")
    test = hstack([half.transform(padded[1]) for half in halves], format="csr")
    return csr_matrix(train), csr_matrix(test)


def _nearest(similarity: npt.NDArray[np.float32], neighbours: int) -> csr_matrix:
    """Keep the largest `neighbours` similarities of each row, (b, N) sparse."""
    count = min(neighbours, similarity.shape[1])
    kept = np.argpartition(-similarity, count - 1, axis=1)[:, :count]  # (b, count)
    values = np.take_along_axis(similarity, kept, axis=1)
    ends = np.arange(0, kept.size + 1, count)
    return csr_matrix((values.ravel(), kept.ravel(), ends), shape=similarity.shape)


def _top_labels(votes: csr_matrix, k: int) -> IntArray:
    """The k columns with the largest positive values of each row, (b, k), padded with −1."""
    votes.sort_indices()  # ties go to the lower label
    rows = np.repeat(np.arange(votes.shape[0]), np.diff(votes.indptr))
    order = np.lexsort((-votes.data, rows))
    ranks = np.arange(len(rows)) - votes.indptr[rows]
    kept = (ranks < k) & (votes.data[order] > 0)
    top = np.full((votes.shape[0], k), -1, np.int64)
    top[rows[kept], ranks[kept]] = votes.indices[order][kept]
    return top


def _check(k: int, n: int, exclude: csr_matrix | None) -> None:
    if k < 1:
        raise UsageError(f"k is {k}; it must be at least 1")
    if exclude is not None and exclude.shape[0] != n:
        raise UsageError(f"exclude has {exclude.shape[0]} rows for {n} datapoints; expected one each")
