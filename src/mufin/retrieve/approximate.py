"""Approximate search over many entries on a CPU, with faiss, tuned to a target recall."""

from __future__ import annotations

import errno
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor
from torch.nn.functional import normalize

from mufin.data.ragged import Ints, padded, ranges
from mufin.retrieve.entries import Entries
from mufin.retrieve.exact import ExactIndex
from mufin.retrieve.faiss_index import Floats, build, load_faiss, read_faiss
from mufin.retrieve.shortlist import SCORE_TOLERANCE, LabelFilter, Shortlist, collect, first_fetch

MIN_ALLOWED_SHARE = 0.05  # below this share of allowed labels, score their entries exactly
EXACT_FETCH_DIVISOR = 32  # use exact search to fetch more than 1/32 of the entries
RESCORE_FACTOR, MIN_RESCORED = 4, 1500  # 4-bit codes misrank neighbours: rescore max(4 n, 1,500) to get n
SINGLE_QUERY_SCAN, BATCH_SCAN = 11, 0  # faiss `implem` for one query and for a batch
TUNING_QUERIES = 256  # queries on which recall is measured
RECALL_MARGIN = 0.003  # added to the target: two standard errors of recall measured on a sample
EF_SEARCH_STEPS = tuple(round(64 * 1.12**i) for i in range(31))  # up to 1,900
NPROBE_STEPS = tuple(sorted({round(8 * 1.12**i) for i in range(47)}))  # up to 1,500


