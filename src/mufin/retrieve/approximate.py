"""Approximate search by faiss for many entries on a CPU; it tunes itself to the recall that is asked for."""

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
from mufin.retrieve.shortlist import ROUNDING, Eligible, Shortlist, checked, collect, eligible, first_fetch

SELECTIVE = 0.05  # below this share of allowed labels their entries are scored exactly
LARGE_PART = 32  # a fetch of more than 1/32 of the entries is left to exact search
COARSE, LEAST = 4, 1500  # 4-bit codes misplace neighbours: of n wanted, 4 n are scored again, or 1,500
ALONE, TOGETHER = 11, 0  # how faiss reads lists: for one query, and for many
SAMPLE = 256  # queries of the recall check
MARGIN = 0.003  # above the recall asked for, since the check sees a sample only: two standard errors of it
EFFORTS = tuple(round(64 * 1.12**i) for i in range(31))  # efSearch, to 1,900
PROBES = tuple(sorted({round(8 * 1.12**i) for i in range(47)}))  # nprobe, to 1,500


class ApproximateIndex:
    """The answers of `ExactIndex`, found among the entries that faiss holds to be near.

    The similarities are exact: what faiss finds is scored again with the vectors themselves.
    """

    def __init__(self, entries: Entries, recall: float = 0.97, queries: Tensor | None = None) -> None:
        """Build, and raise the effort until the recall@100 of queries (B, D) is reached.

        Queries like those to come make the tuning true; without any, disturbed entries stand in.
        """
        self.exact = ExactIndex(entries)
        self.faiss: Any = build(_numpy(entries.vectors))
        self._tune(recall, _disturbed(entries) if queries is None else queries[:SAMPLE])

    @property
    def n_entries(self) -> int:
        return self.exact.n_entries

    @property
    def n_labels(self) -> int:
        return self.exact.n_labels

    @property
    def entries(self) -> Entries:
        """All entries, with those that were added."""
        return self.exact.entries

    def search(
        self, queries: Tensor, k: int, exclude: csr_matrix | None = None, allowed: Tensor | None = None
    ) -> Shortlist:
        """The k nearest eligible labels of queries (B, D), without the pairs in exclude (B, L)."""
        queries = checked(queries, k, self.exact.parts[0].vectors)
        who = eligible(queries, self.n_labels, exclude, allowed)
        limit = self.n_entries // LARGE_PART
        if who.share < SELECTIVE or first_fetch(self, k, who) > limit:
            return self.exact.search(queries, k, exclude, allowed)
        found, short = collect(self, queries, k, who, limit)
        if len(short):
            rest = None if exclude is None else exclude[short.cpu().numpy()]
            found.put(short, self.exact.search(queries[short], k, rest, allowed))
        return found

    def added(self, vectors: Tensor, labels: Tensor) -> ApproximateIndex:
        """With unit vectors (e, D) of new labels (e,), ascending, whose rows follow those of the index."""
        faiss, index = load_faiss(), copy(self)
        index.exact = self.exact.added(vectors, labels)
        # A copy, in memory: others may be searching the old one, and faiss ends the process when a mapped
        # index grows.
        index.faiss = faiss.deserialize_index(faiss.serialize_index(self.faiss))
        index.faiss.add(_numpy(vectors))
        return index

    def nearest(
        self, queries: Tensor, rows: Tensor, n: int, k: int, who: Eligible
    ) -> tuple[Shortlist, Tensor]:
        """The k best labels among those of the n nearest entries; (r,) bool: whether there were enough.

        Of the labels that the nearest belong to all entries are looked at, whether faiss found them or not.
        """
        asked, many = _numpy(queries), n
        if not self.is_graph:
            many = min(max(COARSE * n, LEAST), self.n_entries)
            self.lists.implem = ALONE if len(asked) == 1 else TOGETHER
        with _threads(1 if len(asked) == 1 else None):
            _, found = self.faiss.search(asked, many, params=self._parameters(many))
            near, found = _best(self._near(asked, found), found, n)
            last = near.min(axis=1)
            labels = self.exact.label_of(torch.from_numpy(found).clamp(min=0)).numpy()
            labels = np.where(found < 0, -1, labels)
            if not self.exact.one_each:
                labels, near = self._whole(asked, labels)
        if not who.all:
            shown = who.check(rows, torch.from_numpy(labels).to(rows.device)).cpu().numpy()
            labels, near = np.where(shown, labels, -1), np.where(shown, near, -np.inf)
        labels, near = _first(labels, near, k)
        done = torch.from_numpy((near[:, -1] > last + ROUNDING) | (n >= self.n_entries))
        part = Shortlist(torch.from_numpy(labels), torch.from_numpy(near))
        return Shortlist(*(t.to(queries.device) for t in vars(part).values())), done.to(queries.device)

    def _near(self, queries: Floats, entries: Ints) -> Floats:
        """⟨x̂_b, v_e⟩ for entries (B, n) by rows where they lie, with no copy of them; −inf for −1."""
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

    def _whole(self, queries: Floats, labels: Ints) -> tuple[Ints, Floats]:
        """Each of the labels (B, n) once, and a = max ⟨x̂_b, v⟩ over all its entries; then −1 and −inf."""
        labels = np.sort(labels, axis=1)
        fresh = labels >= 0
        fresh[:, 1:] &= labels[:, 1:] != labels[:, :-1]
        some = labels[fresh]  # (Σ,), query after query
        first, count = self.exact.owned(some)
        own, query = np.repeat(np.arange(len(some)), count), np.nonzero(fresh)[0]
        entries = padded(ranges(first, count), np.bincount(query[own], minlength=len(labels)), -1)
        best = np.maximum.reduceat(self._near(queries, entries)[entries >= 0], np.cumsum(count) - count)
        sizes = fresh.sum(1)
        return padded(some, sizes, -1), padded(best, sizes, -np.inf)

    def of_labels(self, queries: Tensor, labels: Tensor) -> Tensor:
        """a = max ⟨x̂_b, v⟩ over the entries of labels (B, K), read where they lie; −inf for −1, and for a
        label without any."""
        rows = labels.cpu().numpy()
        first, count = self.exact.owned(np.maximum(rows, 0).ravel())
        count = np.where(rows.ravel() < 0, 0, count)
        entries = padded(ranges(first, count), count.reshape(rows.shape).sum(1), -1)
        near, best = self._near(_numpy(queries), entries), np.full(rows.size, -np.inf, np.float32)
        if (some := count > 0).any():
            best[some] = np.maximum.reduceat(near[entries >= 0], (np.cumsum(count) - count)[some])
        return torch.from_numpy(best.reshape(rows.shape)).to(queries.device)

    def save(self, path: Path | str) -> None:
        """Write the faiss index; the entries are the caller's to keep."""
        try:
            load_faiss().write_index(self.faiss, str(path))
        except RuntimeError as error:  # what faiss says of a full disk
            raise OSError(errno.EIO, str(error), str(path)) from None

    @classmethod
    def load(cls, path: Path | str, entries: Entries) -> ApproximateIndex:
        """The saved index over the same entries, mapped from its file instead of read."""
        stored = read_faiss(Path(path), (len(entries), entries.vectors.shape[1]))
        index = cls.__new__(cls)
        index.exact, index.faiss = ExactIndex(entries), stored
        return index

    @property
    def is_graph(self) -> bool:
        """HNSW; lists of codes otherwise."""
        return hasattr(self.faiss, "hnsw")

    @property
    def lists(self) -> Any:
        """What holds the codes: `nlist` lists, `nprobe` of which a query reads."""
        faiss = load_faiss()
        return faiss.downcast_index(faiss.extract_index_ivf(self.faiss))

    def _parameters(self, n: int) -> Any:
        """How hard to search for n entries, where that depends on n."""
        if not self.is_graph:
            return None
        return load_faiss().SearchParametersHNSW(efSearch=max(n, self.faiss.hnsw.efSearch))

    def _tune(self, recall: float, queries: Tensor, k: int = 100) -> None:
        """Take the least effort that reaches the recall of k labels."""
        truth = self.exact.search(queries, k).labels
        steps = EFFORTS if self.is_graph else PROBES

        def reaches(effort: int) -> bool:
            self._set_effort(effort)
            return label_recall(self.search(queries, k).labels, truth) >= min(1.0, recall + MARGIN)

        # where none reaches it, the greatest
        self._set_effort(steps[min(bisect_left(steps, True, key=reaches), len(steps) - 1)])

    def _set_effort(self, effort: int) -> None:
        if self.is_graph:
            self.faiss.hnsw.efSearch = effort
        else:
            self.lists.nprobe = effort


