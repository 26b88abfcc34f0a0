"""Exact search on a GPU: one pass over all entries in bf16, then the few that matter once more in full.

The pass keeps the maximum of each group of 32 entries. The members of the W best groups are scored again from
the f32 vectors. No other entry can score more than the best group left out, plus what bf16 may have cost:

    |⟨q̃, ṽ⟩ − ⟨q, v⟩| ≤ ‖q − q̃‖ ‖ṽ‖ + ‖q‖ max ‖v − ṽ‖ + ε,

so a query whose k-th label lies above that is done, and any other asks for more groups.
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
from mufin.retrieve.shortlist import Eligible, Shortlist, checked, eligible

TILE, GROUP, CHUNK = 128, 32, 64  # as in kernels.py
ROWS = 512  # queries of a pass: their maxima take G · 512 numbers
SUMMED = 1e-4  # ε: what summing in f32 may cost, with ample room
WIDEN = 4  # how many times more groups are looked into for the queries that are not done
SELECTIVE = 0.25  # below this share of allowed labels only their entries are scored
GATHERED = 2**26  # numbers gathered at a time where there is no kernel
ANY = Eligible(0, None, None, share=1.0, excluded=0.0)  # every label may be given


class ScanIndex(ExactIndex):
    """`ExactIndex` for a GPU: the same answers, limited by arithmetic or memory and not by selection."""

    def __init__(self, entries: Entries) -> None:
        super().__init__(entries)
        self.kernels = _kernels(entries.vectors)
        self.recorded: dict[int, Recorded] = {}  # by k
        self._pack()

    def added(self, vectors: Tensor, labels: Tensor) -> ScanIndex:
        """With unit vectors (e, D) of new labels (e,), ascending, whose rows follow those of the index."""
        # a copy on a GPU takes milliseconds, and one part is simpler to scan
        return ScanIndex(super().added(vectors, labels).entries)

    def _pack(self) -> None:
        self.packed, self.lost = pack(self.parts[0].vectors)

    def search(
        self, queries: Tensor, k: int, exclude: csr_matrix | None = None, allowed: Tensor | None = None
    ) -> Shortlist:
        """The k nearest eligible labels of queries (B, D), without the pairs in exclude (B, L)."""
        if exclude is None and allowed is None and (lone := self._lone(queries, k)) is not None:
            return lone
        queries = checked(queries, k, self.parts[0].vectors)
        who = eligible(queries, self.n_labels, exclude, allowed)
        wide = _groups(k, who)
        if who.share < SELECTIVE or not self._enough(wide):
            return super().search(queries, k, exclude, allowed)
        found = Shortlist.empty(len(queries), k, queries.device)
        for rows in torch.arange(len(queries), device=queries.device).split(ROWS):
            left = self._search(queries[rows], rows, k, wide, who, found)
            if len(left):
                rest = None if exclude is None else exclude[left.cpu().numpy()]
                found.put(left, super().search(queries[left], k, rest, allowed))
        return found

    def _enough(self, wide: int) -> bool:
        return wide < len(self.packed) // GROUP // 2

    def _search(
        self, queries: Tensor, rows: Tensor, k: int, wide: int, who: Eligible, found: Shortlist
    ) -> Tensor:
        """Fill in the rows (b,) of these queries (b, D); the rows that would need too many groups."""
        rounded, lost = rounded_queries(queries, self.packed.shape[1])
        margin = lost * (1 + self.lost) + queries.norm(dim=1) * self.lost + SUMMED  # (b,)
        maxima = self._maxima(rounded)  # (b, G), in memory (G, b)
        part, done = self._best(queries, rows, maxima, margin, k, wide, who)
        found.put(rows, part)
        left = (~done).nonzero()[:, 0]  # the one place where the host waits
        while len(left) and self._enough(wide := wide * WIDEN):
            part, done = self._best(queries[left], rows[left], maxima[left], margin[left], k, wide, who)
            found.put(rows[left], part)
            left = left[~done]
        return rows[left]

    def _lone(self, query: Tensor, k: int) -> Shortlist | None:
        """The answer to one query (1, D) that may have any label; None where the usual way is needed."""
        vectors, wide = self.parts[0].vectors, _groups(k, ANY)
        usual = query.shape == (1, self.width) and query.dtype == vectors.dtype and query.is_cuda
        if self.kernels is None or not usual or k < 1 or not self._enough(wide):
            return None
        if k not in self.recorded:
            self.recorded[k] = Recorded(partial(self._once, k=k, wide=wide), query)
        return self.recorded[k](query)

    def _once(self, query: Tensor, k: int, wide: int) -> tuple[Tensor, Tensor, Tensor]:
        """Labels and similarities (1, k) of a query, and whether no other entry could change them."""
        rounded, lost = rounded_queries(query, self.packed.shape[1])
        margin = lost * (1 + self.lost) + query.norm(dim=1) * self.lost + SUMMED
        rows = torch.zeros(1, dtype=torch.int64, device=query.device)
        part, done = self._best(query, rows, self._maxima(rounded), margin, k, wide, ANY)
        return part.labels, part.similarity, done

    def _best(
        self, queries: Tensor, rows: Tensor, maxima: Tensor, margin: Tensor, k: int, wide: int, who: Eligible
    ) -> tuple[Shortlist, Tensor]:
        """The k best labels in the `wide` best groups; (b,) bool: no other entry could change them."""
        best, groups = top(maxima, wide + 1)
        bound = best[:, wide] + margin  # no entry of another group is nearer
        groups = groups[:, :wide].contiguous()
        scores = self._scores(queries, groups).flatten(1)  # (b, W·32)
        if who.pairs is not None or who.share < 1:
            ok = who.check(
                rows, self._labels(groups, torch.arange(scores.shape[1], device=rows.device)[None])
            )
            scores = scores.masked_fill(~ok, -math.inf)
        # of each label the best entry of a group is left: two groups may share a label, hardly three
        near, place = scores.topk(min(2 * k, scores.shape[1]), dim=1)
        labels = self._labels(groups, place)
        last = near[:, -1]
        labels, order = labels.sort(dim=1, stable=True)  # of one label the nearest stays in front
        near = near.gather(1, order)
        near[:, 1:].masked_fill_(labels[:, 1:] == labels[:, :-1], -math.inf)
        near, order = near.sort(dim=1, descending=True, stable=True)  # ties: the lower row
        labels = labels.gather(1, order).masked_fill(near.isinf(), -1)
        kth = near[:, min(k, near.shape[1]) - 1]
        return Shortlist(labels[:, :k], near[:, :k]), kth > torch.maximum(bound, last)

    def _labels(self, groups: Tensor, place: Tensor) -> Tensor:
        """The labels at these places (b or 1, n) of the members of groups (b, W)."""
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


class Recorded:
    """A search of one query as a CUDA graph: two dozen launches take as long as the pass over the entries."""

    def __init__(self, search: Callable[[Tensor], tuple[Tensor, Tensor, Tensor]], like: Tensor) -> None:
        self.query = like.detach().clone()
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            for _ in range(3):  # kernels are compiled, and memory is found, before anything is recorded
                search(self.query)
        torch.cuda.current_stream().wait_stream(beside)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.labels, self.similarity, self.done = search(self.query)

    def __call__(self, query: Tensor) -> Shortlist | None:
        """The shortlist of a query (1, D); None if another entry could change it, or it is not finite."""
        self.query.copy_(query)
        self.graph.replay()
        found = Shortlist(self.labels.clone(), self.similarity.clone())
        return found if bool(self.done) else None


def _groups(k: int, who: Eligible) -> int:
    """How many groups hold the k nearest labels of most queries, with room for what bf16 blurs."""
    return math.ceil((1.7 * k + 2 * who.excluded + 16) / max(who.share, 1e-9))


def _kernels(vectors: Tensor) -> ModuleType | None:
    """The Triton kernels, where they can serve these vectors."""
    if vectors.device.type != "cuda" or vectors.shape[1] > 4 * CHUNK:
        return None
    try:
        from mufin.retrieve import kernels

        some = torch.zeros(TILE, CHUNK, dtype=torch.bfloat16, device=vectors.device)
        kernels.group_maxima(some[:1], some)
    except (
        Exception
    ) as error:  # no Triton, no C compiler for its launchers, a card too old: all the same here
        warnings.warn(f"exact search runs without its kernels ({error})", RuntimeWarning, stacklevel=4)
        return None
    return kernels


def pack(vectors: Tensor, block: int = 2**20) -> tuple[Tensor, Tensor]:
    """Entries (E, D) in bf16 as the kernels read them (E', D'), zeros at the ends, and max ‖v − ṽ‖.

    Of a tile's 4 groups the first pairs come first, then the second pairs, … : see kernels.py.
    """
    tiles, width = -(-len(vectors) // TILE), -(-vectors.shape[1] // CHUNK) * CHUNK
    packed = torch.zeros(tiles * TILE, width, dtype=torch.bfloat16, device=vectors.device)
    lost = vectors.new_zeros(())
    for start in range(0, len(vectors), block):
        part = vectors[start : start + block]
        rounded = part.bfloat16()
        lost = torch.maximum(lost, (part - rounded.float()).norm(dim=1).max())
        padded = F.pad(rounded, (0, width - part.shape[1], 0, -len(part) % TILE))
        ordered = padded.view(-1, 4, GROUP // 2, 2, width).transpose(1, 2)
        packed[start : start + len(padded)] = ordered.reshape(-1, width)
    return packed, lost


def rounded_queries(queries: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """q̃ (B, D') in bf16 and ‖q − q̃‖ (B,)."""
    rounded = queries.bfloat16()
    lost = (queries - rounded.float()).norm(dim=1)
    return F.pad(rounded, (0, width - queries.shape[1])).contiguous(), lost


def group_maxima(queries: Tensor, packed: Tensor, scores: int = 2**28) -> Tensor:
    """max ⟨q, v⟩ over each group of 32 entries, (G, B), for queries (B, D') and packed entries (E', D')."""
    parts = []
    for block in packed.split(max(1, scores // len(queries) // TILE) * TILE):
        product = _product(block, queries)  # (e, B)
        parts.append(product.view(-1, GROUP // 2, 4, 2, len(queries)).amax((1, 3)).flatten(0, 1))
    return torch.cat(parts)


def _product(block: Tensor, queries: Tensor) -> Tensor:
    """Products of bf16 numbers, summed and given in f32."""
    if block.is_cuda:
        return torch.mm(block, queries.T, out_dtype=torch.float32)
    return block.float() @ queries.float().T


def member_scores(queries: Tensor, vectors: Tensor, labels: Tensor, groups: Tensor) -> Tensor:
    """⟨q, v⟩ (B, W, 32) in f64 for members of groups (B, W); −inf but for the best of each label."""
    member = torch.arange(GROUP, device=groups.device)
    earlier = member[None, :] < member[:, None]  # (32, 32): the column comes before the row
    step = max(1, GATHERED // (groups.shape[1] * GROUP * max(vectors.shape[1], GROUP)))
    parts = []
    for x, some in zip(queries.split(step), groups.split(step), strict=True):
        rows = some[:, :, None] * GROUP + member  # (b, W, 32)
        there, rows = rows < len(vectors), rows.clamp(max=len(vectors) - 1)
        score = (vectors[rows].double() * x[:, None, None]).sum(-1).float().masked_fill(~there, -math.inf)
        row, column = score[..., :, None], score[..., None, :]
        same = labels[rows][..., :, None] == labels[rows][..., None, :]
        beaten = (same & ((column > row) | ((column == row) & earlier))).any(-1)
        parts.append(score.masked_fill(beaten, -math.inf))
    return torch.cat(parts)
