"""Relation against dense matrices, and by counting what is drawn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

from mufin.data.relation import Relation

NONE = Relation.of(csr_matrix((20, 30), dtype=bool))


def made(seed: int) -> tuple[np.random.Generator, np.ndarray, Relation]:
    """A random matrix with an empty row, an empty column and a full row, and the same as a relation."""
    rng = np.random.default_rng(seed)
    dense = rng.random((20, 30)) < 0.2
    dense[3], dense[7], dense[:, 11] = False, True, False
    return rng, dense, Relation.of(csr_matrix(dense))


def dense_of(relation: Relation) -> np.ndarray:
    found = np.zeros((len(relation), relation.width), bool)
    found[relation.rows.numpy(), relation.columns.numpy()] = True
    assert found.sum() == len(relation.columns)
    return found


@pytest.mark.parametrize("seed", range(5))
def test_rows_are_those_of_the_dense_matrix(seed: int) -> None:
    rng, dense, relation = made(seed)
    rows = torch.from_numpy(rng.integers(0, 20, 12))  # with repetitions, in any order
    place, slot, column = relation.pairs_of(rows)
    expected = [(i, s, c) for i, row in enumerate(rows) for s, c in enumerate(np.flatnonzero(dense[row]))]
    assert list(zip(place.tolist(), slot.tolist(), column.tolist(), strict=True)) == expected
    assert relation.sizes_of(rows).tolist() == dense[rows.numpy()].sum(1).tolist()
    assert np.array_equal(dense_of(relation), dense)
    assert np.array_equal(dense_of(relation.transposed()), dense.T)
    assert np.array_equal(dense_of(relation.take(rows)), dense[rows.numpy()])
    keep = torch.from_numpy(rng.random(len(relation.columns)) < 0.5)
    left = dense.copy()
    left[relation.rows[~keep], relation.columns[~keep].long()] = False
    assert np.array_equal(dense_of(relation.only(keep)), left)


@pytest.mark.parametrize("seed", range(5))
def test_membership_is_the_dense_matrix(seed: int) -> None:
    rng, dense, relation = made(seed)
    rows = torch.from_numpy(rng.integers(0, 20, 12))
    columns = torch.from_numpy(np.sort(rng.choice(30, rng.integers(1, 30), replace=False)))
    for each in (relation, relation.transposed().transposed()):
        assert np.array_equal(each.membership(rows, columns).numpy(), dense[np.ix_(rows, columns)])
    assert relation.membership(rows, columns[:0]).shape == (12, 0)
    assert not NONE.membership(rows, columns).any()
    asked = torch.from_numpy(rng.integers(-1, 30, (12, 6)))
    expected = dense[rows.numpy()[:, None], asked.numpy()] & (asked >= 0).numpy()
    assert np.array_equal(relation.holds(rows, asked).numpy(), expected)
    assert not NONE.holds(rows, asked).any()


def test_columns_need_not_be_sorted() -> None:
    mixed = csr_matrix((np.ones(3, bool), np.array([4, 1, 0]), np.array([0, 2, 3])), shape=(2, 5))
    assert Relation.of(mixed).holds(torch.arange(2), torch.tensor([[1, 4], [0, 4]])).tolist() == [
        [True, True],
        [True, False],
    ]


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_what_is_drawn(n: int) -> None:
    """Only columns of the row, none twice, as many as there are, every subset equally often."""
    _, dense, relation = made(0)
    generator = torch.Generator().manual_seed(0)
    rows = torch.tensor([5, 3, 0, 5, 7, 12])
    counts = np.zeros((len(rows), 30))
    for _ in range(600):
        drawn = relation.draw_per_row(rows, n, generator).numpy()
        assert drawn.shape == (len(rows), n)
        for place, (row, columns) in enumerate(zip(rows.tolist(), drawn, strict=True)):
            there = columns[columns >= 0]
            assert dense[row, there].all()
            assert len(set(there)) == len(there) == min(n, dense[row].sum())
            counts[place, there] += 1
    for row, count in zip(rows.tolist(), counts, strict=True):
        share = min(n, dense[row].sum()) / max(1, dense[row].sum())  # of the draws that have a column
        deviation = np.sqrt(600 * share * (1 - share))
        assert (np.abs(count[dense[row]] - 600 * share) <= 4.5 * deviation + 1e-9).all()


def test_pairs_are_drawn_evenly() -> None:
    """Two of four: each of the six pairs has its turn."""
    relation = Relation(torch.tensor([0, 4]), torch.tensor([2, 3, 5, 8]), 9)
    generator = torch.Generator().manual_seed(0)
    drawn = relation.draw_per_row(torch.zeros(6000, dtype=torch.int64), 2, generator).sort(dim=1).values
    pairs, counts = drawn.unique(dim=0, return_counts=True)
    assert len(pairs) == 6
    assert ((counts - 1000).abs() < 130).all()


def test_nothing_to_draw_from() -> None:
    generator = torch.Generator().manual_seed(0)
    assert (NONE.draw_per_row(torch.arange(4), 2, generator) == -1).all()
    assert NONE.draw_per_row(torch.arange(0), 2, generator).shape == (0, 2)


def test_the_same_seed_draws_the_same() -> None:
    _, _, relation = made(1)
    one, other, third = (
        relation.draw_per_row(torch.arange(20), 3, torch.Generator().manual_seed(seed)) for seed in (4, 4, 5)
    )
    assert torch.equal(one, other)
    assert not torch.equal(one, third)
