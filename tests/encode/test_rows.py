"""Rows of what signals read: selected, joined and multiplied as SciPy does it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix, random_array, vstack

from mufin.encode import rows as module
from mufin.encode.rows import SparseRows, _products_by_lookup, _transpose, blocks, normalised, products
from mufin.retrieve.shortlist import among, pair_keys
from mufin.signals.base import marked


def made(n: int, width: int = 40, seed: int = 0) -> csr_matrix:
    """Random rows; some are empty."""
    found = random_array((n, width), density=0.08, rng=np.random.default_rng(seed), dtype=np.float32)
    return normalised(csr_matrix(found))


def same(rows: SparseRows, matrix: csr_matrix) -> None:
    assert rows.csr.shape == matrix.shape
    assert rows.offsets.dtype == torch.int64
    assert rows.csr.has_sorted_indices
    np.testing.assert_allclose(rows.csr.toarray(), matrix.toarray(), atol=1e-6)


def test_rows_are_taken_spread_joined_and_turned() -> None:
    matrix, other = made(30), made(7, seed=1)
    rows = SparseRows.of(matrix)
    chosen = np.array([4, 29, 0, 4, 11])
    same(rows.take(chosen), matrix[chosen])
    same(rows.take(chosen[:0]), matrix[chosen[:0]])
    same(rows._taken(torch.from_numpy(chosen)), matrix[chosen])
    same(rows.part(3, 9), matrix[3:9])
    same(rows.part(9, 9), matrix[9:9])
    same(rows.concat(SparseRows.of(other)), csr_matrix(vstack([matrix, other])))
    same(SparseRows.none(40).concat(rows), matrix)
    places = np.array([1, 2, 5, 8, 9, 11, 12])
    empty = np.zeros((14, 40), np.float32)
    empty[places] = other.toarray()
    same(SparseRows.of(other).spread(places, 14), csr_matrix(empty))
    same(rows.T, csr_matrix(matrix.T))
    same(_transpose(rows), csr_matrix(matrix.T))
    assert rows.row.tolist() == matrix.tocoo().row.tolist()


@pytest.mark.parametrize("kind", ["unit", "set"])
def test_groups_unite_their_rows(kind: str) -> None:
    matrix = made(9)
    if kind == "set":
        matrix = matrix.sign()
    offsets, members = np.array([0, 2, 2, 5]), np.array([0, 3, 8, 1, 1])
    sums = np.stack([matrix[members[a:b]].toarray().sum(0) for a, b in ((0, 2), (2, 2), (2, 5))])
    wanted = np.sign(sums)
    if kind == "unit":
        wanted = sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-12)
    same(SparseRows.of(matrix, kind).grouped(offsets, members), csr_matrix(wanted))  # type: ignore[arg-type]


@pytest.mark.parametrize("at_a_time", [1, 50, 1 << 24])
def test_products_with_chosen_rows_are_those_of_all(at_a_time: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CELLS", at_a_time)
    queries, others = made(12, seed=2), made(50, seed=3)
    chosen = np.random.default_rng(0).integers(-1, 50, (12, 8))
    wanted = np.take_along_axis((queries @ others.T).toarray(), np.maximum(chosen, 0), 1) * (chosen >= 0)
    asked, among = SparseRows.of(queries), SparseRows.of(others)
    rows = torch.from_numpy(chosen)
    np.testing.assert_allclose(products(asked, among, rows), wanted, atol=1e-6)
    at_once = _products_by_lookup(asked, among, rows.clamp(min=0)).masked_fill(rows < 0, 0.0)
    np.testing.assert_allclose(at_once, wanted, atol=1e-6)
    nothing = SparseRows.of(csr_matrix((12, 40), dtype=np.float32))
    for find in (products, _products_by_lookup):
        assert not find(nothing, among, rows.clamp(min=0)).any()
        assert find(asked, among, rows[:, :0]).shape == (12, 0)


def test_blocks_hold_all_queries() -> None:
    assert blocks([0, 0, 5, 0], 3) == [(0, 2), (2, 4)]
    assert blocks([7], 3) == [(0, 1)]
    assert blocks([], 3) == []


def test_pairs_of_a_relation_are_found_by_key() -> None:
    relation = csr_matrix(np.random.default_rng(1).random((6, 9)) < 0.3)
    relation.data[0] = False  # stored, but no pair
    labels = np.random.default_rng(2).integers(-1, 9, (6, 5))
    wanted = np.take_along_axis(relation.toarray(), np.maximum(labels, 0), 1) & (labels >= 0)
    assert marked(torch.from_numpy(labels), relation).tolist() == wanted.tolist()
    assert len(pair_keys(relation)) == relation.nnz - 1
    assert not among(torch.zeros(0, dtype=torch.int64), torch.arange(3)).any()
