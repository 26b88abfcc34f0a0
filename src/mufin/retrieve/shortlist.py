"""From the nearest entries to k unique labels: over-fetch, merge by maximum, top up.

A label may own many entries, and some labels may not be shown, so the nearest k entries seldom are k labels.
Whatever the index, the way out is the same and lives here: fetch more entries than k, drop those of labels
that are not eligible, keep the best entry of each label, and fetch more for the queries that are still short.
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

ROWS = 512  # queries merged at a time
CELLS = 2**22  # (query, entry) pairs merged at a time
GROWTH = 8  # how much more is fetched for the queries that are short
ROUNDING = 2e-6  # similarities closer than this may be in either order in a fetch


@dataclass(frozen=True)
class Shortlist:
    """R (B, k): unique labels with a = max ⟨x̂, v⟩ over the label's entries, best first, ties by lower row."""

    labels: Tensor  # (B, k) int64, −1 where fewer are eligible
    similarity: Tensor  # (B, k) f32, −inf there

    @staticmethod
    def empty(n_queries: int, k: int, device: torch.device) -> Shortlist:
        """Nothing found yet."""
        return Shortlist(
            torch.full((n_queries, k), -1, dtype=torch.int64, device=device),
            torch.full((n_queries, k), -math.inf, device=device),
        )

    def put(self, rows: Tensor, part: Shortlist) -> None:
        """Write the shortlists of some rows (r,); a narrower part leaves the last columns as they are."""
        width = part.labels.shape[1]
        self.labels[rows, :width] = part.labels
        self.similarity[rows, :width] = part.similarity


@dataclass(frozen=True)
class Eligible:
    """Which labels a query may be given."""

    n_labels: int
    pairs: Tensor | None  # (nnz,) ascending row · L + label of the excluded pairs
    allowed: Tensor | None  # (L,) bool
    share: float  # of the labels that are allowed
    excluded: float  # mean number of labels excluded by a query

    @property
    def all(self) -> bool:
        """Any label for any query."""
        return self.pairs is None and self.allowed is None

    def check(self, rows: Tensor, labels: Tensor) -> Tensor:
        """(r, n) bool: may query rows[r] be given labels[r, n]? Never where the label is −1."""
        ok = labels >= 0
        if self.allowed is not None:
            ok &= self.allowed[labels.clamp(min=0)]
        if self.pairs is not None:
            ok &= ~among(self.pairs, rows[:, None] * self.n_labels + labels)
        return ok


class Source(Protocol):
    """An index: entries, and the labels that own the nearest of them."""

    @property
    def n_entries(self) -> int: ...

    @property
    def n_labels(self) -> int: ...

    def nearest(
        self, queries: Tensor, rows: Tensor, n: int, k: int, who: Eligible
    ) -> tuple[Shortlist, Tensor]:
        """The k best labels among those of the n nearest entries, for queries (r, D) of these rows (r,);
        (r,) bool: no other entry could change them."""


class Fetching(Source, Protocol):
    """An index that tells which entries are nearest."""

    @property
    def one_each(self) -> bool:
        """No label owns two entries."""

    def fetch(self, queries: Tensor, n: int) -> tuple[Tensor, Tensor]:
        """Similarity (B, n), descending, and entry (B, n) of the nearest; −inf and −1 after the last."""

    def label_of(self, entries: Tensor) -> Tensor:
        """The label of each entry."""

    def similarity(self, queries: Tensor, entries: Tensor) -> Tensor:
        """⟨x̂_b, v_e⟩ for entries (B, n), the same number however many queries are asked together."""


def pair_keys(relation: csr_matrix) -> Tensor:
    """row · L + column of each pair of a relation (B, L), ascending (nnz,); a stored False is none."""
    rows, columns = relation.nonzero()
    return torch.from_numpy(np.sort(rows.astype(np.int64) * relation.shape[1] + columns))


def among(keys: Tensor, wanted: Tensor) -> Tensor:
    """Which of the wanted (...) are among the ascending keys (n,), bool."""
    if not len(keys):
        return torch.zeros_like(wanted, dtype=torch.bool)
    place = torch.searchsorted(keys, wanted).clamp(max=len(keys) - 1)
    return keys[place] == wanted


def eligible(queries: Tensor, n_labels: int, exclude: csr_matrix | None, allowed: Tensor | None) -> Eligible:
    """Check and pack what a search was told to leave out."""
    pairs, device = None, queries.device
    if exclude is not None:
        if exclude.shape != (len(queries), n_labels):
            raise UsageError(
                f"exclude is {exclude.shape}, but there are {len(queries)} queries and {n_labels} labels: "
                "give one row a query and one column a label"
            )
        keys = pair_keys(exclude)
        pairs = keys.to(device) if len(keys) else None
    if allowed is not None:
        if allowed.shape != (n_labels,) or allowed.dtype != torch.bool:
            raise UsageError(
                f"allowed is {allowed.dtype} {tuple(allowed.shape)}: give a bool for each of {n_labels}"
            )
        allowed = allowed.to(device)
    share = 1.0 if allowed is None or not n_labels else float(allowed.sum()) / n_labels
    return Eligible(n_labels, pairs, allowed, share, 0.0 if pairs is None else len(pairs) / len(queries))


