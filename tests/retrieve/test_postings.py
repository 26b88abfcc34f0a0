"""Rows most like a sparse query: exact while few cells are read, nearly so beyond."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix, random_array
from torch import Tensor

from mufin.encode import rows as encoded
from mufin.encode.rows import SparseRows, normalised
from mufin.retrieve import postings

Search = Callable[[SparseRows, SparseRows, int], tuple[Tensor, Tensor]]
WAYS = [postings._search_on_cpu, postings._search_on_gpu]  # of a CPU and of a GPU


def unit_rows(n: int, columns: int, density: float, seed: int) -> csr_matrix:
    return normalised(csr_matrix(random_array((n, columns), density=density, rng=seed, dtype=np.float32)))


@pytest.mark.parametrize("search", WAYS)
@pytest.mark.parametrize("n", [20, 500])
def test_the_most_alike_against_all_products(search: Search, n: int) -> None:
    rows, queries = unit_rows(400, 60, 0.1, 1), unit_rows(9, 60, 0.1, 2)
    found, alike = search(SparseRows.of(queries), SparseRows.of(rows), n)
    assert found.shape == alike.shape == (9, n)
    every = (queries @ rows.T).toarray()
    for query, (some, like) in enumerate(zip(found.numpy(), alike.numpy(), strict=True)):
        truth = np.sort(every[query][every[query] > 0])[::-1][:n]
        assert (some >= 0).sum() == len(truth)
        assert len(set(some[some >= 0].tolist())) == len(truth)
        np.testing.assert_allclose(like[some >= 0], truth, atol=1e-6)
        np.testing.assert_allclose(every[query][some[some >= 0]], truth, atol=1e-6)


@pytest.mark.parametrize("search", WAYS)
def test_who_shares_nothing_is_not_found(search: Search) -> None:
    rows = csr_matrix(np.array([[1.0, 0, 0], [0, 1, 0], [0, 0.8, 0.6]], np.float32))
    asked = csr_matrix(np.array([[0.0, 1, 0], [0, 0, 0]], np.float32))
    found, alike = search(SparseRows.of(asked), SparseRows.of(rows), 3)
    assert found.tolist() == [[1, 2, -1], [-1, -1, -1]]
    assert alike[0].tolist() == pytest.approx([1, 0.8, -np.inf])
    none, _ = search(SparseRows.of(csr_matrix((2, 3), dtype=np.float32)), SparseRows.of(rows), 3)
    assert (none == -1).all()


@pytest.mark.parametrize("search", WAYS)
def test_beyond_the_budget_likeness_stays_exact(search: Search, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns of many rows are left out of the search, or hashed together, not so in the score."""
    weight = 1 / (1 + np.arange(60)) ** 0.5  # some columns are everywhere
    drawn = np.random.default_rng(3).random((2000, 60)) < 0.3 * weight
    matrix = normalised(csr_matrix(drawn * (1 / weight).astype(np.float32)))
    rows, queries = SparseRows.of(matrix), SparseRows.of(matrix[:50])
    truth, _ = search(queries, rows, 10)
    monkeypatch.setattr(postings, "CELLS_PER_QUERY", 400)
    monkeypatch.setattr(encoded, "SKETCH_WIDTHS", (16, 16))
    rows = SparseRows.of(matrix)  # without sketches
    found, alike = (part.numpy() for part in search(queries, rows, 10))
    kept = [len({*a.tolist()} & {*b.tolist()}) / 10 for a, b in zip(found, truth, strict=True)]
    assert 0.7 < np.mean(kept) < 1
    every = (matrix[:50] @ matrix.T).toarray()
    there = found >= 0
    np.testing.assert_allclose(alike[there], np.take_along_axis(every, found, 1)[there], atol=1e-5)


def test_both_ways_find_the_same() -> None:
    rows, queries = (SparseRows.of(unit_rows(n, 300, 0.05, n)) for n in (3000, 20))
    (some, like), (others, likewise) = (search(queries, rows, 15) for search in WAYS)
    np.testing.assert_allclose(like, likewise, atol=1e-6)
    assert (some == others).float().mean() > 0.95  # but for ties


def test_of_a_budget_of_one_cell_the_rarest_column_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, queries = (SparseRows.of(unit_rows(n, 300, 0.05, n)) for n in (3000, 20))
    monkeypatch.setattr(postings, "CELLS_PER_QUERY", 1)
    found, _ = postings._search_on_cpu(queries, rows, 15)
    assert (found[:, 0] >= 0).all()


def test_products_of_sketches_are_right_on_average() -> None:
    rows = SparseRows.of(unit_rows(300, 5000, 0.01, 1))
    exact = torch.from_numpy((rows.csr @ rows.csr.T).toarray())
    for width in (256, 4096):
        sketch = encoded.sketched(rows, width).float()
        error = sketch @ sketch.T - exact
        assert abs(float(error.mean())) < 0.2 / width**0.5
        assert float(error.std()) < 1.5 / width**0.5


def test_sketches_grow_with_the_rows() -> None:
    every = unit_rows(50, 300, 0.1, 1)
    first, rest = SparseRows.of(every[:30]), SparseRows.of(every[30:])
    whole = SparseRows.of(every).sketch
    assert torch.equal(first.concat(rest).sketch, whole)
    assert "sketch" not in first.concat(rest).__dict__
    first.sketch  # noqa: B018 - computed once
    assert torch.equal(first.concat(rest).__dict__["sketch"], whole)


def test_many_queries_are_asked_in_blocks() -> None:
    """What a GPU does with a batch, block by block."""
    rows, queries = (SparseRows.of(unit_rows(n, 60, 0.1, n)) for n in (400, 9))
    whole, _ = postings._search_on_gpu(queries, rows, 5)
    some = [postings._search_on_gpu(queries.part(*ends), rows, 5)[0] for ends in ((0, 4), (4, 8), (8, 9))]
    assert torch.equal(torch.cat(some), whole)


@pytest.mark.parametrize("kind", ["spread", "ties", "few above zero"])
def test_the_greatest_of_many_by_a_bar(kind: str) -> None:
    rng = np.random.default_rng(3)
    values = rng.random(50_000).astype(np.float32)
    if kind == "ties":
        values = np.round(values, 2)
    if kind == "few above zero":
        values[rng.random(len(values)) < 0.999] = 0
    found = postings._top(values, 300)
    assert len(found) == 300
    assert (np.diff(found) > 0).all()
    np.testing.assert_array_equal(np.sort(values[found]), np.sort(values)[-300:])
