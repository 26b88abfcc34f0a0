"""Baselines on small examples with a known answer."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from mufin.errors import UsageError
from mufin.evaluate import baselines
from mufin.evaluate.baselines import popularity, tfidf_neighbours

TEXTS = ["oak desk", "oak desks", "floor lamp", "lamp", ""]
RELEVANCE = csr_matrix([[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1], [0, 1, 0, 0]], dtype=bool)


@pytest.mark.parametrize("block", [1, 1 << 23])
def test_popularity_against_a_loop(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baselines, "_DENSE_CELLS", block)
    rng = np.random.default_rng(0)
    train, hidden = rng.random((50, 12)) < 0.3, rng.random((20, 12)) < 0.4
    hidden[0] = True
    order = np.argsort(-train.sum(axis=0), kind="stable").tolist()
    expected = [[label for label in order if not row[label]][:5] for row in hidden]
    predicted = popularity(csr_matrix(train), n=20, k=5, exclude=csr_matrix(hidden))
    assert predicted.tolist() == [row + [-1] * (5 - len(row)) for row in expected]
    assert popularity(csr_matrix(train), n=2, k=5).tolist() == [order[:5]] * 2


def test_popularity_pads_when_k_exceeds_the_labels() -> None:
    assert popularity(RELEVANCE, n=1, k=6).tolist() == [[0, 1, 2, 3, -1, -1]]
    assert popularity(csr_matrix([[1]], dtype=bool), n=2, k=2).tolist() == [[0, -1], [0, -1]]


@pytest.mark.parametrize("block", [1, 1 << 23])
def test_neighbours_vote_for_their_labels(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn")
    monkeypatch.setattr(baselines, "_DENSE_CELLS", block)
    predicted = tfidf_neighbours(TEXTS, RELEVANCE, ["oak desk", "floor lamps", "zzz", ""], k=3, neighbours=2)
    assert predicted[0].tolist() == [0, 1, -1]
    assert predicted[1, 0] == 2
    assert (predicted[2:] == -1).all()  # nothing in common with any training text


def test_neighbours_never_show_excluded_labels() -> None:
    pytest.importorskip("sklearn")
    exclude = csr_matrix([[1, 0, 0, 0]], dtype=bool)
    assert tfidf_neighbours(TEXTS, RELEVANCE, ["oak desk"], 2, 2, exclude).tolist() == [[1, -1]]


def test_texts_too_short_for_character_grams_and_empty_sets() -> None:
    pytest.importorskip("sklearn")
    relevance = csr_matrix([[1, 0], [0, 1]], dtype=bool)
    assert tfidf_neighbours(["a", "b"], relevance, ["b"], k=1).tolist() == [[1]]
    assert tfidf_neighbours(["", " "], relevance, ["b"], k=2).tolist() == [[-1, -1]]
    assert tfidf_neighbours(["a", "b"], relevance, [], k=2).shape == (0, 2)


def test_wrong_uses() -> None:
    with pytest.raises(UsageError, match="k is 0"):
        popularity(RELEVANCE, n=1, k=0)
    with pytest.raises(UsageError, match="5 rows for 2 datapoints"):
        popularity(RELEVANCE, n=2, k=1, exclude=RELEVANCE)
    with pytest.raises(UsageError, match="1 training texts"):
        tfidf_neighbours(["a"], RELEVANCE, ["b"], k=1)
    with pytest.raises(UsageError, match="neighbours is 0"):
        tfidf_neighbours(TEXTS, RELEVANCE, ["b"], k=1, neighbours=0)


def test_missing_scikit_learn_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.feature_extraction.text", None)
    with pytest.raises(UsageError, match="scikit-learn"):
        tfidf_neighbours(TEXTS, RELEVANCE, ["desk"], k=1)
