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
SAMPLED = 64  # of so many values one says how great the greatest are


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


def _by_columns(
    words: NDArray[Any], weights: Floats, rows: csr_matrix, columns: csr_matrix, n: int
) -> tuple[Ints, Floats]:
    """Rows that share a column with a query of these words, ascending, and how alike they are."""
    sizes = columns.indptr[words + 1] - columns.indptr[words]
    rarest = np.argsort(sizes, kind="stable")
    read = rarest[: max(1, int(np.searchsorted(np.cumsum(sizes[rarest]), BUDGET, side="right")))]
    total = weights[read] @ columns[words[read]]  # (M,)
    whole = len(read) == len(words)
    some = _greatest(total, n if whole else AGAIN * n)
    some = some[total[some] > 0]
    if whole:
        return some, total[some]
    query = np.zeros(rows.shape[1], np.float32)
    query[words] = weights
    return some, rows[some] @ query


def _greatest(values: Floats, n: int) -> Ints:
    """The places of the n greatest, ascending; of all, where there are no more.

    Among many, a sample tells a bar that about twice as many pass: only those are put in order.
    """
    if len(values) <= n:
        return np.arange(len(values))
    sample, above = values[::SAMPLED], 2 * n // SAMPLED + 16
    if len(sample) > 4 * above:
        passed = np.flatnonzero(values >= np.partition(sample, -above)[-above])
        if n <= len(passed) <= len(values) // 2:
            return passed[_greatest(values[passed], n)]
    return np.sort(np.argpartition(-values, n)[:n])