class ApproximateIndex:
    """Approximate `ExactIndex`: faiss proposes candidates, which are rescored exactly.

    Similarities are exact, since candidates are rescored with the original vectors.
    """

    def __init__(self, entries: Entries, recall: float = 0.97, queries: Tensor | None = None) -> None:
        """Build the index and tune it to this recall@100 on queries (B, D).

        Representative queries tune best; without any, perturbed entries are used.
        """
        self.exact = ExactIndex(entries)
        self.faiss: Any = build(_numpy(entries.vectors))
        self._tune(recall, _perturbed(entries) if queries is None else queries[:TUNING_QUERIES])

    @property
    def n_entries(self) -> int:
        return self.exact.n_entries

    @property
    def n_labels(self) -> int:
        return self.exact.n_labels

    @property
    def entries(self) -> Entries:
        """All entries, including those added later."""
        return self.exact.entries

    def search(
        self, queries: Tensor, k: int, exclude: csr_matrix | None = None, allowed: Tensor | None = None
    ) -> Shortlist:
        """Return the k nearest allowed labels of queries (B, D), without the pairs in exclude (B, L)."""
        queries, label_filter = self.exact.prepare(queries, k, exclude, allowed)
        limit = self.n_entries // EXACT_FETCH_DIVISOR
        if label_filter.share < MIN_ALLOWED_SHARE or first_fetch(self, k, label_filter) > limit:
            return self.exact.search(queries, k, exclude, allowed)
        found, short = collect(self, queries, k, label_filter, limit)
        if len(short):
            rest = None if exclude is None else exclude[short.cpu().numpy()]
            found.put(short, self.exact.search(queries[short], k, rest, allowed))
        return found

    def added(self, vectors: Tensor, labels: Tensor) -> ApproximateIndex:
        """Return a copy with unit vectors (e, D) of new labels (e,), ascending, after the existing rows."""
        exact = self.exact.added(vectors, labels)
        if not self.n_entries:  # faiss cannot add to an index that was trained on nothing
            return ApproximateIndex(exact.entries)
        faiss, index = load_faiss(), copy(self)
        index.exact = exact
        # Copy into memory: other threads may be searching the old index, and faiss aborts the process when
        # entries are added to a memory-mapped one.
        index.faiss = faiss.deserialize_index(faiss.serialize_index(self.faiss))
        index.faiss.add(_numpy(vectors))
        return index

    def nearest(
        self, queries: Tensor, rows: Tensor, n: int, k: int, label_filter: LabelFilter
    ) -> tuple[Shortlist, Tensor]:
        """Return the k best labels of the n nearest entries, and whether that is final, (r,) bool.

        A label is scored by all of its entries, including those that faiss did not find.
        """
        query_array, n_fetched = _numpy(queries), n
        if not self.is_graph:
            n_fetched = min(max(RESCORE_FACTOR * n, MIN_RESCORED), self.n_entries)
            self.lists.implem = SINGLE_QUERY_SCAN if len(query_array) == 1 else BATCH_SCAN
        with _faiss_threads(1 if len(query_array) == 1 else None):
            _, found = self.faiss.search(query_array, n_fetched, params=self._parameters(n_fetched))
            near, found = _top_unsorted(self._inner_products(query_array, found), found, n)
            last = near.min(axis=1)
            labels = self.exact.label_of(torch.from_numpy(found).clamp(min=0)).numpy()
            labels = np.where(found < 0, -1, labels)
            if not self.exact.one_entry_per_label:
                labels, near = self._max_per_label(query_array, labels)
        if not label_filter.allows_all:
            is_eligible = label_filter.check(rows, torch.from_numpy(labels).to(rows.device)).cpu().numpy()
            labels, near = np.where(is_eligible, labels, -1), np.where(is_eligible, near, -np.inf)
        labels, near = top_sorted(labels, near, k)
        done = torch.from_numpy((near[:, -1] > last + SCORE_TOLERANCE) | (n >= self.n_entries))
        part = Shortlist(torch.from_numpy(labels), torch.from_numpy(near))
        return Shortlist(*(t.to(queries.device) for t in vars(part).values())), done.to(queries.device)

    def _inner_products(self, queries: Floats, entries: Ints) -> Floats:
        """Return ⟨x̂_b, v_e⟩ for entries (B, n) without copying their vectors; −inf for −1."""
        faiss, start = load_faiss(), 0
        best = np.full(entries.shape, -np.inf, np.float32)
        for part in self.exact.parts:
            own = entries - start if start else entries
            if len(self.exact.parts) > 1:
                own = np.where((own >= 0) & (own < len(part)), own, -1)
            own, found = np.ascontiguousarray(own), np.empty(entries.shape, np.float32)
            faiss.fvec_inner_products_by_idx(
                *map(faiss.swig_ptr, (found, queries, part.vectors.numpy(), own)),
                queries.shape[1],
                *own.shape,
            )
            best, start = np.maximum(best, found), start + len(part)
        return best

    def _max_per_label(self, queries: Floats, labels: Ints) -> tuple[Ints, Floats]:
        """Deduplicate labels (B, n) and return a = max ⟨x̂_b, v⟩ of each; padded with −1 and −inf."""
        labels = np.sort(labels, axis=1)
        is_first = labels >= 0
        is_first[:, 1:] &= labels[:, 1:] != labels[:, :-1]
        some = labels[is_first]  # (Σ,), grouped by query
        first, count = self.exact.entry_ranges(some)
        own, query = np.repeat(np.arange(len(some)), count), np.nonzero(is_first)[0]
        entries = padded(ranges(first, count), np.bincount(query[own], minlength=len(labels)), -1)
        best = np.maximum.reduceat(
            self._inner_products(queries, entries)[entries >= 0], np.cumsum(count) - count
        )
        sizes = is_first.sum(1)
        return padded(some, sizes, -1), padded(best, sizes, -np.inf)

    def of_labels(self, queries: Tensor, labels: Tensor) -> Tensor:
        """Return a = max ⟨x̂_b, v⟩ over the entries of labels (B, K); −inf for −1 or a label without entries.

        Vectors are read in place.
        """
        rows = labels.cpu().numpy()
        first, count = self.exact.entry_ranges(np.maximum(rows, 0).ravel())
        count = np.where(rows.ravel() < 0, 0, count)
        entries = padded(ranges(first, count), count.reshape(rows.shape).sum(1), -1)
        near, best = self._inner_products(_numpy(queries), entries), np.full(rows.size, -np.inf, np.float32)
        if (some := count > 0).any():
            best[some] = np.maximum.reduceat(near[entries >= 0], (np.cumsum(count) - count)[some])
        return torch.from_numpy(best.reshape(rows.shape)).to(queries.device)

    def save(self, path: Path | str) -> None:
        """Write the faiss index; the caller saves the entries."""
        try:
            load_faiss().write_index(self.faiss, str(path))
        except RuntimeError as error:  # faiss raises this when the disk is full
            raise OSError(errno.EIO, str(error), str(path)) from None

    @classmethod
    def load(cls, path: Path | str, entries: Entries) -> ApproximateIndex:
        """Load a saved index over the same entries, memory-mapped."""
        stored = read_faiss(Path(path), (len(entries), entries.vectors.shape[1]))
        index = cls.__new__(cls)
        index.exact, index.faiss = ExactIndex(entries), stored
        return index

    @property
    def is_graph(self) -> bool:
        """Whether this is an HNSW graph rather than inverted lists of codes."""
        return hasattr(self.faiss, "hnsw")

    @property
    def lists(self) -> Any:
        """The inverted lists: `nlist` in all, of which each query scans `nprobe`."""
        faiss = load_faiss()
        return faiss.downcast_index(faiss.extract_index_ivf(self.faiss))

    def _parameters(self, n: int) -> Any:
        """Return faiss search parameters for n entries; None unless they depend on n."""
        if not self.is_graph:
            return None
        return load_faiss().SearchParametersHNSW(efSearch=max(n, self.faiss.hnsw.efSearch))

    def _tune(self, recall: float, queries: Tensor, k: int = 100) -> None:
        """Set the least search effort that reaches this recall@k."""
        truth = self.exact.search(queries, k).labels
        steps = EF_SEARCH_STEPS if self.is_graph else NPROBE_STEPS

        def reaches(effort: int) -> bool:
            self._set_effort(effort)
            return label_recall(self.search(queries, k).labels, truth) >= min(1.0, recall + RECALL_MARGIN)

        # the greatest effort if none reaches it
        self._set_effort(steps[min(bisect_left(steps, True, key=reaches), len(steps) - 1)])

    def _set_effort(self, effort: int) -> None:
        if self.is_graph:
            self.faiss.hnsw.efSearch = effort
        else:
            self.lists.nprobe = effort


