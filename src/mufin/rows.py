"""Rows: what a signal reads of items, one row per item, dense or sparse."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, Protocol, Self

import numpy as np
import torch
from scipy.sparse import csr_matrix, vstack
from torch import Tensor
from torch.nn import functional as F

from mufin.ragged import Ints, offsets_of


class Rows(Protocol):
    """Rows that can be selected, joined, and merged into one row per group of items."""

    def __len__(self) -> int: ...
    def take(self, rows: Ints) -> Self: ...
    def spread(self, rows: Ints, n: int) -> Self:
        """The same rows at these places among n; the others are empty."""

    def grouped(self, offsets: Ints, members: Ints) -> Self:
        """One row per group: group i unites the rows `members[offsets[i]:offsets[i + 1]]`."""

    def concat(self, other: Self) -> Self: ...
    def to(self, device: torch.device) -> Self: ...


@dataclass(frozen=True)
class DenseRows:
    """Unit vectors (n, H) in half precision, zero for an item that has none; a group is their mean."""

    values: Tensor

    def __len__(self) -> int:
        return len(self.values)

    def take(self, rows: Ints) -> DenseRows:
        return DenseRows(self.values[torch.from_numpy(rows).to(self.values.device)])

    def spread(self, rows: Ints, n: int) -> DenseRows:
        values = self.values.new_zeros(n, self.values.shape[1])
        values[torch.from_numpy(rows)] = self.values
        return DenseRows(values)

    def grouped(self, offsets: Ints, members: Ints) -> DenseRows:
        rows = self.values[torch.from_numpy(members).to(self.values.device)].float()
        if _singles(offsets, members):
            return DenseRows(F.normalize(rows, dim=1))
        group = torch.from_numpy(np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))).to(rows.device)
        total = rows.new_zeros(len(offsets) - 1, rows.shape[1]).index_add(0, group, rows)
        return DenseRows(F.normalize(total, dim=1))

    def concat(self, other: DenseRows) -> DenseRows:
        return DenseRows(torch.cat([self.values, other.values.to(self.values)]))

    def to(self, device: torch.device) -> DenseRows:
        return DenseRows(self.values.to(device))


@dataclass(frozen=True)
class SparseRows:
    """Row i has `values[offsets[i]:offsets[i + 1]]` in `columns[offsets[i]:offsets[i + 1]]` of `width`.

    A group is the sum of its rows at unit length ("unit"), or 1 wherever a row has anything ("set").
    """

    offsets: Tensor  # (n + 1,)
    columns: Tensor  # (Σ,) ascending within a row
    values: Tensor  # (Σ,) f32
    width: int
    kind: Literal["unit", "set"] = "unit"

    @classmethod
    def of(cls, matrix: csr_matrix, kind: Literal["unit", "set"] = "unit") -> SparseRows:
        """The rows of a matrix, not copied."""
        offsets, columns = torch.from_numpy(matrix.indptr), torch.from_numpy(matrix.indices)
        return cls(offsets, columns, torch.from_numpy(matrix.data), matrix.shape[1], kind)

    @classmethod
    def none(cls, width: int, kind: Literal["unit", "set"] = "unit") -> SparseRows:
        """No rows."""
        zeros = torch.zeros(1, dtype=torch.int32)
        return cls(zeros, zeros[:0], torch.zeros(0), width, kind)

    @cached_property
    def csr(self) -> csr_matrix:
        """The same for SciPy; not copied where it is on the CPU."""
        data, columns, offsets = (t.cpu().numpy() for t in (self.values, self.columns, self.offsets))
        return csr_matrix((data, columns, offsets), (len(self), self.width))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def take(self, rows: Ints) -> SparseRows:
        return SparseRows.of(self.csr[rows], self.kind)

    def spread(self, rows: Ints, n: int) -> SparseRows:
        sizes = np.zeros(n, np.int64)
        sizes[rows] = np.diff(self.offsets.cpu().numpy())
        return replace(self, offsets=torch.from_numpy(offsets_of(sizes)))

    def grouped(self, offsets: Ints, members: Ints) -> SparseRows:
        if _singles(offsets, members):
            every = np.array_equal(members, np.arange(len(self)))
            return self if every else self.take(members)
        ones = np.ones(len(members), np.float32)
        total = csr_matrix((ones, members, offsets), (len(offsets) - 1, len(self))) @ self.csr
        return SparseRows.of(total.sign() if self.kind == "set" else normalised(csr_matrix(total)), self.kind)

    def concat(self, other: SparseRows) -> SparseRows:
        return SparseRows.of(csr_matrix(vstack([self.csr, other.csr])), self.kind)

    def to(self, device: torch.device) -> SparseRows:
        if self.values.device == device:
            return self
        moved = {name: getattr(self, name).to(device) for name in ("offsets", "columns", "values")}
        return replace(self, **moved)


def normalised(rows: csr_matrix) -> csr_matrix:
    """Rows of length one, or zero."""
    place = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
    norms = np.sqrt(np.bincount(place, rows.data.astype(np.float64) ** 2, rows.shape[0]))
    rows.data = (rows.data / np.maximum(norms, 1e-12)[place]).astype(np.float32)
    return rows


def _singles(offsets: Ints, members: Ints) -> bool:
    """Whether every group has exactly one member."""
    return len(members) == len(offsets) - 1 and bool((np.diff(offsets) == 1).all())
