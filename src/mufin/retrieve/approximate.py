"""Approximate search by faiss for many entries on a CPU; it tunes itself to the recall that is asked for."""

from __future__ import annotations

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

from mufin.errors import ModelError
from mufin.retrieve.entries import Entries
from mufin.retrieve.exact import ExactIndex
from mufin.retrieve.shortlist import Shortlist, checked, collect, eligible, first_fetch

GRAPH = 20_000  # up to here HNSW over 8-bit vectors: too few to learn lists and codes from
SELECTIVE = 0.05  # below this share of allowed labels their entries are scored exactly
LARGE_PART = 32  # a fetch of more than 1/32 of the entries is left to exact search
COARSE, MORE = 3, 8  # 4-bit codes misplace neighbours: of n wanted, 3 n and 8 a list are scored again
SAMPLE = 128  # queries of the recall check
MARGIN = 0.005  # above the recall asked for: the check sees a sample only
BREADTH = (
    100  # efConstruction: with the 40 of faiss more is missed at the same effort, 200 builds half as fast
)
POINTS, ROUNDS = 40, 8  # of k-means: entries a list (faiss wants 39), and passes; more finds nothing more
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
        self.faiss: Any = _build(entries)
        self._tune(recall, _disturbed(entries) if queries is None else queries[:SAMPLE])

    @property
    def n_entries(self) -> int:
        return self.exact.n_entries

    @property
    def n_labels(self) -> int:
        return self.exact.n_labels

    @property
    def one_each(self) -> bool:
        return self.exact.one_each

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
        faiss, index = _faiss(), copy(self)
        index.exact = self.exact.added(vectors, labels)
        # A copy, in memory: others may be searching the old one, and faiss ends the process when a mapped
        # index grows.
        index.faiss = faiss.deserialize_index(faiss.serialize_index(self.faiss))
        index.faiss.add(_numpy(vectors))
        return index

    def fetch(self, queries: Tensor, n: int) -> tuple[Tensor, Tensor]:
        """Similarity (B, n), descending, and entry (B, n) of near ones; −inf and −1 after the last."""
        many = n if self.is_graph else min(COARSE * n + MORE * self.faiss.nprobe, self.n_entries)
        with _threads(1 if len(queries) == 1 else None):
            _, found = self.faiss.search(_numpy(queries), many, params=self._parameters(many))
        entries = torch.from_numpy(found).to(queries.device)
        similarity = self.exact.rough_similarity(queries, entries.clamp(min=0))
        similarity, order = similarity.where(entries >= 0, -torch.inf).topk(n, dim=1)
        return similarity, entries.gather(1, order)

    def label_of(self, entries: Tensor) -> Tensor:
        """The label of each entry."""
        return self.exact.label_of(entries)

    def similarity(self, queries: Tensor, entries: Tensor) -> Tensor:
        """⟨x̂_b, v_e⟩ for entries (B, n)."""
        return self.exact.similarity(queries, entries)

    def save(self, path: Path | str) -> None:
        """Write the faiss index; the entries are the caller's to keep."""
        _faiss().write_index(self.faiss, str(path))

    @classmethod
    def load(cls, path: Path | str, entries: Entries) -> ApproximateIndex:
        """The saved index over the same entries, mapped from its file instead of read."""
        faiss = _faiss()
        try:
            stored = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
        except RuntimeError as error:
            raise ModelError(f"{path} is no faiss index that can be read: build the index again") from error
        if (stored.ntotal, stored.d) != tuple(entries.vectors.shape):
            raise ModelError(
                f"{path} holds ({stored.ntotal}, {stored.d}) vectors, but the entries are "
                f"{tuple(entries.vectors.shape)}: build the index again"
            )
        index = cls.__new__(cls)
        index.exact, index.faiss = ExactIndex(entries), stored
        return index

    @property
    def is_graph(self) -> bool:
        """HNSW; lists of codes otherwise."""
        return hasattr(self.faiss, "hnsw")

    def _parameters(self, n: int) -> Any:
        """How hard to search for n entries."""
        if self.is_graph:
            return _faiss().SearchParametersHNSW(efSearch=max(n, self.faiss.hnsw.efSearch))
        return _faiss().SearchParametersIVF(nprobe=self.faiss.nprobe)

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
            self.faiss.nprobe = effort


def label_recall(found: Tensor, truth: Tensor) -> float:
    """The share of the true labels (B, k) that were found (B, k); −1 is no label."""
    hits = (truth[:, :, None] == found[:, None, :]).any(2) & (truth >= 0)
    return float(hits.sum() / (truth >= 0).sum().clamp(min=1))


def _build(entries: Entries) -> Any:
    """The faiss index for inner products over the entries."""
    faiss = _faiss()
    n, width = entries.vectors.shape
    lists = min(round(2 * n**0.5), n // POINTS)
    how = "HNSW32,SQ8" if n <= GRAPH else f"IVF{lists},PQ{width // 2 if width % 2 == 0 else width}x4fs"
    index = faiss.index_factory(width, how, faiss.METRIC_INNER_PRODUCT)
    vectors = _numpy(entries.vectors)
    if n <= GRAPH:
        index.hnsw.efConstruction = BREADTH
        some = vectors
    else:
        index.cp.niter, index.cp.max_points_per_centroid = ROUNDS, POINTS
        chosen = np.random.default_rng(0).choice(n, min(n, POINTS * lists), replace=False)
        some = vectors[np.sort(chosen)]
    if n:
        index.train(some)
        index.add(vectors)
    return index


def _disturbed(entries: Entries) -> Tensor:
    """Stand-ins for queries (≤ SAMPLE, D): v moved to a cosine near 0.8, the way two entries differ."""
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randint(max(1, len(entries)), (3, min(SAMPLE, len(entries))), generator=generator)
    vector, one, other = entries.vectors[chosen]
    return normalize(vector + 0.75 * normalize(one - other, dim=1), dim=1)


def _numpy(vectors: Tensor) -> np.ndarray[Any, np.dtype[np.float32]]:
    """f32 in rows, as faiss wants it."""
    return np.ascontiguousarray(vectors.detach().cpu().float().numpy())


def _faiss() -> Any:
    """faiss, loaded when it is first needed."""
    import faiss

    return faiss


@contextmanager
def _threads(n: int | None) -> Iterator[None]:
    """Let faiss use n threads: waking others for a single query costs more than they give."""
    faiss = _faiss()
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(n or before)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)
