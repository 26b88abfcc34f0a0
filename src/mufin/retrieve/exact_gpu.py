"""Exact search on a GPU: scan all entries in bf16, then rescore the best in full precision.

The scan keeps the maximum of each group of 32 entries. The members of the W best groups are rescored from the
f32 vectors. No other entry can score more than the best remaining group plus the bf16 rounding error,

    |⟨q̃, ṽ⟩ − ⟨q, v⟩| ≤ ‖q − q̃‖ ‖ṽ‖ + ‖q‖ max ‖v − ṽ‖ + ε,

so a query is done once its k-th label scores above that bound; otherwise more groups are rescored.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import partial
from types import ModuleType

import torch
from scipy.sparse import csr_matrix
from torch import Tensor
from torch.nn import functional as F

from mufin.retrieve.entries import Entries
from mufin.retrieve.exact import ExactIndex, top
from mufin.retrieve.shortlist import LabelFilter, Shortlist, build_filter, check_queries

TILE, GROUP, CHUNK = 128, 32, 64  # as in kernels.py
QUERIES_PER_PASS = 512  # their group maxima take G · 512 numbers
SUMMATION_ERROR = 1e-4  # ε: a generous bound on the error of f32 summation
WIDEN_FACTOR = 4  # times as many groups per round for queries that are not done
MIN_ALLOWED_SHARE = 0.25  # below this share of allowed labels, score only their entries
MAX_GATHERED = 2**26  # numbers gathered at a time without the kernels
NO_FILTER = LabelFilter(0, None, None, share=1.0, excluded=0.0)


class ScanIndex(ExactIndex):
    """`ExactIndex` for a GPU: the same results, bound by arithmetic or memory rather than by selection."""

    def __init__(self, entries: Entries) -> None:
        super().__init__(entries)
        self.kernels = _load_kernels(entries.vectors)
        self.graphs: dict[int, SearchGraph] = {}  # by k
        self._pack()

    def added(self, vectors: Tensor, labels: Tensor) -> ScanIndex:
        """Return a copy with unit vectors (e, D) of new labels (e,), ascending, after the existing rows."""
        # copying on a GPU takes milliseconds, and one part is simpler to scan
        return ScanIndex(super().added(vectors, labels).entries)

    def _pack(self) -> None:
        self.packed, self.entry_error = pack(self.parts[0].vectors)

    def search(
        self, queries: Tensor, k: int, exclude: csr_matrix | None = None, allowed: Tensor | None = None
    ) -> Shortlist:
        """Return the k nearest allowed labels of queries (B, D), without the pairs in exclude (B, L)."""
        if exclude is None and allowed is None and (single := self._search_single(queries, k)) is not None:
            return single
        queries = check_queries(queries, k, self.parts[0].vectors)
        label_filter = build_filter(queries, self.n_labels, exclude, allowed)
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
        return n_groups < len(self.packed) // GROUP // 2

    def _scan(
        self,
        queries: Tensor,
        rows: Tensor,
        k: int,
        n_groups: int,
        label_filter: LabelFilter,
        found: Shortlist,
    ) -> Tensor:
        """Fill in the rows (b,) of these queries (b, D); return those that would need too many groups."""
        rounded, query_error = rounded_queries(queries, self.packed.shape[1])
        margin = (
            query_error * (1 + self.entry_error) + queries.norm(dim=1) * self.entry_error + SUMMATION_ERROR
        )  # (b,)
        maxima = self._maxima(rounded)  # (b, G), a view of (G, b)
        part, done = self._top_labels(queries, rows, maxima, margin, k, n_groups, label_filter)
        found.put(rows, part)
        todo = (~done).nonzero()[:, 0]  # the only synchronisation with the host
        while len(todo) and self._can_scan(n_groups := n_groups * WIDEN_FACTOR):
            part, done = self._top_labels(
                queries[todo], rows[todo], maxima[todo], margin[todo], k, n_groups, label_filter
            )
            found.put(rows[todo], part)
            todo = todo[~done]
        return rows[todo]

    def _search_single(self, query: Tensor, k: int) -> Shortlist | None:
        """Search for one unfiltered query (1, D) with a CUDA graph; None if `search` must take over."""
        vectors, n_groups = self.parts[0].vectors, _groups_needed(k, NO_FILTER)
        supported = query.shape == (1, self.width) and query.dtype == vectors.dtype and query.is_cuda
        if self.kernels is None or not supported or k < 1 or not self._can_scan(n_groups):
            return None
        if k not in self.graphs:
            self.graphs[k] = SearchGraph(partial(self._scan_single, k=k, n_groups=n_groups), query)
        return self.graphs[k](query)

    def _scan_single(self, query: Tensor, k: int, n_groups: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return labels and similarities (1, k) of one query, and whether they are final."""
        rounded, query_error = rounded_queries(query, self.packed.shape[1])
        margin = query_error * (1 + self.entry_error) + query.norm(dim=1) * self.entry_error + SUMMATION_ERROR
        rows = torch.zeros(1, dtype=torch.int64, device=query.device)
        part, done = self._top_labels(query, rows, self._maxima(rounded), margin, k, n_groups, NO_FILTER)
        return part.labels, part.similarity, done

    def _top_labels(
        self,
        queries: Tensor,
        rows: Tensor,
        maxima: Tensor,
        margin: Tensor,
        k: int,
        n_groups: int,
        label_filter: LabelFilter,
    ) -> tuple[Shortlist, Tensor]:
        """Return the k best labels of the best n_groups groups, and whether they are final, (b,) bool."""
        best, groups = top(maxima, n_groups + 1)
        bound = best[:, n_groups] + margin  # upper bound for entries of all other groups
        groups = groups[:, :n_groups].contiguous()
        scores = self._scores(queries, groups).flatten(1)  # (b, W·32)
        if label_filter.pairs is not None or label_filter.share < 1:
            ok = label_filter.check(
                rows, self._labels(groups, torch.arange(scores.shape[1], device=rows.device)[None])
            )
            scores = scores.masked_fill(~ok, -math.inf)
        # each group keeps one entry per label; a label may span two groups, but hardly three
        near, place = scores.topk(min(2 * k, scores.shape[1]), dim=1)
        labels = self._labels(groups, place)
        last = near[:, -1]
        labels, order = labels.sort(dim=1, stable=True)  # nearest first within a label
        near = near.gather(1, order)
        near[:, 1:].masked_fill_(labels[:, 1:] == labels[:, :-1], -math.inf)
        near, order = near.sort(dim=1, descending=True, stable=True)  # ties: the lower row
        labels = labels.gather(1, order).masked_fill(near.isinf(), -1)
        kth = near[:, min(k, near.shape[1]) - 1]
        return Shortlist(labels[:, :k], near[:, :k]), kth > torch.maximum(bound, last)

    def _labels(self, groups: Tensor, place: Tensor) -> Tensor:
        """Return the labels of the members of groups (b, W) at these flat places (b or 1, n)."""
        place = place.expand(len(groups), -1)
        entries = groups.gather(1, place // GROUP) * GROUP + place % GROUP
        return self.parts[0].labels[entries.clamp(max=len(self.parts[0]) - 1)]

    def _maxima(self, rounded: Tensor) -> Tensor:
        maxima = self.kernels.group_maxima if self.kernels else group_maxima
        found: Tensor = maxima(rounded, self.packed)
        return found.T

    def _scores(self, queries: Tensor, groups: Tensor) -> Tensor:
        scores = self.kernels.member_scores if self.kernels else member_scores
        entries = self.parts[0]
        found: Tensor = scores(queries.contiguous(), entries.vectors, entries.labels, groups)
        return found


class SearchGraph:
    """Single-query search as a CUDA graph: two dozen launches would take as long as the scan itself."""

    def __init__(self, search: Callable[[Tensor], tuple[Tensor, Tensor, Tensor]], example: Tensor) -> None:
        self.query = example.detach().clone()
        side_stream = torch.cuda.Stream()
        side_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side_stream):
            for _ in range(3):  # warm up: compile kernels and allocate memory before capture
                search(self.query)
        torch.cuda.current_stream().wait_stream(side_stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.labels, self.similarity, self.done = search(self.query)

    def __call__(self, query: Tensor) -> Shortlist | None:
        """Return the shortlist of a query (1, D); None if it is not final or the query is not finite."""
        self.query.copy_(query)
        self.graph.replay()
        found = Shortlist(self.labels.clone(), self.similarity.clone())
        return found if bool(self.done) else None


def _groups_needed(k: int, label_filter: LabelFilter) -> int:
    """Return how many groups hold the k nearest labels of most queries despite bf16 rounding."""
    return math.ceil((1.7 * k + 2 * label_filter.excluded + 16) / max(label_filter.share, 1e-9))


def _load_kernels(vectors: Tensor) -> ModuleType | None:
    """Return the Triton kernels; None if they do not support these vectors."""
    if vectors.device.type != "cuda" or vectors.shape[1] > 4 * CHUNK:
        return None
    try:
        from mufin.retrieve import kernels

        some = torch.zeros(TILE, CHUNK, dtype=torch.bfloat16, device=vectors.device)
        kernels.group_maxima(some[:1], some)
    except Exception as error:  # no Triton, no C compiler for its launchers, or a GPU that is too old
        warnings.warn(f"Triton kernels unavailable, search is slower ({error})", RuntimeWarning, stacklevel=4)
        return None
    return kernels


def pack(vectors: Tensor, block: int = 2**20) -> tuple[Tensor, Tensor]:
    """Pack entries (E, D) in bf16 for the kernels, zero-padded to (E', D'); also return max ‖v − ṽ‖.

    A tile holds the first pair of each of its 4 groups, then their second pairs, …; see kernels.py.
    """
    tiles, width = -(-len(vectors) // TILE), -(-vectors.shape[1] // CHUNK) * CHUNK
    packed = torch.zeros(tiles * TILE, width, dtype=torch.bfloat16, device=vectors.device)
    rounding_error = vectors.new_zeros(())
    for start in range(0, len(vectors), block):
        part = vectors[start : start + block]
        rounded = part.bfloat16()
        rounding_error = torch.maximum(rounding_error, (part - rounded.float()).norm(dim=1).max())
        padded = F.pad(rounded, (0, width - part.shape[1], 0, -len(part) % TILE))
        ordered = padded.view(-1, 4, GROUP // 2, 2, width).transpose(1, 2)
        packed[start : start + len(padded)] = ordered.reshape(-1, width)
    return packed, rounding_error


def rounded_queries(queries: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Return q̃ (B, D') in bf16 and ‖q − q̃‖ (B,)."""
    rounded = queries.bfloat16()
    rounding_error = (queries - rounded.float()).norm(dim=1)
    return F.pad(rounded, (0, width - queries.shape[1])).contiguous(), rounding_error


def group_maxima(queries: Tensor, packed: Tensor, scores: int = 2**28) -> Tensor:
    """Return max ⟨q, v⟩ over each group of 32 entries (G, B), for queries (B, D'), entries (E', D')."""
    parts = []
    for block in packed.split(max(1, scores // len(queries) // TILE) * TILE):
        product = _bf16_product(block, queries)  # (e, B)
        parts.append(product.view(-1, GROUP // 2, 4, 2, len(queries)).amax((1, 3)).flatten(0, 1))
    return torch.cat(parts)


def _bf16_product(block: Tensor, queries: Tensor) -> Tensor:
    """Multiply bf16 matrices with f32 sums and results."""
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