def label_recall(found: Tensor, truth: Tensor) -> float:
    """Return the share of the true labels (B, k) that were found (B, k), ignoring −1."""
    hits = (truth[:, :, None] == found[:, None, :]).any(2) & (truth >= 0)
    return float(hits.sum() / (truth >= 0).sum().clamp(min=1))


def _perturbed(entries: Entries) -> Tensor:
    """Make up queries (≤ TUNING_QUERIES, D): entries moved by the difference of two others, cosine ≈ 0.8."""
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randint(max(1, len(entries)), (3, min(TUNING_QUERIES, len(entries))), generator=generator)
    vector, one, other = entries.vectors[chosen]
    return normalize(vector + 0.75 * normalize(one - other, dim=1), dim=1)


def _top_unsorted(near: Floats, found: Ints, n: int) -> tuple[Floats, Ints]:
    """Return the n nearest of each row (B, m), unsorted, padded with −inf and −1 if m < n."""
    if near.shape[1] < n:
        width = ((0, 0), (0, n - near.shape[1]))
        return np.pad(near, width, constant_values=-np.inf), np.pad(found, width, constant_values=-1)
    chosen = np.argpartition(-near, n - 1, axis=1)[:, :n]
    return np.take_along_axis(near, chosen, 1), np.take_along_axis(found, chosen, 1)


def top_sorted(labels: Ints, near: Floats, k: int) -> tuple[Ints, Floats]:
    """Return the k nearest of each row (B, m), best first, ties by lower label; padded with −1 and −inf."""
    if near.shape[1] < k:
        padding = ((0, 0), (0, k - near.shape[1]))
        labels, near = (
            np.pad(labels, padding, constant_values=-1),
            np.pad(near, padding, constant_values=-np.inf),
        )
    order = np.lexsort((labels, -near), axis=1)[:, :k]
    return np.take_along_axis(labels, order, 1), np.take_along_axis(near, order, 1)


def sample(vectors: Tensor | None) -> Tensor | None:
    """Return an evenly spaced sample of query vectors (n, D) for tuning an index; None if there are none."""
    if vectors is None or not len(vectors):
        return None
    return vectors[:: max(1, len(vectors) // TUNING_QUERIES)][:TUNING_QUERIES]


def _numpy(vectors: Tensor) -> Floats:
    """Convert to the row-major f32 array that faiss requires."""
    return np.ascontiguousarray(vectors.detach().cpu().float().numpy())


@contextmanager
def _faiss_threads(n: int | None) -> Iterator[None]:
    """Limit faiss to n threads: for a single query, waking more costs more than it gains."""
    faiss = load_faiss()
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(n or before)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)
