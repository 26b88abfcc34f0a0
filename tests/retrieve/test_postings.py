"""Rows most like a sparse query: exact while few cells are read, nearly so beyond."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_matrix, random_array

from mufin.retrieve import postings
from mufin.retrieve.postings import most_alike
from mufin.rows import normalised


def unit_rows(n: int, columns: int, density: float, seed: int) -> csr_matrix:
    return normalised(csr_matrix(random_array((n, columns), density=density, rng=seed, dtype=np.float32)))


def test_the_most_alike_against_all_products() -> None:
    rows, queries = unit_rows(400, 60, 0.1, 1), unit_rows(9, 60, 0.1, 2)
    found, alike = most_alike(queries, rows, csr_matrix(rows.T), 20)
    every = (queries @ rows.T).toarray()
    for query, (some, like) in enumerate(zip(found, alike, strict=True)):
        truth = np.sort(every[query])[::-1][:20]
        np.testing.assert_allclose(like, truth, atol=1e-6)
        np.testing.assert_allclose(every[query][some], like, atol=1e-6)


def test_who_shares_nothing_is_not_found() -> None:
    rows = csr_matrix(np.array([[1.0, 0, 0], [0, 1, 0], [0, 0.8, 0.6]], np.float32))
    asked = csr_matrix(np.array([[0.0, 1, 0], [0, 0, 0]], np.float32))
    found, alike = most_alike(asked, rows, csr_matrix(rows.T), 3)
    assert found.tolist() == [[1, 2, -1], [-1, -1, -1]]
    assert alike[0].tolist() == pytest.approx([1, 0.8, -np.inf])


def test_beyond_the_budget_likeness_stays_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns of many rows are left out of the search, not out of the score."""
    weight = 1 / (1 + np.arange(60)) ** 0.5  # some columns are everywhere
    drawn = np.random.default_rng(3).random((2000, 60)) < 0.3 * weight
    rows = normalised(csr_matrix(drawn * (1 / weight).astype(np.float32)))
    queries = rows[:50]
    columns = csr_matrix(rows.T)
    truth, _ = most_alike(queries, rows, columns, 10)
    monkeypatch.setattr(postings, "BUDGET", 400)
    found, alike = most_alike(queries, rows, columns, 10)
    kept = [len({*a.tolist()} & {*b.tolist()}) / 10 for a, b in zip(found, truth, strict=True)]
    assert 0.7 < np.mean(kept) < 1
    every = (queries @ rows.T).toarray()
    there = found >= 0
    np.testing.assert_allclose(alike[there], np.take_along_axis(every, found, 1)[there], atol=1e-5)


@pytest.mark.parametrize("kind", ["spread", "ties", "few above zero"])
def test_the_greatest_of_many_by_a_bar(kind: str) -> None:
    rng = np.random.default_rng(3)
    values = rng.random(50_000).astype(np.float32)
    if kind == "ties":
        values = np.round(values, 2)
    if kind == "few above zero":
        values[rng.random(len(values)) < 0.999] = 0
    found = postings._greatest(values, 300)
    assert len(found) == 300
    assert (np.diff(found) > 0).all()
    np.testing.assert_array_equal(np.sort(values[found]), np.sort(values)[-300:])
