"""Postings: find the rows of a sparse matrix most similar to a sparse query, through shared columns."""

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

Floats = NDArray[Any]  # f32 or f64

CELLS_PER_QUERY = 1 << 17  # cells read per query, rarest columns first: they are the most informative
RESCORE_FACTOR = 8  # times as many rows are rescored in full if columns were skipped
SAMPLING_STEP = 64  # every 64th value is used to estimate a threshold
SUMS_PER_BATCH = 1 << 27  # (query, row) sums held at a time on a GPU
CELLS_PER_BATCH = 1 << 24  # cells read at a time on a GPU


def most_alike(queries: SparseRows, rows: SparseRows, n: int) -> tuple[Tensor, Tensor]:
    """Return the n rows v_i (M, V) with the largest ⟨v, v_i⟩ > 0 for each query v, and the products, (B, n).

    Best first, padded with −1 and −inf. The result is exact up to CELLS_PER_QUERY cells; beyond that,
    candidates come from the rarest columns and are rescored with all columns.
    """
    if not rows.values.is_cuda:
        return _search_on_cpu(queries, rows, n)
    step = max(1, min(SUMS_PER_BATCH // max(1, len(rows)), CELLS_PER_BATCH // CELLS_PER_QUERY))
    ends = [*range(0, len(queries), step), len(queries)]
    blocks = [_search_on_gpu(queries.part(*ends), rows, n) for ends in pairwise(ends)]
    found, similarity = (torch.cat(parts) for parts in zip(*blocks, strict=True))
    return found, similarity


# -- on a GPU: sums of all rows, for many queries at a time --------------------------------------------------


def _search_on_gpu(queries: SparseRows, rows: SparseRows, n: int) -> tuple[Tensor, Tensor]:
    """Sum the products with each row over the columns read, and take the largest sums."""
    queries, by_column = queries.to(rows.values.device), rows.T
    order, first, counts, skipped = _rarest_columns(queries, by_column)
    total, truncated = torch.stack([counts.sum(), skipped]).tolist()
    places = spans(first, counts, total)
    owner = torch.repeat_interleave(
        torch.arange(len(counts), device=counts.device), counts, output_size=total
    )
    shared = queries.values[order][owner] * by_column.values[places]
    cell = (queries.row * len(rows))[owner] + by_column.columns[places]
    sums = shared.new_zeros(len(queries) * len(rows)).index_add_(0, cell, shared)
    scores, candidates = sums.view(len(queries), -1).topk(
        min(RESCORE_FACTOR * n if truncated else n, len(rows)), dim=1
    )
    if truncated:
        scores = products(queries, rows, candidates).masked_fill(scores <= 0, 0.0)
    candidates, place = candidates.sort(dim=1)  # ties: the lower row first
    scores, place = scores.gather(1, place).sort(dim=1, descending=True, stable=True)
    candidates, scores = (
        F.pad(each[:, :n], (0, max(0, n - each.shape[1]))) for each in (candidates.gather(1, place), scores)
    )
    return candidates.where(scores > 0, -1), scores.where(scores > 0, -torch.inf)


def _rarest_columns(queries: SparseRows, by_column: SparseRows) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Choose the columns each query reads: the rarest, up to CELLS_PER_QUERY cells but at least one column.

    Returns the order of the queries' cells (Σ,), the first row and the number of rows to read of each column,
    and whether any column was skipped.
    """
    first, sizes = by_column.extent(queries.columns)
    order = (queries.row * (by_column.width + 1) + sizes).sort(stable=True).indices
    first, sizes = first[order], sizes[order]
    ends = F.pad(sizes.cumsum(0), (1, 0))
    start = queries.offsets[queries.row]  # first cell of the query
    rarest = torch.arange(len(order), device=order.device) == start
    read = rarest | (ends[1:] - ends[start] <= CELLS_PER_QUERY)
    return order, first, sizes.where(read, 0), (~read).any().long()


# -- on a CPU: one query at a time, so that its sums stay in the cache ---------------------------------------


def _search_on_cpu(queries: SparseRows, rows: SparseRows, n: int) -> tuple[Tensor, Tensor]:
    """Multiply with SciPy and select the largest products with a threshold."""
    asked, among, by_column = queries.csr, rows.csr, rows.T.csr
    found = np.full((len(queries), n), -1)
    similarity = np.full(found.shape, -np.inf, np.float32)
    for number, (first, last) in enumerate(pairwise(asked.indptr)):
        words, weights = asked.indices[first:last], asked.data[first:last]
        candidates, scores = _candidates(words, weights, among, by_column, n)
        best = _top(scores, n)
        best = best[np.argsort(-scores[best], kind="stable")]
        found[number, : len(best)], similarity[number, : len(best)] = candidates[best], scores[best]
    return torch.from_numpy(found), torch.from_numpy(similarity)


def _candidates(
    words: NDArray[Any], weights: Floats, rows: csr_matrix, columns: csr_matrix, n: int
) -> tuple[Ints, Floats]:
    """Return rows that share a column with a query of these words, ascending, and their similarity."""
    sizes = columns.indptr[words + 1] - columns.indptr[words]
    rarest = np.argsort(sizes, kind="stable")
    read = rarest[: max(1, int(np.searchsorted(np.cumsum(sizes[rarest]), CELLS_PER_QUERY, side="right")))]
    total = weights[read] @ columns[words[read]]  # (M,)
    complete = len(read) == len(words)
    candidates = _top(total, n if complete else RESCORE_FACTOR * n)
    candidates = candidates[total[candidates] > 0]
    if complete:
        return candidates, total[candidates]
    query = np.zeros(rows.shape[1], np.float32)
    query[words] = weights
    return candidates, rows[candidates] @ query


def _top(values: Floats, n: int) -> Ints:
    """Return the positions of the n largest values, ascending; of all values if there are fewer.

    For long arrays, a sample gives a threshold that about 2 n values pass; only those are partitioned.
    """
    if len(values) <= n:
        return np.arange(len(values))
    sample, rank = values[::SAMPLING_STEP], 2 * n // SAMPLING_STEP + 16
    if len(sample) > 4 * rank:
        passed = np.flatnonzero(values >= np.partition(sample, -rank)[-rank])
        if n <= len(passed) <= len(values) // 2:
            return passed[_top(values[passed], n)]
    return np.sort(np.argpartition(-values, n)[:n])
