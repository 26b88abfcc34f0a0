"""Breakdowns of metrics agree with simple loops."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from mufin import Catalogue, Item
from mufin.errors import UsageError
from mufin.evaluate import metrics
from mufin.evaluate.bins import (
    labels_by_category,
    popularity_bins,
    precision_by_category,
    recall_contributions,
)
from mufin.evaluate.per_point import find_relevant


def long_tail(seed: int, n: int = 400, labels: int = 300) -> csr_matrix:
    """Relevance with label frequencies proportional to 1 / (l + 5)."""
    rng = np.random.default_rng(seed)
    return csr_matrix(rng.random((n, labels)) < 1 / (np.arange(labels) + 5))


@pytest.mark.parametrize("bins", [1, 3, 5])
@pytest.mark.parametrize("seed", range(3))
def test_bins_hold_equal_volume_in_order_of_frequency(seed: int, bins: int) -> None:
    train = long_tail(seed)
    frequency = np.asarray(train.sum(axis=0)).ravel()
    number = popularity_bins(train, bins)
    volume = np.bincount(number, frequency, minlength=bins)
    assert abs(volume - train.nnz / bins).max() <= frequency.max()
    order = np.argsort(frequency, kind="stable")
    assert (np.diff(number[order]) >= 0).all()  # bin 0 is the rarest


def test_bins_at_the_edges() -> None:
    assert popularity_bins(csr_matrix(np.zeros((2, 3), bool))).tolist() == [0, 0, 0]
    assert popularity_bins(csr_matrix([[1]], dtype=bool), bins=1).tolist() == [0]
    assert popularity_bins(csr_matrix([[1, 0], [1, 0]], dtype=bool), bins=2).tolist() == [1, 0]
    with pytest.raises(UsageError, match="bins is 0"):
        popularity_bins(csr_matrix([[1]], dtype=bool), bins=0)


@pytest.mark.parametrize("k", [1, 10])
@pytest.mark.parametrize("seed", range(3))
def test_contributions_sum_to_recall(seed: int, k: int) -> None:
    truth, number = long_tail(seed), popularity_bins(long_tail(seed + 10))
    predicted = np.argsort(np.random.default_rng(seed).random(truth.shape) - truth.toarray() / 2, axis=1)[
        :, :20
    ]
    expected = np.zeros(5)
    for row, point in zip(predicted.tolist(), truth.toarray(), strict=True):
        relevant = point.nonzero()[0].tolist()
        for label in row[:k]:
            if label in relevant:
                expected[number[label]] += 1 / len(relevant) / len(predicted)
    contributions = recall_contributions(predicted, truth, number, k)
    assert contributions == pytest.approx(expected)
    assert contributions.sum() == pytest.approx(metrics.recall(find_relevant(predicted, truth), k)[k - 1])


def test_every_label_needs_a_bin() -> None:
    with pytest.raises(UsageError, match="for 2 labels"):
        recall_contributions([[0]], csr_matrix([[1, 0]], dtype=bool), [0])


def test_precision_of_each_category_is_that_of_its_datapoints() -> None:
    truth = long_tail(3)
    rng = np.random.default_rng(3)
    predicted = np.argsort(rng.random(truth.shape) - truth.toarray() / 2, axis=1)[:, :8]
    predicted[::3, 4:] = -1
    categories = rng.choice(["desk", "lamp", "chair"], truth.shape[0]).tolist()
    table = precision_by_category(predicted, truth, categories, k=5)
    assert list(table) == ["chair", "desk", "lamp"]
    for name, value in table.items():
        rows = [i for i, category in enumerate(categories) if category == name]
        assert value == pytest.approx(metrics.precision(find_relevant(predicted[rows], truth[rows]), 5)[4])
    with pytest.raises(UsageError, match="1 categories for 400"):
        precision_by_category(predicted, truth, ["desk"])


def test_labels_are_counted_by_their_own_category() -> None:
    items = [Item(str(i), ["t"], category=name) for i, name in enumerate(["desk", "lamp", "desk", None])]
    labels = Catalogue.build(items, train={"0": ["1"]}).labels
    names = ["desk", "lamp", "none", "shoe"]
    assert [*labels_by_category(labels, "category", names).values()] == [2, 1, 1, 0]
    assert [*labels_by_category(labels, "colour", names).values()] == ["–"] * 4
