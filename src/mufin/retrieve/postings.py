"""Postings: which rows of a sparse matrix are most like a sparse query, by way of the columns they share."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from torch import Tensor
from torch.nn import functional as F

from mufin.data.ragged import Ints, spans
from mufin.encode.rows import SparseRows, products

Floats = NDArray[Any]  # numbers of either precision

BUDGET = 1 << 17  # cells that a query looks at; columns of few rows come first, they tell the most
AGAIN = 8  # times as many rows as wanted are scored in full, where columns had to be left out
SAMPLED = 64  # of so many values one says how great the greatest are
DENSE = 1 << 27  # (query, row) sums that a GPU holds at a time
READ = 1 << 24  # cells that it reads at a time


def most_alike(queries: SparseRows, rows: SparseRows, n: int) -> tuple[Tensor, Tensor]:
    """The n rows v_i (M, V) of the greatest ⟨v, v_i⟩ > 0 for each query v, (B, n), best first, and these.

    −1 and −inf behind the last. Up to BUDGET cells this is exact; beyond, the rows most alike by the rarest
    columns are scored by all of theirs.
    """
    if not rows.values.is_cuda:
        return _one_by_one(queries, rows, n)
    step = max(1, min(DENSE // max(1, len(rows)), READ // BUDGET))
    ends = [*range(0, len(queries), step), len(queries)]
    some = [_all_at_once(queries.part(*ends), rows, n) for ends in pairwise(ends)]
    found, alike = (torch.cat(parts) for parts in zip(*some, strict=True))
    return found, alike


# -- on a GPU: the sums of all rows, for many queries at a time ----------------------------------------------


def _all_at_once(queries: SparseRows, rows: SparseRows, n: int) -> tuple[Tensor, Tensor]:
    """Add up what queries share with each row, and take the greatest sums."""
    queries, by_column = queries.to(rows.values.device), rows.T
    order, first, counts, left_out = _rarest(queries, by_column)
    total, partly = torch.stack([counts.sum(), left_out]).tolist()
    places = spans(first, counts, total)
    owner = torch.repeat_interleave(
        torch.arange(len(counts), device=counts.device), counts, output_size=total
    )
    shared = queries.values[order][owner] * by_column.values[places]
    cell = (queries.row * len(rows))[owner] + by_column.columns[places]
    sums = shared.new_zeros(len(queries) * len(rows)).index_add_(0, cell, shared)
    like, some = sums.view(len(queries), -1).topk(min(AGAIN * n if partly else n, len(rows)), dim=1)
    if partly:
        like = products(queries, rows, some).masked_fill(like <= 0, 0.0)
    some, place = some.sort(dim=1)  # of equal ones the lower row comes first
    like, place = like.gather(1, place).sort(dim=1, descending=True, stable=True)
    some, like = (
        F.pad(each[:, :n], (0, max(0, n - each.shape[1]))) for each in (some.gather(1, place), like)
    )
    return some.where(like > 0, -1), like.where(like > 0, -torch.inf)


def _rarest(queries: SparseRows, by_column: SparseRows) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Which columns each query reads: those of the fewest rows, BUDGET rows in all but at least a column.

    Gives the order of the queries' cells (Σ,), where the rows of each column begin, how many of them are
    read, and whether any are left out.
    """
    first, sizes = by_column.extent(queries.columns)
    order = (queries.row * (by_column.width + 1) + sizes).sort(stable=True).indices
    first, sizes = first[order], sizes[order]
    ends = F.pad(sizes.cumsum(0), (1, 0))
    start = queries.offsets[queries.row]  # of the query, among all cells
    rarest = torch.arange(len(order), device=order.device) == start
    read = rarest | (ends[1:] - ends[start] <= BUDGET)
    return order, first, sizes.where(read, 0), (~read).any().long()


# -- on a CPU: one query after the other, whose sums stay in the cache ---------------------------------------


def _one_by_one(queries: SparseRows, rows: SparseRows, n: int) -> tuple[Tensor, Tensor]:
    """Multiply with SciPy, and find the greatest by a bar."""
    asked, among, by_column = queries.csr, rows.csr, rows.T.csr
    found = np.full((len(queries), n), -1)
    alike = np.full(found.shape, -np.inf, np.float32)
    for number, (first, last) in enumerate(pairwise(asked.indptr)):
        words, weights = asked.indices[first:last], asked.data[first:last]
        some, like = _by_columns(words, weights, among, by_column, n)
        best = _greatest(like, n)
        best = best[np.argsort(-like[best], kind="stable")]
        found[number, : len(best)], alike[number, : len(best)] = some[best], like[best]
    return torch.from_numpy(found), torch.from_numpy(alike)


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
