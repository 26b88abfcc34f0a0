"""Exact search on a GPU: scan all entries in half precision, then rescore the best in full precision.

The scan multiplies unit queries with d = v − μ, the entries without their mean, and keeps the maximum of each
group of 32 entries. The members of the W best groups are rescored from the f32 vectors. No other entry can
score more than ⟨q, μ⟩ plus the best remaining group plus the rounding error,

    |⟨q̃, d̃⟩ − ⟨q, d⟩| ≤ ‖q − q̃‖ max ‖d̃‖ + max ‖d − d̃‖ + ε max ‖d̃‖,

so a query is done once its k-th label scores above that bound; otherwise more groups are rescored. Vectors of
a trained model often lie in a narrow cone; without their mean, the error shrinks as their differences do.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from functools import partial
from types import ModuleType

import torch
from scipy.sparse import csr_matrix
from torch import Tensor
from torch.nn import functional as F

from mufin.retrieve.entries import Entries
from mufin.retrieve.exact import ExactIndex, top
from mufin.retrieve.shortlist import LabelFilter, Shortlist
from mufin.runtime.recorded import Recorded, holds, pads, waits

TILE, GROUP, CHUNK = 128, 32, 64  # as in kernels.py
QUERIES_PER_PASS = 512  # their group maxima take G · 512 numbers
SUMMATION_ERROR = 1e-4  # ε: a generous bound on the relative error of f32 summation
ROUNDS = 4  # parts of the queries that need more groups, by how many they need
MIN_ALLOWED_SHARE = 0.25  # below this share of allowed labels, score only their entries
ROUNDING = 1e-6  # of similarities in f32
MAX_GATHERED = 2**26  # numbers gathered at a time without the kernels
NO_FILTER = LabelFilter(0, None, None, share=1.0, excluded=0.0)


@dataclass(frozen=True)
class Packed:
    """Entries without their mean in half precision, ordered for the kernels and padded with zeros."""

    rows: Tensor  # (E', D') f16
    mean: Tensor  # μ (D,)
    norm: Tensor  # () max ‖d̃‖
    error: Tensor  # () max ‖d − d̃‖


@dataclass(frozen=True)
class Bounds:
    """What turns the maximum of a group, for queries (b,), into an upper bound of its similarities."""

    norm: Tensor  # ‖q‖, as scanned queries are unit vectors
    margin: Tensor  # the rounding error
    offset: Tensor  # ⟨q, μ⟩

    def of(self, maximum: Tensor) -> Tensor:
        """Return the upper bounds (b,)."""
        return (maximum + self.margin) * self.norm + self.offset + ROUNDING

    def take(self, rows: Tensor) -> Bounds:
        return Bounds(self.norm[rows], self.margin[rows], self.offset[rows])


class ScanIndex(ExactIndex):
    """`ExactIndex` for a GPU: the same results, bound by arithmetic or memory rather than by selection."""

    def __init__(self, entries: Entries) -> None:
        super().__init__(entries)
        self.kernels = _load_kernels(entries.vectors)
        self.single: dict[int, Recorded] = {}  # searches for one query, by k
        self._pack()

    def added(self, vectors: Tensor, labels: Tensor) -> ScanIndex:
        """Return a copy with unit vectors (e, D) of new labels (e,), ascending, after the existing rows."""
        # copying on a GPU takes milliseconds, and one part is simpler to scan
        return ScanIndex(super().added(vectors, labels).entries)

    def _pack(self) -> None:
        self.packed = pack(self.parts[0].vectors)

    def search(
        self, queries: Tensor, k: int, exclude: csr_matrix | None = None, allowed: Tensor | None = None
    ) -> Shortlist:
        """Return the k nearest allowed labels of queries (B, D), without the pairs in exclude (B, L)."""
        if exclude is None and allowed is None and (single := self._search_single(queries, k)) is not None:
            return single
        queries, label_filter = self.prepare(queries, k, exclude, allowed)
        n_groups = _groups_needed(k, label_filter)
        if label_filter.share < MIN_ALLOWED_SHARE or not self._can_scan(n_groups):
            return super().search(queries, k, exclude, allowed)
        found = Shortlist.empty(len(queries), k, queries.device)
        for rows in torch.arange(len(queries), device=queries.device).split(QUERIES_PER_PASS):
            todo = self._scan(queries[rows], rows, k, n_groups, label_filter, found)
            if len(todo):
                rest = None if exclude is None else exclude[todo.cpu().numpy()]
                found.put(todo, super().search(queries[todo], k, rest, allowed))
        return found

    def _can_scan(self, n_groups: int) -> bool:
        return n_groups < len(self.packed.rows) // GROUP // 2

    def _scan(
        self,
        queries: Tensor,
        rows: Tensor,
        k: int,
        n_groups: int,
        label_filter: LabelFilter,
        found: Shortlist,
    ) -> Tensor:
        """Fill in the rows (b,) of these queries (b, D); return those that would need too many groups.

        The k-th similarity among the first groups says which others may hold a better label: only queries
        with such groups need a second round, with exactly these groups.
        """
        maxima, bounds = self._maxima(queries)  # (b, G), a view of (G, b)
        part, done = self._top_labels(queries, rows, maxima, bounds, k, n_groups, label_filter)
        found.put(rows, part)
        todo = (~done).nonzero()[:, 0]  # waits for the GPU
        if not len(todo) or part.labels.shape[1] < k:
            return rows[todo]
        kth = part.similarity[todo, k - 1]
        needed = (bounds.take(todo).of(maxima.T[:, todo]) >= kth).sum(0)  # groups of each query
        needed, order = needed.sort()
        left = [todo[:0]]
        for some, most in zip(todo[order].chunk(ROUNDS), needed.chunk(ROUNDS), strict=True):
            n_groups = int(most[-1])
            if self._can_scan(n_groups):
                part, done = self._top_labels(
                    queries[some], rows[some], maxima[some], bounds.take(some), k, n_groups, label_filter
                )
                found.put(rows[some], part)
                some = some[~done]
            left.append(some)
        return rows[torch.cat(left)]

    def _search_single(self, query: Tensor, k: int) -> Shortlist | None:
        """Search for one unfiltered query (1, D) without waiting for the GPU; None if it fails.

        Two dozen launches would take longer than the scan itself, so the search is recorded.
        """
        entries = self.parts[0]
        known = query.shape == (1, self.width) and query.dtype == entries.vectors.dtype and waits(query)
        if not known or k < 1 or not len(entries):
            return None
        if not self._can_scan(_groups_needed(k, NO_FILTER)) and not pads(query, len(entries)):
            return None  # too many entries to score them all at once
        if k not in self.single:
            self.single[k] = Recorded(partial(self._scan_single, k=k))
        found = self.single[k](query)
        return None if found is None else Shortlist(*found)

    def _scan_single(self, query: Tensor, k: int) -> tuple[Tensor, Tensor] | None:
        """Return labels and similarities (1, k) of one query; None if they are not final."""
        rows, n_groups = torch.zeros(1, dtype=torch.int64, device=query.device), _groups_needed(k, NO_FILTER)
        if self._can_scan(n_groups):
            maxima, bounds = self._maxima(query)
        else:  # few entries: score them all
            maxima = torch.zeros(1, -(-len(self.parts[0]) // GROUP), device=query.device)
            bounds, n_groups = None, maxima.shape[1]
        part, done = self._top_labels(query, rows, maxima, bounds, k, n_groups, NO_FILTER)
        missing = k - part.labels.shape[1]
        labels, similarity = F.pad(part.labels, (0, missing), value=-1), part.similarity
        similarity = F.pad(similarity, (0, missing), value=-math.inf).masked_fill(labels < 0, -math.inf)
        return (labels, similarity) if holds(done[0]) else None

    def _top_labels(
        self,
        queries: Tensor,
        rows: Tensor,
        maxima: Tensor,
        bounds: Bounds | None,
        k: int,
        n_groups: int,
        label_filter: LabelFilter,
    ) -> tuple[Shortlist, Tensor]:
        """Return the k best labels of the best n_groups groups, and whether they are final, (b,) bool.

        Without bounds, n_groups is the number of all groups.
        """
        best, groups = top(maxima, n_groups + 1)
        groups = groups[:, :n_groups].contiguous()
        scores = self._scores(queries, groups).flatten(1)  # (b, W·32)
        if label_filter.pairs is not None or label_filter.share < 1:
            ok = label_filter.check(
                rows, self._labels(groups, torch.arange(scores.shape[1], device=rows.device)[None])
            )
            scores = scores.masked_fill(~ok, -math.inf)
        # each group keeps one entry per label; a label may span two groups, but hardly three
        near, place = scores.topk(scores.shape[1] if bounds is None else min(2 * k, scores.shape[1]), dim=1)
        labels = self._labels(groups, place)
        last = near[:, -1]
        labels, order = labels.sort(dim=1, stable=True)  # nearest first within a label
        near = near.gather(1, order)
        near[:, 1:].masked_fill_(labels[:, 1:] == labels[:, :-1], -math.inf)
        near, order = near.sort(dim=1, descending=True, stable=True)  # ties: the lower row
        labels = labels.gather(1, order).masked_fill(near.isinf(), -1)
        found = Shortlist(labels[:, :k], near[:, :k])
        if bounds is None:
            return found, queries.isfinite().all(1)
        bound = bounds.of(best[:, n_groups])  # of the entries of all other groups
        kth = near[:, min(k, near.shape[1]) - 1]
        return found, kth > torch.maximum(bound, last)

    def _labels(self, groups: Tensor, place: Tensor) -> Tensor:
        """Return the labels of the members of groups (b, W) at these flat places (b or 1, n)."""
        place = place.expand(len(groups), -1)
        entries = groups.gather(1, place // GROUP) * GROUP + place % GROUP
        return self.parts[0].labels[entries.clamp(max=len(self.parts[0]) - 1)]

    def _maxima(self, queries: Tensor) -> tuple[Tensor, Bounds]:
        """Scan all entries: return the maxima (b, G) of groups for queries (b, D), and what bounds them."""
        maxima = self.kernels.group_maxima if self.kernels else group_maxima
        rounded, error, norm = rounded_queries(queries, self.packed.rows.shape[1])
        margin = (error + SUMMATION_ERROR) * self.packed.norm + self.packed.error
        offset = (queries.double() @ self.packed.mean.double()).float()
        found: Tensor = maxima(rounded, self.packed.rows)
        return found.T, Bounds(norm, margin, offset)

    def _scores(self, queries: Tensor, groups: Tensor) -> Tensor:
        scores = self.kernels.member_scores if self.kernels else member_scores
        entries = self.parts[0]
        found: Tensor = scores(queries.contiguous(), entries.vectors, entries.labels, groups)
        return found


def _groups_needed(k: int, label_filter: LabelFilter) -> int:
    """Return how many groups hold the k nearest labels of most queries despite bf16 rounding."""
    return math.ceil((1.7 * k + 2 * label_filter.excluded + 16) / max(label_filter.share, 1e-9))


def _load_kernels(vectors: Tensor) -> ModuleType | None:
    """Return the Triton kernels; None if they do not support these vectors."""
    if vectors.device.type != "cuda" or vectors.shape[1] > 4 * CHUNK:
        return None
    try:
        from mufin.retrieve import kernels

        some = torch.zeros(TILE, CHUNK, dtype=torch.float16, device=vectors.device)
        kernels.group_maxima(some[:1], some)
    except Exception as error:  # no Triton, no C compiler for its launchers, or a GPU that is too old
        warnings.warn(f"Triton kernels unavailable, search is slower ({error})", RuntimeWarning, stacklevel=4)
        return None
    return kernels


def pack(vectors: Tensor, block: int = 2**20) -> Packed:
    """Pack entries (E, D) for the kernels.

    A tile holds the first pair of each of its 4 groups, then their second pairs, …; see kernels.py.
    """
    tiles, width = -(-len(vectors) // TILE), -(-vectors.shape[1] // CHUNK) * CHUNK
    packed = torch.zeros(tiles * TILE, width, dtype=torch.float16, device=vectors.device)
    mean = vectors.mean(0) if len(vectors) else vectors.new_zeros(vectors.shape[1])
    norm, error = vectors.new_zeros(()), vectors.new_zeros(())
    for start in range(0, len(vectors), block):
        part = vectors[start : start + block] - mean
        rounded = part.half()
        norm = torch.maximum(norm, rounded.float().norm(dim=1).max())
        error = torch.maximum(error, (part - rounded.float()).norm(dim=1).max())
        padded = F.pad(rounded, (0, width - part.shape[1], 0, -len(part) % TILE))
        ordered = padded.view(-1, 4, GROUP // 2, 2, width).transpose(1, 2)
        packed[start : start + len(padded)] = ordered.reshape(-1, width)
    return Packed(packed, mean, norm, error)


def rounded_queries(queries: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return q̃ (B, D') in half precision, ‖q/‖q‖ − q̃‖ and ‖q‖ (B,)."""
    norm = queries.norm(dim=1).clamp(min=torch.finfo(torch.float32).tiny)
    unit = queries / norm[:, None]
    rounded = unit.half()
    error = (unit - rounded.float()).norm(dim=1)
    return F.pad(rounded, (0, width - queries.shape[1])).contiguous(), error, norm


