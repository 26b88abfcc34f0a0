"""Lists: the labels of each point, and tallying their votes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor
from torch.nn import functional as F

from mufin.data.ragged import Ints
from mufin.files.tensors import Tensors
from mufin.runtime.recorded import pads, waits


@dataclass(frozen=True)
class Lists:
    """Point i has the labels `labels[offsets[i]:offsets[i + 1]]`."""

    offsets: Tensor  # (M + 1,) int64
    labels: Tensor  # (Σ,) int64, label rows

    @classmethod
    def of(cls, relation: csr_matrix) -> Lists:
        """Convert a relation (M, L), one list per row."""
        arrays = (relation.indptr, relation.indices)
        return cls(*(torch.from_numpy(array.astype(np.int64)) for array in arrays))

    @classmethod
    def none(cls, n: int, device: torch.device) -> Lists:
        """Return empty lists for n points."""
        zeros = torch.zeros(n + 1, dtype=torch.int64, device=device)
        return cls(zeros, zeros[:0])

    @classmethod
    def read(cls, tensors: Tensors, prefix: str, n: int | None, n_labels: int) -> Lists:
        """Read stored lists of n points (None: any number) over n_labels labels."""
        labels = tensors.get_rows(f"{prefix}labels", n_labels)
        return cls(tensors.get_offsets(f"{prefix}offsets", n, len(labels)), labels)

    def tensors(self, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors that `read` reads."""
        yield f"{prefix}offsets", self.offsets
        yield f"{prefix}labels", self.labels

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def to(self, device: torch.device) -> Lists:
        return Lists(self.offsets.to(device), self.labels.to(device))

    def followed_by(self, other: Lists) -> Lists:
        """Return these points followed by those of the other."""
        offsets = torch.cat([self.offsets, other.offsets[1:] + self.offsets[-1]])
        return Lists(offsets, torch.cat([self.labels, other.labels]))

    def unique(self) -> Lists:
        """Deduplicate and sort the labels of each point.

        >>> Lists(torch.tensor([0, 3, 4]), torch.tensor([7, 2, 7, 7])).unique()
        Lists(offsets=tensor([0, 2, 3]), labels=tensor([2, 7, 7]))
        """
        points = torch.arange(len(self.offsets) - 1, device=self.labels.device)
        owner = torch.repeat_interleave(points, self.offsets.diff())
        pairs = torch.unique(owner * self.width + self.labels)
        counts = torch.bincount(pairs // self.width, minlength=len(points))
        return Lists(F.pad(counts.cumsum(0), (1, 0)), pairs % self.width)

    def kept(self, labels: Ints, n_labels: int, points: Ints) -> Lists:
        """Keep only these of the n_labels labels and these points, renumbered."""
        new_row = torch.full((n_labels,), -1, device=self.labels.device)
        new_row[torch.from_numpy(labels)] = torch.arange(len(labels), device=new_row.device)
        chosen = torch.zeros(len(self), dtype=torch.bool, device=new_row.device)
        chosen[torch.from_numpy(points)] = True
        return self._renumbered(new_row).only(chosen)

    def _renumbered(self, new_row: Tensor) -> Lists:
        labels = new_row[self.labels]
        return Lists(F.pad((labels >= 0).cumsum(0), (1, 0))[self.offsets], labels[labels >= 0])

    def only(self, chosen: Tensor) -> Lists:
        """Keep only the points of this mask (M,)."""
        lengths = self.offsets.diff()
        kept = self.labels[torch.repeat_interleave(chosen, lengths)]
        return Lists(F.pad(lengths[chosen].cumsum(0), (1, 0)), kept)

    @cached_property
    def width(self) -> int:
        """The largest label row plus one, cached because reading it waits for the GPU."""
        return int(self.labels.max()) + 1 if len(self.labels) else 1

    @cached_property
    def longest(self) -> int:
        """The most labels of a point."""
        return int(self.offsets.diff().amax()) if len(self) else 0

    def tally(self, found: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Sum the votes of the points found (B, n), padded with −1: softmax(logits) for each of their labels.

        Returns the label rows (B, V), ascending, padded with −1, and their votes, at most 1 even if a file
        lists the same label several times for a point.
        """
        none = torch.zeros(len(found), 0, device=self.labels.device)
        if not len(self.labels) or not found.numel():
            return none.long(), none
        floor = torch.finfo(logits.dtype).min  # softmax over −inf only would be NaN
        share = logits.clamp(min=floor).softmax(dim=1).masked_fill(found < 0, 0.0).flatten()  # (B n,)
        points = found.clamp(min=0).flatten()
        first = self.offsets[points]
        counts = (self.offsets[points + 1] - first).masked_fill(found.flatten() < 0, 0)
        if pads(found, found.numel() * self.longest):
            labels, votes = self._padded_tally(found, share, first, counts)
            return labels, votes.clamp(max=1.0)
        ends = counts.cumsum(0)
        query_ends = ends[found.shape[1] - 1 :: found.shape[1]].tolist()  # where the votes of each query end
        if not query_ends[-1]:
            return none.long(), none
        rows = torch.arange(len(counts), device=ends.device)
        voter = torch.repeat_interleave(rows, counts, output_size=query_ends[-1])
        vote = torch.arange(query_ends[-1], device=ends.device)
        labels = self.labels[vote + (first - ends + counts)[voter]]
        keys = voter // found.shape[1] * self.width + labels
        shape = len(found), int(np.diff(query_ends, prepend=0).max())
        labels, votes = _sum_by_key(keys, share[voter], shape, self.width)
        return labels, votes.clamp(max=1.0)

    def _padded_tally(
        self, found: Tensor, share: Tensor, first: Tensor, counts: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Sum votes as if every point had as many labels as the longest list."""
        (n, width), slot = found.shape, torch.arange(self.longest, device=found.device)
        there = slot < counts[:, None]  # (B n, longest)
        labels = self.labels[(first[:, None] + slot).where(there, 0)]
        query = torch.arange(n, device=found.device).repeat_interleave(width, output_size=n * width)
        keys = (query[:, None] * self.width + labels).where(there, n * self.width)
        weights = (share[:, None] * there).flatten()
        shape = n + 1, min(width * self.longest, self.width)
        labels, votes = _sum_by_key(keys.flatten(), weights, shape, self.width)
        return labels[:n], votes[:n]


def _sum_by_key(keys: Tensor, weights: Tensor, shape: tuple[int, int], width: int) -> tuple[Tensor, Tensor]:
    """Sum the weights of each key = query · width + label into one row per query, labels ascending.

    `shape` is an upper bound of the result's.
    """
    keys, order = keys.sort(stable=True)
    query = keys // width
    is_first = F.pad(keys.diff() != 0, (1, 0), value=True).long()
    sizes = torch.zeros(shape[0], dtype=torch.int64, device=keys.device).index_add_(0, query, is_first)
    longest = shape[1] if waits(keys) else int(sizes.max())
    slot = is_first.cumsum(0) - 1 - (sizes.cumsum(0) - sizes)[query]
    place = query * longest + slot
    labels = torch.full((shape[0], longest), -1, dtype=torch.int64, device=keys.device)
    votes = torch.zeros(shape[0], longest, device=keys.device)
    labels.view(-1)[place] = keys - query * width
    votes.view(-1).index_add_(0, place, weights[order])
    return labels, votes


def bounded(relevance: csr_matrix, per_label: int) -> Ints:
    """Choose points, ascending, so that each label keeps min(its frequency, per_label) or slightly more."""
    by_label = csr_matrix(relevance.T)
    frequency = np.diff(by_label.indptr)
    if not len(frequency) or frequency.max() <= per_label:
        return np.flatnonzero(np.diff(relevance.indptr)).astype(np.int64)
    taken = np.zeros(relevance.shape[0], bool)
    taken[by_label[frequency <= per_label].indices] = True
    frequent = np.flatnonzero(frequency > per_label)
    for label in frequent[np.argsort(frequency[frequent], kind="stable")]:
        points = by_label.indices[by_label.indptr[label] : by_label.indptr[label + 1]]
        missing = per_label - int(taken[points].sum())
        if missing > 0:
            rest = points[~taken[points]]
            n = min(missing, len(rest))
            taken[rest[np.arange(n) * len(rest) // max(n, 1)]] = True  # spread evenly
    return np.flatnonzero(taken).astype(np.int64)
