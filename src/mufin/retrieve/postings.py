"""Find the rows of a sparse matrix most similar to a sparse query, through shared columns."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from torch import Tensor
from torch.nn import functional as F

from mufin.data.ragged import Ints
from mufin.encode.rows import SparseRows, products, sketched
from mufin.retrieve.exact import top
from mufin.runtime.recorded import waits

Floats = NDArray[Any]  # f32 or f64

CELLS_PER_QUERY = 1 << 17  # cells read per query, rarest columns first: they are the most informative
RESCORE_FACTOR = 8  # times as many rows are rescored in full if columns were skipped or sketched
SAMPLING_STEP = 64  # every 64th value is used to estimate a threshold
PRODUCTS_PER_BATCH = 1 << 28  # (query, row) products held at a time on a GPU


def most_alike(queries: SparseRows, rows: SparseRows, n: int) -> tuple[Tensor, Tensor]:
    """Return the n rows v_i (M, V) with the largest ⟨v, v_i⟩ > 0 for each query v, and the products, (B, n).

    Best first, padded with −1 and −inf. The products are exact. On a CPU so are the rows, up to
    CELLS_PER_QUERY cells; beyond that, and on a GPU, nearly all of the n best rows are found.
    """
    if not waits(rows.values):
        return _search_on_cpu(queries, rows, n)
    step = max(1, PRODUCTS_PER_BATCH // max(1, len(rows)))
    ends = [*range(0, len(queries), step), len(queries)]
    blocks = [_search_on_gpu(queries.part(*ends), rows, n) for ends in pairwise(ends)]
    found, similarity = (torch.cat(parts) for parts in zip(*blocks, strict=True))
    return found, similarity


# -- on a GPU: one dense product of sketches, for many queries at a time -------------------------------------


def _search_on_gpu(queries: SparseRows, rows: SparseRows, n: int) -> tuple[Tensor, Tensor]:
    """Select rows by the products of sketches, and compare those by all columns."""
    queries = queries.to(rows.values.device)
    sketches = rows.sketch
    wanted = sketched(queries, sketches.shape[1])
    # An odd number of columns in the result would keep the GPU from its fastest kernels.
    aligned = F.pad(wanted, (0, 0, 0, -len(wanted) % 8))
    roughly = (sketches @ aligned.T).T[: len(wanted)]  # (B, M)
    candidates = top(roughly, RESCORE_FACTOR * n)[1].sort(dim=1).values  # ties: the lower row first
    scores, place = products(queries, rows, candidates).sort(dim=1, descending=True, stable=True)
    candidates, scores = (
        F.pad(each[:, :n], (0, max(0, n - each.shape[1]))) for each in (candidates.gather(1, place), scores)
    )
    return candidates.where(scores > 0, -1), scores.where(scores > 0, -torch.inf)


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
