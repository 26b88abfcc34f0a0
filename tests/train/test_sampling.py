"""Which positives and negatives a batch sees: against dense matrices, and by counting what is drawn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

from mufin.retrieve.shortlist import Shortlist
from mufin.train.data import membership
from mufin.train.sampling import ShortlistNegatives, draw_per_row, pairs_of, shared_labels


@pytest.mark.parametrize("seed", range(5))
def test_membership_is_the_dense_matrix(seed: int) -> None:
    rng = np.random.default_rng(seed)
    dense = rng.random((20, 30)) < 0.2
    rows = rng.integers(0, 20, 12)  # with repetitions, in any order
    columns = np.sort(rng.choice(30, rng.integers(1, 30), replace=False))
    found = membership(csr_matrix(dense), rows, columns)
    assert np.array_equal(found.numpy(), dense[rows][:, columns])
    assert not membership(csr_matrix((20, 30), dtype=bool), rows, columns).any()


def test_draw_per_row() -> None:
    rng = np.random.default_rng(0)
    dense = rng.random((8, 12)) < 0.5
    dense[3] = False
    rows = np.array([5, 3, 0, 5, 7])
    counts = np.zeros((5, 12))
    for _ in range(400):
        place, columns = draw_per_row(csr_matrix(dense), rows, 2, rng)
        assert dense[rows[place], columns].all()
        assert len(set(zip(place, columns, strict=True))) == len(place)
        expected = np.minimum(dense[rows].sum(1), 2)
        assert np.bincount(place, minlength=5).tolist() == expected.tolist()
        counts[place, columns] += 1
    for row, count in zip(rows, counts, strict=True):
        drawn = count[dense[row]]
        if len(drawn) > 2:
            assert drawn.min() > 0.6 * drawn.mean()  # every column has its turn
            assert drawn.max() < 1.5 * drawn.mean()


def test_draw_per_row_keeps_what_may_be_drawn() -> None:
    relation = csr_matrix(np.ones((3, 5), bool))
    rows = np.array([2, 0])
    place, columns = pairs_of(relation, rows)
    keep = (columns != 1) & (place == 0)
    for seed in range(20):
        drawn_place, drawn = draw_per_row(relation, rows, 9, np.random.default_rng(seed), keep)
        assert drawn_place.tolist() == [0] * 4
        assert sorted(drawn) == [0, 2, 3, 4]


def test_shortlist_negatives() -> None:
    """Never a positive, an excluded label or a gap; every other label of R_i equally often."""
    rng = np.random.default_rng(1)
    n, n_labels, k = 6, 20, 9
    labels = np.stack([rng.choice(n_labels, k, replace=False) for _ in range(n)])
    labels[0, 5:] = -1
    labels[1] = -1
    relevance, exclude = (rng.random((n, n_labels)) < 0.2 for _ in range(2))
    relevance[:, n_labels - 1] = True  # its key is next to that of a gap in the next row
    negatives = ShortlistNegatives(
        Shortlist(torch.tensor(labels), torch.zeros(n, k)), csr_matrix(relevance), csr_matrix(exclude)
    )
    points, counts = np.array([4, 0, 1, 2, 3, 5, 0]), np.zeros((n, n_labels))
    for _ in range(600):
        drawn = negatives.draw(points, 3, rng)
        for point, row in zip(points, drawn, strict=True):
            there = row[row >= 0]
            allowed = [
                l for l in labels[point] if l >= 0 and not relevance[point, l] and not exclude[point, l]
            ]
            assert set(there) <= set(allowed)
            assert len(set(there)) == len(there) == min(3, len(allowed))
            counts[point, there] += 1
    for row in counts:
        seen = row[row > 0]
        if len(seen) > 3:
            assert seen.min() > 0.75 * seen.mean()
            assert seen.max() < 1.3 * seen.mean()
    assert negatives.draw(points, 50, rng).shape[1] <= 50
    assert negatives.draw(points, 0, rng).shape == (7, 0)


def test_shared_labels() -> None:
    rng = np.random.default_rng(2)
    wanted = np.array([7, -1, 3, 7, 99])
    assert shared_labels(100, wanted, 0, rng).tolist() == [3, 7, 99]
    counts = np.zeros(100)
    for _ in range(300):
        labels = shared_labels(100, wanted, 20, rng)
        assert labels.tolist() == sorted(set(labels))
        assert {3, 7, 99} <= set(labels)
        assert len(labels) <= 23
        assert labels.min() >= 0
        counts[labels] += 1
    assert counts.min() > 20
    assert shared_labels(100, wanted, 100, rng).tolist() == list(range(100))
    assert shared_labels(1, np.array([0]), 5, rng).tolist() == [0]
