"""Exact search: every entry is scored, on any device, in bounded memory."""

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
from mufin.retrieve.shortlist import Eligible, Shortlist, checked, collect, eligible, merged
from mufin.runtime.onednn import can_pack, pack, product

SCORES = 2**25  # scores held at a time: 128 MB
GATHERED = 2**19  # numbers gathered at a time when a few entries are scored: they stay in the cache
FEW = 32  # queries that a packed index is for
OFTEN = 4  # batches of so few queries before it is packed
GROUP = 16  # columns in a group, at most: wider maxima are slower to take
SELECTIVE = 0.25  # below this share of allowed labels only their entries are scored, at the cost of a copy


class ExactIndex:
    """a = max ⟨x̂, v⟩ over all entries of each label, by blocks of one matrix product."""

    def __init__(self, entries: Entries) -> None:
        self.parts = [entries]  # what it was made with, and then what was added
        self.layout: Tensor | None = None  # the vectors of the first part, laid out for a few queries
        self.asked = 0  # batches of a few queries so far
        self.n_labels = entries.n_labels
        self.one_each = bool((entries.labels[1:] > entries.labels[:-1]).all())

    def _laid_out(self) -> Tensor | None:
        """The vectors in the layout of a CPU's products, once a few queries have come.

        They then take half the time, for one more copy of the vectors; a single query would not pay for it.
        """
        first = self.parts[0].vectors
        self.asked += 1
        fits = first.device.type == "cpu" and first.dtype == torch.float32 and len(first) > 0
        if self.layout is None and self.asked > OFTEN and fits and can_pack():
            self.layout = pack(first, FEW)
        return self.layout

    @property
    def n_entries(self) -> int:
        return sum(map(len, self.parts))

    @property
    def width(self) -> int:
        return self.parts[0].vectors.shape[1]

    @property
    def entries(self) -> Entries:
        """All entries, with those that were added."""
        return _join(self.parts, self.n_labels)

    def search(
        self, queries: Tensor, k: int, exclude: csr_matrix | None = None, allowed: Tensor | None = None
    ) -> Shortlist:
        """The k nearest eligible labels of queries (B, D), without the pairs in exclude (B, L)."""
        queries = checked(queries, k, self.parts[0].vectors)
        who = eligible(queries, self.n_labels, exclude, allowed)
        if who.allowed is not None and who.share < SELECTIVE:
            return self.only(who.allowed).search(queries, k, exclude)
        return collect(self, queries, k, who, limit=self.n_entries)[0]

    def added(self, vectors: Tensor, labels: Tensor) -> ExactIndex:
        """With unit vectors (e, D) of new labels (e,), ascending, whose rows follow those of the index."""
        if not len(labels):
            return self
        if int(labels.min()) < self.n_labels:
            raise UsageError(f"label row {int(labels.min())} is not new: add rows from {self.n_labels} on")
        # what was there at first may be mapped from a file and is never copied
        first, *added = self.parts
        size = max(self.n_labels, int(labels.max()) + 1)
        new = Entries(vectors.to(first.vectors), labels.to(first.labels), size)
        recent = _join([*added, new], size)
        index = copy(self)  # whoever searches the old one is not disturbed
        index.parts, index.n_labels = [first, recent], size
        index.one_each = self.one_each and bool((recent.labels[1:] > recent.labels[:-1]).all())
        return index

    def only(self, allowed: Tensor) -> ExactIndex:
        """An index over the entries of the labels in allowed (L,) bool."""
        return ExactIndex(_join([part.only(allowed) for part in self.parts], self.n_labels))

    def nearest(
        self, queries: Tensor, rows: Tensor, n: int, k: int, who: Eligible
    ) -> tuple[Shortlist, Tensor]:
        """The k best labels among those of the n nearest entries; (r,) bool: whether that is final."""
        return merged(self, queries, rows, n, k, who)

    def fetch(self, queries: Tensor, n: int) -> tuple[Tensor, Tensor]:
        """Similarity (B, n), descending, and entry (B, n) of the nearest n ≤ E entries."""
        best = queries.new_empty(len(queries), 0)
        where = best.long()
        start = 0
        for part in self.parts:
            for block in part.vectors.split(max(1, SCORES // len(queries))):
                whole = start == 0 and len(block) == len(part) and len(queries) <= FEW
                layout = self._laid_out() if whole else None
                found = products(queries, block) if layout is None else product(queries, layout)
                scores, place = top(found, n)
                best, where = torch.cat([best, scores], 1), torch.cat([where, place + start], 1)
                if start:  # best of the blocks before and best of this one
                    best, order = best.topk(min(n, best.shape[1]), dim=1)
                    where = where.gather(1, order)
                start += len(block)
        return best, where

    def label_of(self, entries: Tensor) -> Tensor:
        """The label of each entry."""
        return self._take([part.labels for part in self.parts], entries)

    def similarity(self, queries: Tensor, entries: Tensor) -> Tensor:
        """⟨x̂_b, v_e⟩ for entries (B, n), summed in f64 so that the order of the sum leaves no trace."""
        sums = [
            gathered.mul_(x[:, None]).sum(-1, dtype=torch.float64)  # (b, n, D) → (b, n)
            for x, gathered in self._gathered(queries, entries)
        ]
        return torch.cat(sums).float()

    def owned(self, labels: Ints) -> tuple[Ints, Ints]:
        """The first entry of each of these labels, and how many it has; they follow one another."""
        start = first = count = np.zeros_like(labels)
        for part in self.parts:
            begin, end = (part.offsets[np.minimum(labels + after, part.n_labels)] for after in (0, 1))
            first, count = np.where(end > begin, start + begin, first), count + end - begin
            start = start + len(part)
        return first, count

    def _gathered(self, queries: Tensor, entries: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Some queries (b, D) at a time, with the vectors (b, n, D) of their entries."""
        vectors = [part.vectors for part in self.parts]
        rows = max(1, GATHERED // max(1, entries.shape[1] * self.width))
        for x, some in zip(queries.split(rows), entries.split(rows), strict=True):
            yield x, self._take(vectors, some)

    @staticmethod
    def _take(parts: list[Tensor], entries: Tensor) -> Tensor:
        """Rows of the parts as if they were one tensor."""
        if len(parts) == 1:
            return parts[0].index_select(0, entries.flatten()).view(*entries.shape, *parts[0].shape[1:])
        late = entries >= len(parts[0])
        rows = parts[0].new_empty(*entries.shape, *parts[0].shape[1:])
        rows[~late] = parts[0][entries[~late]]
        rows[late] = parts[1][entries[late] - len(parts[0])]
        return rows


def _join(parts: list[Entries], n_labels: int) -> Entries:
    """The entries of the parts, whose labels ascend from one to the next, in one."""
    if len(parts) == 1:
        return parts[0]
    vectors = torch.cat([part.vectors for part in parts])
    return Entries(vectors, torch.cat([part.labels for part in parts]), n_labels)


def products(queries: Tensor, vectors: Tensor) -> Tensor:
    """⟨x̂_b, v_e⟩ (B, E) in f32, rounded in an order that depends on the shape."""
    tall = len(vectors) // 1024
    if len(queries) > 1 or not tall or vectors.device.type != "cpu":
        return queries @ vectors.T
    # for one query a batch of short products runs at memory speed, one tall product 3 times slower
    head, rest = vectors[: tall * 1024], vectors[tall * 1024 :]
    scores = torch.bmm(head.unflatten(0, (tall, 1024)), queries.T.expand(tall, -1, 1))  # (tall, 1024, 1)
    return torch.cat([scores.view(1, -1), queries @ rest.T], 1)


def top(scores: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """The n largest of each row (B, E), descending, and their columns.

    The n largest lie in the n groups with the largest maxima, so with groups of G ≈ √(E/n) columns the costly
    selection sees E/G + n·G numbers instead of E.
    """
    width = scores.shape[1]
    n = min(n, width)
    size = min(GROUP, math.isqrt(width // max(n, 1)))  # n is 0 where there are no entries
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