def label_recall(found: Tensor, truth: Tensor) -> float:
    """The share of the true labels (B, k) that were found (B, k); −1 is no label."""
    hits = (truth[:, :, None] == found[:, None, :]).any(2) & (truth >= 0)
    return float(hits.sum() / (truth >= 0).sum().clamp(min=1))


def _disturbed(entries: Entries) -> Tensor:
    """Stand-ins for queries (≤ SAMPLE, D): v moved to a cosine near 0.8, the way two entries differ."""
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randint(max(1, len(entries)), (3, min(SAMPLE, len(entries))), generator=generator)
    vector, one, other = entries.vectors[chosen]
    return normalize(vector + 0.75 * normalize(one - other, dim=1), dim=1)


def _best(near: Floats, found: Ints, n: int) -> tuple[Floats, Ints]:
    """The n nearest of each row (B, m), in no order; all, and −inf and −1, where there are fewer."""
    if near.shape[1] < n:
        width = ((0, 0), (0, n - near.shape[1]))
        return np.pad(near, width, constant_values=-np.inf), np.pad(found, width, constant_values=-1)
    chosen = np.argpartition(-near, n - 1, axis=1)[:, :n]
    return np.take_along_axis(near, chosen, 1), np.take_along_axis(found, chosen, 1)


def _first(labels: Ints, near: Floats, k: int) -> tuple[Ints, Floats]:
    """The k nearest of each row (B, m) by falling similarity, then by rising label; −1 and −inf behind."""
    if near.shape[1] < k:
        more = ((0, 0), (0, k - near.shape[1]))
        labels, near = np.pad(labels, more, constant_values=-1), np.pad(near, more, constant_values=-np.inf)
    order = np.lexsort((labels, -near), axis=1)[:, :k]
    return np.take_along_axis(labels, order, 1), np.take_along_axis(near, order, 1)


def sample(vectors: Tensor | None) -> Tensor | None:
    """Some of these query vectors (n, D), for an index to tune itself to; None if there are none."""
    if vectors is None or not len(vectors):
        return None
    return vectors[:: max(1, len(vectors) // SAMPLE)][:SAMPLE]


def _numpy(vectors: Tensor) -> Floats:
    """f32 in rows, as faiss wants it."""
    return np.ascontiguousarray(vectors.detach().cpu().float().numpy())


@contextmanager
def _threads(n: int | None) -> Iterator[None]:
    """Let faiss use n threads: waking others for a single query costs more than they give."""
    faiss = load_faiss()
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(n or before)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)
