"""From the nearest entries to k unique labels: over-fetch, merge by maximum, top up.

A label may own many entries and some labels may be excluded, so the k nearest entries seldom give k labels.
All indexes solve this in the same way: fetch more than k entries, drop those of excluded labels, keep the
best entry per label, and fetch more for queries that still have fewer than k labels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from mufin.errors import UsageError

QUERIES_PER_MERGE = 512
PAIRS_PER_MERGE = 2**22  # (query, entry) pairs
FETCH_GROWTH = 8  # times as many entries are fetched for queries that are still short
SCORE_TOLERANCE = 2e-6  # similarities closer than this may be fetched in either order


@dataclass(frozen=True)
class Shortlist:
    """R (B, k): unique labels with a = max ⟨x̂, v⟩ over their entries, best first, ties by lower row."""

    labels: Tensor  # (B, k) int64, padded with −1
    similarity: Tensor  # (B, k) f32, padded with −inf

    @staticmethod
    def empty(n_queries: int, k: int, device: torch.device) -> Shortlist:
        """Return shortlists of padding only."""
        return Shortlist(
            torch.full((n_queries, k), -1, dtype=torch.int64, device=device),
            torch.full((n_queries, k), -math.inf, device=device),
        )

    def put(self, rows: Tensor, part: Shortlist) -> None:
        """Write the shortlists of some rows (r,); a narrower part leaves the last columns unchanged."""
        width = part.labels.shape[1]
        self.labels[rows, :width] = part.labels
        self.similarity[rows, :width] = part.similarity


@dataclass(frozen=True)
class LabelFilter:
    """The labels that each query may return."""

    n_labels: int
    pairs: Tensor | None  # (nnz,) row · L + label of the excluded pairs, ascending
    allowed: Tensor | None  # (L,) bool
    share: float  # fraction of labels that are allowed
    excluded: float  # mean number of excluded labels per query

    @property
    def allows_all(self) -> bool:
        """Whether every query may return every label."""
        return self.pairs is None and self.allowed is None

    def check(self, rows: Tensor, labels: Tensor) -> Tensor:
        """Return (r, n) bool: whether query rows[r] may return labels[r, n]; False for −1."""
        ok = labels >= 0
        if self.allowed is not None:
            ok &= self.allowed[labels.clamp(min=0)]
        if self.pairs is not None:
            ok &= ~among(self.pairs, rows[:, None] * self.n_labels + labels)
        return ok


class Source(Protocol):
    """An index that finds the labels of the nearest entries."""

    @property
    def n_entries(self) -> int: ...

    @property
    def n_labels(self) -> int: ...

    def nearest(
        self, queries: Tensor, rows: Tensor, n: int, k: int, label_filter: LabelFilter
    ) -> tuple[Shortlist, Tensor]:
        """Return the k best labels of the n nearest entries for queries (r, D) of these rows (r,).

        Also return (r,) bool: whether the labels are final, so that no other entry could change them.
        """


class EntrySource(Source, Protocol):
    """An index that also finds the nearest entries themselves."""

    @property
    def one_entry_per_label(self) -> bool:
        """Whether no label owns more than one entry."""

    def fetch(self, queries: Tensor, n: int) -> tuple[Tensor, Tensor]:
        """Return similarity (B, n), descending, and entry (B, n) of the nearest; padded with −inf and −1."""

    def label_of(self, entries: Tensor) -> Tensor:
        """Return the label of each entry."""

    def similarity(self, queries: Tensor, entries: Tensor) -> Tensor:
        """Return ⟨x̂_b, v_e⟩ for entries (B, n), independent of the batch size."""


def pair_keys(relation: csr_matrix) -> Tensor:
    """Return row · L + column of each non-zero pair of a relation (B, L), ascending (nnz,)."""
    rows, columns = relation.nonzero()
    return torch.from_numpy(np.sort(rows.astype(np.int64) * relation.shape[1] + columns))


def among(keys: Tensor, wanted: Tensor) -> Tensor:
    """Return which of the wanted (...) are among the ascending keys (n,), bool."""
    if not len(keys):
        return torch.zeros_like(wanted, dtype=torch.bool)
    place = torch.searchsorted(keys, wanted).clamp(max=len(keys) - 1)
    return keys[place] == wanted


def build_filter(
    queries: Tensor, n_labels: int, exclude: csr_matrix | None, allowed: Tensor | None
) -> LabelFilter:
    """Validate exclude (B, L) and allowed (L,) and build the filter of a search."""
    pairs, device = None, queries.device
    if exclude is not None:
        if exclude.shape != (len(queries), n_labels):
            raise UsageError(
                f"exclude is {exclude.shape}, but there are {len(queries)} queries and {n_labels} labels: "
                "provide one row per query and one column per label"
            )
        keys = pair_keys(exclude)
        pairs = keys.to(device) if len(keys) else None
    if allowed is not None:
        if allowed.shape != (n_labels,) or allowed.dtype != torch.bool:
            raise UsageError(
                f"allowed is {allowed.dtype} {tuple(allowed.shape)}: "
                f"provide one bool for each of {n_labels} labels"
            )
        allowed = allowed.to(device)
    share = 1.0 if allowed is None or not n_labels else float(allowed.sum()) / n_labels
    return LabelFilter(n_labels, pairs, allowed, share, 0.0 if pairs is None else len(pairs) / len(queries))


def check_queries(queries: Tensor, k: int, vectors: Tensor) -> Tensor:
    """Validate queries (B, D) and convert them to the dtype and device of the vectors (E, D)."""
    if k < 1:
        raise UsageError(f"k is {k}: ask for at least one label")
    if queries.ndim != 2 or queries.shape[1] != vectors.shape[1]:
        raise UsageError(f"queries have shape {tuple(queries.shape)}, expected (B, {vectors.shape[1]})")
    if not bool(queries.sum().isfinite()):  # NaN and infinity propagate to the sum
        raise UsageError("a query contains NaN or infinity: check the embeddings it comes from")
    return queries.detach().to(vectors)


def first_fetch(source: Source, k: int, label_filter: LabelFilter) -> int:
    """Return how many entries to fetch so that most queries need no second fetch."""
    entries_per_label = max(1.0, source.n_entries / max(1, source.n_labels))  # about half of them are near
    spare = 2 * label_filter.excluded + 0.1 * k + 8
    return math.ceil((k + spare) * (1 + entries_per_label) / 2 / max(label_filter.share, 1e-9))


def collect(
    source: Source, queries: Tensor, k: int, label_filter: LabelFilter, limit: int
) -> tuple[Shortlist, Tensor]:
    """Return shortlists of queries (B, D) from up to limit entries, and the rows (r,) that are still short.

    No row is short if limit covers all entries: in that case fewer than k labels exist.
    """
    found = Shortlist.empty(len(queries), k, queries.device)
    short = torch.arange(len(queries), device=queries.device)
    n = min(first_fetch(source, k, label_filter), limit)
    while n and len(short):
        left = []
        for rows in short.split(max(1, min(QUERIES_PER_MERGE, PAIRS_PER_MERGE // n))):
            part, done = source.nearest(queries[rows], rows, n, min(k, source.n_labels), label_filter)
            if part.labels.shape == found.labels.shape and bool(done.all()):
                return part, short[:0]
            found.put(rows, part)
            left.append(rows[~done])
        short = torch.cat(left)
        if n == limit:
            break
        n = min(n * FETCH_GROWTH, limit)
    return found, short


def merged(
    source: EntrySource, queries: Tensor, rows: Tensor, n: int, k: int, label_filter: LabelFilter
) -> tuple[Shortlist, Tensor]:
    """Implement `Source.nearest` for an index that can fetch entries."""
    near, entries = source.fetch(queries, n)  # (r, n)
    labels = source.label_of(entries.clamp(min=0)).where(entries >= 0, -1)  # (r, n)
    last = near[:, -1]
    if not (source.one_entry_per_label and label_filter.allows_all and n >= k):  # else keep all
        keep = label_filter.check(rows, labels)
        if not source.one_entry_per_label:
            keep &= _first_of_label(labels)
        near, entries, labels = _left_justify(keep, near, entries, labels, width=k)
    kth = near[:, k - 1]  # −inf where fewer than k were found
    done = kth > last + SCORE_TOLERANCE if n < source.n_entries else torch.ones_like(rows, dtype=torch.bool)
    near_ties = (near >= kth[:, None] - SCORE_TOLERANCE) & (near > -math.inf)  # candidates for the k
    width = max(k, int(near_ties.sum(1).max()))
    return _sort_exactly(source, queries, entries[:, :width], labels[:, :width], k), done


def _first_of_label(labels: Tensor) -> Tensor:
    """Mark the first, hence best, occurrence of each label per sorted row, (r, n) bool."""
    ordered, place = labels.sort(dim=1, stable=True)
    first = torch.ones_like(labels, dtype=torch.bool)
    first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    return torch.empty_like(first).scatter_(1, place, first)


def _left_justify(
    keep: Tensor, near: Tensor, entries: Tensor, labels: Tensor, width: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Move kept cells to the left of their row, in order; pad with −inf and −1 to at least width columns."""
    column = keep.cumsum(1)  # 1, 2, … for kept cells; the others go to column 0, which is dropped
    width = max(width, int(column[:, -1].max()))
    column = column.where(keep, 0)
    shape = (len(keep), width + 1)
    return (
        near.new_full(shape, -math.inf).scatter_(1, column, near)[:, 1:],
        entries.new_full(shape, -1).scatter_(1, column, entries)[:, 1:],
        labels.new_full(shape, -1).scatter_(1, column, labels)[:, 1:],
    )


def _sort_exactly(source: EntrySource, queries: Tensor, entries: Tensor, labels: Tensor, k: int) -> Shortlist:
    """Return the k best candidates (r, ≥ k) by exact similarity, ties by lower label row."""
    labels, place = labels.sort(dim=1)
    similarity = source.similarity(queries, entries.gather(1, place).clamp(min=0))
    similarity, place = similarity.where(labels >= 0, -math.inf).sort(dim=1, descending=True, stable=True)
    return Shortlist(labels.gather(1, place)[:, :k], similarity[:, :k])