def group_maxima(queries: Tensor, packed: Tensor, scores: int = 2**28) -> Tensor:
    """Return max ⟨q, v⟩ over each group of 32 entries (G, B), for queries (B, D'), entries (E', D')."""
    parts = []
    for block in packed.split(max(1, scores // len(queries) // TILE) * TILE):
        product = _half_product(block, queries)  # (e, B)
        parts.append(product.view(-1, GROUP // 2, 4, 2, len(queries)).amax((1, 3)).flatten(0, 1))
    return torch.cat(parts)


def _half_product(block: Tensor, queries: Tensor) -> Tensor:
    """Multiply matrices in half precision, with sums and results in f32."""
    if block.is_cuda:
        return torch.mm(block, queries.T, out_dtype=torch.float32)
    return block.float() @ queries.float().T


def member_scores(queries: Tensor, vectors: Tensor, labels: Tensor, groups: Tensor) -> Tensor:
    """Return ⟨q, v⟩ (B, W, 32), summed in f64, for members of groups (B, W).

    Within a group, only the best entry of each label keeps its score; the others are −inf.
    """
    member = torch.arange(GROUP, device=groups.device)
    earlier = member[None, :] < member[:, None]  # (32, 32): column before row
    step = max(1, MAX_GATHERED // (groups.shape[1] * GROUP * max(vectors.shape[1], GROUP)))
    parts = []
    for x, some in zip(queries.split(step), groups.split(step), strict=True):
        rows = some[:, :, None] * GROUP + member  # (b, W, 32)
        exists, rows = rows < len(vectors), rows.clamp(max=len(vectors) - 1)
        score = (vectors[rows].double() * x[:, None, None]).sum(-1).float().masked_fill(~exists, -math.inf)
        row, column = score[..., :, None], score[..., None, :]
        same = labels[rows][..., :, None] == labels[rows][..., None, :]
        beaten = (same & ((column > row) | ((column == row) & earlier))).any(-1)
        parts.append(score.masked_fill(beaten, -math.inf))
    return torch.cat(parts)