def checked(queries: Tensor, k: int, vectors: Tensor) -> Tensor:
    """The queries (B, D) in the type and on the device of the vectors (E, D), or what is wrong with them."""
    if k < 1:
        raise UsageError(f"k is {k}: ask for at least one label")
    if queries.ndim != 2 or queries.shape[1] != vectors.shape[1]:
        raise UsageError(f"queries are {tuple(queries.shape)}, but this index wants (B, {vectors.shape[1]})")
    if not bool(queries.sum().isfinite()):  # nor are they then
        raise UsageError("a query holds NaN or infinity: check the embeddings it comes from")
    return queries.detach().to(vectors)


def first_fetch(source: Source, k: int, who: Eligible) -> int:
    """How many entries to fetch so that most queries are served at once."""
    crowd = max(1.0, source.n_entries / max(1, source.n_labels))  # entries a label; half of them lie near
    lost = 2 * who.excluded + 0.1 * k + 8
    return math.ceil((k + lost) * (1 + crowd) / 2 / max(who.share, 1e-9))


def collect(source: Source, queries: Tensor, k: int, who: Eligible, limit: int) -> tuple[Shortlist, Tensor]:
    """The shortlists of queries (B, D), fetching up to limit entries, and the rows (r,) that are still short.

    No row is short when limit covers all entries; fewer than k labels are then all there are.
    """
    found = Shortlist.empty(len(queries), k, queries.device)
    short = torch.arange(len(queries), device=queries.device)
    n = min(first_fetch(source, k, who), limit)
    while n and len(short):
        left = []
        for rows in short.split(max(1, min(ROWS, CELLS // n))):
            part, done = source.nearest(queries[rows], rows, n, min(k, source.n_labels), who)
            if part.labels.shape == found.labels.shape and bool(done.all()):
                return part, short[:0]
            found.put(rows, part)
            left.append(rows[~done])
        short = torch.cat(left)
        if n == limit:
            break
        n = min(n * GROWTH, limit)
    return found, short


def merged(
    source: Fetching, queries: Tensor, rows: Tensor, n: int, k: int, who: Eligible
) -> tuple[Shortlist, Tensor]:
    """What `Source.nearest` gives, from the entries themselves."""
    near, entries = source.fetch(queries, n)  # (r, n)
    labels = source.label_of(entries.clamp(min=0)).where(entries >= 0, -1)  # (r, n)
    last = near[:, -1]
    if not (source.one_each and who.all and n >= k):  # else all of them are wanted as they are
        keep = who.check(rows, labels)
        if not source.one_each:
            keep &= _first_of_label(labels)
        near, entries, labels = _to_the_left(keep, near, entries, labels, width=k)
    kth = near[:, k - 1]  # −inf where fewer than k were found
    done = kth > last + ROUNDING if n < source.n_entries else torch.ones_like(rows, dtype=torch.bool)
    near_ties = (near >= kth[:, None] - ROUNDING) & (near > -math.inf)  # who may be among the k
    width = max(k, int(near_ties.sum(1).max()))
    return _order(source, queries, entries[:, :width], labels[:, :width], k), done


def _first_of_label(labels: Tensor) -> Tensor:
    """(r, n) bool: the first place of each label in its row, which is the best one since rows are sorted."""
    ordered, place = labels.sort(dim=1, stable=True)
    first = torch.ones_like(labels, dtype=torch.bool)
    first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    return torch.empty_like(first).scatter_(1, place, first)


def _to_the_left(
    keep: Tensor, near: Tensor, entries: Tensor, labels: Tensor, width: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The kept cells of each row in their order, then −inf and −1, at least width columns."""
    column = keep.cumsum(1)  # 1, 2, … for the kept cells; the others go to column 0, which is cut off
    width = max(width, int(column[:, -1].max()))
    column = column.where(keep, 0)
    shape = (len(keep), width + 1)
    return (
        near.new_full(shape, -math.inf).scatter_(1, column, near)[:, 1:],
        entries.new_full(shape, -1).scatter_(1, column, entries)[:, 1:],
        labels.new_full(shape, -1).scatter_(1, column, labels)[:, 1:],
    )


def _order(source: Fetching, queries: Tensor, entries: Tensor, labels: Tensor, k: int) -> Shortlist:
    """Candidates (r, ≥ k) by falling similarity, then by rising label row."""
    labels, place = labels.sort(dim=1)
    similarity = source.similarity(queries, entries.gather(1, place).clamp(min=0))
    similarity, place = similarity.where(labels >= 0, -math.inf).sort(dim=1, descending=True, stable=True)
    return Shortlist(labels.gather(1, place)[:, :k], similarity[:, :k])
