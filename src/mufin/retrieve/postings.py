"""Postings: which rows of a sparse matrix are most like a sparse query, by way of the columns they share."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from mufin.ragged import Ints

Floats = NDArray[Any]  # numbers of either precision

BUDGET = 1 << 17  # cells that a query looks at; columns of few rows come first, they tell the most
AGAIN = 8  # times as many rows as wanted are scored in full, where columns had to be left out


def most_alike(
    queries: csr_matrix, rows: csr_matrix, columns: csr_matrix, n: int
) -> tuple[Ints, NDArray[np.float32]]:
    """The n rows v_i (M, V) of the greatest ⟨v, v_i⟩ > 0 for each query v, (B, n), best first, and these.

    −1 and −inf behind the last. `columns` (V, M) are the rows turned. Up to BUDGET cells this is exact;
    beyond, the rows most alike by the rarest columns are scored by all of theirs.
    """
    found = np.full((queries.shape[0], n), -1)
    alike = np.full(found.shape, -np.inf, np.float32)
    for number, (first, last) in enumerate(pairwise(queries.indptr)):
        words, weights = queries.indices[first:last], queries.data[first:last]
        some, like = _by_columns(words, weights, rows, columns, n)
        best = _greatest(like, n)
        best = best[np.argsort(-like[best], kind="stable")]
        found[number, : len(best)], alike[number, : len(best)] = some[best], like[best]
    return found, alike


def products(rows: csr_matrix, chosen: Ints, query: NDArray[np.float32]) -> Floats:
    """⟨v, v_i⟩ of a dense query (V,) with the chosen rows (n,) of a sparse matrix (M, V)."""
    lengths, where, values = _cells(rows, chosen)
    return np.bincount(np.repeat(np.arange(len(chosen)), lengths), query[where] * values, len(chosen))


def _by_columns(
    words: NDArray[Any], weights: Floats, rows: csr_matrix, columns: csr_matrix, n: int
) -> tuple[Ints, Floats]:
    """Rows that share a column with a query of these words, ascending, and how alike they are."""
    sizes = columns.indptr[words + 1] - columns.indptr[words]
    rarest = np.argsort(sizes, kind="stable")
    read = rarest[: max(1, int(np.searchsorted(np.cumsum(sizes[rarest]), BUDGET, side="right")))]
    lengths, where, values = _cells(columns, words[read])
    total = np.bincount(where, values * np.repeat(weights[read], lengths), rows.shape[0])
    some = np.flatnonzero(total > 0)  # of numbers themselves it would take ten times as long
    if len(read) == len(words):
        return some, total[some]
    some = some[_greatest(total[some], AGAIN * n)]
    query = np.zeros(rows.shape[1], np.float32)
    query[words] = weights
    return some, products(rows, some, query)


def _cells(matrix: csr_matrix, rows: Ints) -> tuple[Ints, Ints, NDArray[np.float32]]:
    """How many cells each of these rows has, and their columns and values, row after row.

    Slices laid end to end: several times faster than a number for each cell.
    """
    starts, ends = matrix.indptr[rows], matrix.indptr[rows + 1]
    parts = [slice(*both) for both in zip(starts.tolist(), ends.tolist(), strict=True)]
    where = np.concatenate([matrix.indices[:0], *(matrix.indices[part] for part in parts)])
    return ends - starts, where, np.concatenate([matrix.data[:0], *(matrix.data[part] for part in parts)])


def _greatest(values: Floats, n: int) -> Ints:
    """The places of the n greatest, ascending; of all, where there are no more."""
    if len(values) <= n:
        return np.arange(len(values))
    return np.sort(np.argpartition(-values, n)[:n])
