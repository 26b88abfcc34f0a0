"""Relation: a sparse boolean matrix as tensors on a device, with lookups and sampling for training."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from scipy.sparse import csr_matrix
from torch import Tensor
from torch.nn import functional as F


class Pairs(NamedTuple):
    """The (row, column) pairs of some rows, row by row, as tensors of shape (n,)."""

    place: Tensor  # position of the row among the requested ones
    slot: Tensor  # position of the pair in its row: 0, 1, …
    column: Tensor


@dataclass(frozen=True)
class Relation:
    """Row i relates to `columns[offsets[i]:offsets[i + 1]]`, each less than `width`.

    `holds` needs ascending columns within each row.

    >>> relation = Relation(torch.tensor([0, 2, 3]), torch.tensor([1, 4, 0]), width=5)
    >>> relation.pairs_of(torch.tensor([1, 0])).column
    tensor([0, 1, 4])
    >>> relation.membership(torch.tensor([0]), torch.tensor([0, 1, 4]))
    tensor([[False,  True,  True]])
    """

    offsets: Tensor  # (n + 1,) int64
    columns: Tensor  # (nnz,) int32 or int64
    width: int

    @classmethod
    def of(cls, matrix: csr_matrix, device: torch.device | str = "cpu") -> Relation:
        """Make a relation of the stored cells of a matrix; on the CPU, columns are not copied."""
        if not matrix.has_sorted_indices:
            matrix = matrix.sorted_indices()
        offsets, columns = torch.from_numpy(matrix.indptr), torch.from_numpy(matrix.indices)
        return cls(offsets.to(device, torch.int64), columns.to(device), int(matrix.shape[1]))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def device(self) -> torch.device:
        return self.offsets.device

    @cached_property
    def sizes(self) -> Tensor:
        """The number of columns per row, (n,)."""
        return self.offsets.diff()

    @cached_property
    def uniform(self) -> int | None:
        """The number of columns of each row if it is the same; cached, since reading it waits for a GPU."""
        fewest, most = (int(self.sizes.min()), int(self.sizes.max())) if len(self) else (0, 0)
        return most if fewest == most else None

    @property
    def rows(self) -> Tensor:
        """Return the row of every pair, (nnz,)."""
        numbers = torch.arange(len(self), device=self.device)
        return torch.repeat_interleave(numbers, self.sizes, output_size=len(self.columns))

    @cached_property
    def keys(self) -> Tensor:
        """Return each pair (i, j) as the number i · width + j, ascending, (nnz,)."""
        return self.rows * self.width + self.columns

    def sizes_of(self, rows: Tensor) -> Tensor:
        """Return the number of columns of these rows (r,), (r,)."""
        return self.sizes[rows]

    def pairs_of(self, rows: Tensor) -> Pairs:
        """Return all pairs of these rows (r,)."""
        start, size = self.offsets[rows], self.sizes[rows]
        place = torch.arange(len(rows), device=self.device)
        if self.uniform == 1:
            return Pairs(place, torch.zeros_like(place), self.columns[start].long())
        total = None if self.uniform is None else len(rows) * self.uniform  # unknown: wait for the GPU
        place = torch.repeat_interleave(place, size, output_size=total)
        first = size.cumsum(0) - size
        slot = torch.arange(len(place), device=self.device) - first[place]
        return Pairs(place, slot, self.columns[start[place] + slot].long())

    def membership(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Return which of `columns` (c,), ascending and unique, are in each of these rows, (r, c) bool.

        The cost is linear in the number of pairs in these rows.
        """
        n = len(rows) * len(columns)
        found = torch.zeros(n + 1, dtype=torch.bool, device=self.device)  # the last collects other columns
        if len(self.columns) and n:
            place, _, column = self.pairs_of(rows)
            at = torch.searchsorted(columns, column).clamp_(max=len(columns) - 1)
            found[(place * len(columns) + at).where(columns[at] == column, n)] = True
        return found[:-1].view(len(rows), len(columns))

    def holds(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Return whether row rows[r] holds columns[r, c], (r, c) bool; False for a column of −1."""
        if not len(self.columns):
            return torch.zeros_like(columns, dtype=torch.bool)
        wanted = rows[:, None] * self.width + columns
        at = torch.searchsorted(self.keys, wanted).clamp(max=len(self.keys) - 1)
        return (self.keys[at] == wanted) & (columns >= 0)

    def draw_per_row(self, rows: Tensor, n: int, generator: torch.Generator) -> Tensor:
        """Draw up to n random columns per row without replacement, (r, n), padded with −1.

        Floyd's algorithm: the cost is n² per row, whatever its number of columns.
        """
        start, size = self.offsets[rows], self.sizes_of(rows)
        first = size - size.clamp(max=n)  # draw from 0 … first, 0 … first + 1, …, 0 … size − 1
        uniform = torch.rand(len(rows), n, generator=generator, device=self.device, dtype=torch.float64)
        drawn = torch.full((len(rows), n), -1, device=self.device)
        for i in range(n):
            last = first + i
            pick = torch.minimum((uniform[:, i] * (last + 1)).long(), last)
            taken = (drawn[:, :i] == pick[:, None]).any(dim=1)
            drawn[:, i] = pick.where(~taken, last).where(last < size, -1)
        if not len(self.columns):
            return drawn
        return (
            self.columns[(start[:, None] + drawn).clamp(0, len(self.columns) - 1)]
            .long()
            .where(drawn >= 0, -1)
        )

    def transposed(self) -> Relation:
        """Return the transpose."""
        columns, order = self.columns.long().sort(stable=True)
        counts = torch.bincount(columns, minlength=self.width)
        return Relation(F.pad(counts.cumsum(0), (1, 0)), self.rows[order], len(self))

    def take(self, rows: Tensor) -> Relation:
        """Return these rows (r,), in this order."""
        return Relation(F.pad(self.sizes_of(rows).cumsum(0), (1, 0)), self.pairs_of(rows).column, self.width)

    def only(self, keep: Tensor) -> Relation:
        """Keep the pairs where this mask (nnz,) is true."""
        return Relation(F.pad(keep.cumsum(0), (1, 0))[self.offsets], self.columns[keep], self.width)
