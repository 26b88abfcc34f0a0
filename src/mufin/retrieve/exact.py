"""Exact search: score every entry, on any device, in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from copy import copy

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from mufin.data.ragged import Ints
from mufin.errors import UsageError
from mufin.retrieve.entries import Entries
from mufin.retrieve.shortlist import LabelFilter, Shortlist, build_filter, check_queries, collect, merged
from mufin.runtime.onednn import can_pack, pack, product

SCORES_PER_BLOCK = 2**25  # 128 MB
MAX_GATHERED = 2**19  # numbers gathered at a time when rescoring: these fit the cache
PACKED_MAX_QUERIES = 32  # larger batches do not use the packed vectors
PACK_AFTER_BATCHES = 4  # small batches to wait for before packing
MAX_GROUP_SIZE = 16  # columns; maxima over wider groups are slower
MIN_ALLOWED_SHARE = 0.25  # below this share of allowed labels, copy their entries and score only those


class ExactIndex:
    """Find labels by a = max ⟨x̂, v⟩ over all their entries, with blocked matrix products."""

    def __init__(self, entries: Entries) -> None:
        self.parts = [entries]  # the initial entries, then those added
        self.cpu_layout: Tensor | None = None  # vectors of the first part, packed for small batches
        self.small_batches = 0  # small batches searched so far
        self.n_labels = entries.n_labels
        self.one_entry_per_label = bool((entries.labels[1:] > entries.labels[:-1]).all())

    def _packed_vectors(self) -> Tensor | None:
        """Return the vectors packed for CPU matrix products; None for the first few small batches.

        Packing halves the search time but copies the vectors, which does not pay off for a single query.
        """
        first = self.parts[0].vectors
        self.small_batches += 1
        fits = first.device.type == "cpu" and first.dtype == torch.float32 and len(first) > 0
        if self.cpu_layout is None and self.small_batches > PACK_AFTER_BATCHES and fits and can_pack():
            self.cpu_layout = pack(first, PACKED_MAX_QUERIES)
        return self.cpu_layout

    @property
    def n_entries(self) -> int:
        return sum(map(len, self.parts))

    @property
    def width(self) -> int:
        return self.parts[0].vectors.shape[1]

    @property
    def entries(self) -> Entries:
        """All entries, including those added later."""
        return _concatenate(self.parts, self.n_labels)

    def search(
        self, queries: Tensor, k: int, exclude: csr_matrix | None = None, allowed: Tensor | None = None
    ) -> Shortlist:
        """Return the k nearest allowed labels of queries (B, D), without the pairs in exclude (B, L)."""
        queries, label_filter = self.prepare(queries, k, exclude, allowed)
        if label_filter.allowed is not None and label_filter.share < MIN_ALLOWED_SHARE:
            return self.only(label_filter.allowed).search(queries, k, exclude)
        return collect(self, queries, k, label_filter, limit=self.n_entries)[0]

    def prepare(
        self, queries: Tensor, k: int, exclude: csr_matrix | None, allowed: Tensor | None
    ) -> tuple[Tensor, LabelFilter]:
        """Validate the arguments of a search; return the queries as the vectors are, and the filter."""
        queries = check_queries(queries, k, self.parts[0].vectors)
        return queries, build_filter(queries, self.n_labels, exclude, allowed)

    def added(self, vectors: Tensor, labels: Tensor) -> ExactIndex:
        """Return a copy with unit vectors (e, D) of new labels (e,), ascending, after the existing rows."""
        if not len(labels):
            return self
        if int(labels.min()) < self.n_labels:
            raise UsageError(
                f"label row {int(labels.min())} already exists: new rows start at {self.n_labels}"
            )
        # never copy the initial entries: they may be memory-mapped
        first, *added = self.parts
        size = max(self.n_labels, int(labels.max()) + 1)
        new = Entries(vectors.to(first.vectors), labels.to(first.labels), size)
        recent = _concatenate([*added, new], size)
        index = copy(self)  # other threads may be searching the old index
        index.parts, index.n_labels = [first, recent], size
        index.one_entry_per_label = self.one_entry_per_label and bool(
            (recent.labels[1:] > recent.labels[:-1]).all()
        )
        return index

    def only(self, allowed: Tensor) -> ExactIndex:
        """Return an index over the entries of the allowed labels (L,) bool."""
        return ExactIndex(_concatenate([part.only(allowed) for part in self.parts], self.n_labels))

    def nearest(
        self, queries: Tensor, rows: Tensor, n: int, k: int, label_filter: LabelFilter
    ) -> tuple[Shortlist, Tensor]:
        """Return the k best labels of the n nearest entries, and whether that is final, (r,) bool."""
        return merged(self, queries, rows, n, k, label_filter)

    def fetch(self, queries: Tensor, n: int) -> tuple[Tensor, Tensor]:
        """Return the similarity (B, n), descending, and the index (B, n) of the nearest n ≤ E entries."""
        best = queries.new_empty(len(queries), 0)
        where = best.long()
        start = 0
        for part in self.parts:
            for block in part.vectors.split(max(1, SCORES_PER_BLOCK // len(queries))):
                one_block = start == 0 and len(block) == len(part) and len(queries) <= PACKED_MAX_QUERIES
                cpu_layout = self._packed_vectors() if one_block else None
                found = products(queries, block) if cpu_layout is None else product(queries, cpu_layout)
                scores, place = top(found, n)
                best, where = torch.cat([best, scores], 1), torch.cat([where, place + start], 1)
                if start:  # merge with the best of the previous blocks
                    best, order = best.topk(min(n, best.shape[1]), dim=1)
                    where = where.gather(1, order)
                start += len(block)
        return best, where

    def label_of(self, entries: Tensor) -> Tensor:
        """Return the label of each entry."""
        return self._take_rows([part.labels for part in self.parts], entries)

    def similarity(self, queries: Tensor, entries: Tensor) -> Tensor:
        """Return ⟨x̂_b, v_e⟩ for entries (B, n), summed in f64 so that summation order does not matter."""
        sums = [
            gathered.mul_(x[:, None]).sum(-1, dtype=torch.float64)  # (b, n, D) → (b, n)
            for x, gathered in self._gathered(queries, entries)
        ]
        return torch.cat(sums).float()

    def entry_ranges(self, labels: Ints) -> tuple[Ints, Ints]:
        """Return the first entry of each of these labels and how many it has; they are contiguous."""
        start = first = count = np.zeros_like(labels)
        for part in self.parts:
            begin, end = (part.offsets[np.minimum(labels + after, part.n_labels)] for after in (0, 1))
            first, count = np.where(end > begin, start + begin, first), count + end - begin
            start = start + len(part)
        return first, count

    def _gathered(self, queries: Tensor, entries: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield chunks of queries (b, D) with the vectors (b, n, D) of their entries."""
        vectors = [part.vectors for part in self.parts]
        rows = max(1, MAX_GATHERED // max(1, entries.shape[1] * self.width))
        for x, some in zip(queries.split(rows), entries.split(rows), strict=True):
            yield x, self._take_rows(vectors, some)

    @staticmethod
    def _take_rows(parts: list[Tensor], entries: Tensor) -> Tensor:
        """Index the parts as if they were one tensor."""
        if len(parts) == 1:
            return parts[0].index_select(0, entries.flatten()).view(*entries.shape, *parts[0].shape[1:])
        in_second = entries >= len(parts[0])
        rows = parts[0].new_empty(*entries.shape, *parts[0].shape[1:])
        rows[~in_second] = parts[0][entries[~in_second]]
        rows[in_second] = parts[1][entries[in_second] - len(parts[0])]
        return rows


def _concatenate(parts: list[Entries], n_labels: int) -> Entries:
    """Concatenate the entries of the parts, whose labels ascend from part to part."""
    if len(parts) == 1:
        return parts[0]
    vectors = torch.cat([part.vectors for part in parts])
    return Entries(vectors, torch.cat([part.labels for part in parts]), n_labels)


def products(queries: Tensor, vectors: Tensor) -> Tensor:
    """Return ⟨x̂_b, v_e⟩ (B, E) in f32; rounding depends on the shape."""
    n_blocks = len(vectors) // 1024
    if len(queries) > 1 or not n_blocks or vectors.device.type != "cpu":
        return queries @ vectors.T
    # for one query, batched short products run at memory speed; one tall product is 3 times slower
    head, rest = vectors[: n_blocks * 1024], vectors[n_blocks * 1024 :]
    scores = torch.bmm(
        head.unflatten(0, (n_blocks, 1024)), queries.T.expand(n_blocks, -1, 1)
    )  # (tall, 1024, 1)
    return torch.cat([scores.view(1, -1), queries @ rest.T], 1)


def top(scores: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Return the n largest values of each row (B, E), descending, and their columns.

    They lie in the n groups with the largest maxima, so with groups of G ≈ √(E/n) columns the costly
    selection runs over E/G + n·G numbers instead of E.
    """
    width = scores.shape[1]
    n = min(n, width)
    size = min(MAX_GROUP_SIZE, math.isqrt(width // max(n, 1)))  # n is 0 without entries
    if size < 4:
        values, columns = scores.topk(n, dim=1)
        return values, columns
    groups = width // size  # group g holds the columns g, g + groups, g + 2·groups, …
    body = scores[:, : size * groups].unflatten(1, (size, groups))  # (B, G, E/G)
    chosen = body.amax(1).topk(n, dim=1, sorted=False).indices  # (B, n)
    columns = (chosen[:, None, :] + groups * torch.arange(size, device=scores.device)[:, None]).flatten(1)
    rest = torch.arange(size * groups, width, device=scores.device).expand(len(scores), -1)
    columns = torch.cat([columns, rest], 1)  # (B, n·G + fewer than G)
    values, order = scores.gather(1, columns).topk(n, dim=1)
    return values, columns.gather(1, order)
