"""Ragged: many arrays of different length, kept end to end; and gathering of ranges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Ragged:
    """Row i is `flat[offsets[i]:offsets[i + 1]]`; `flat` may be mapped from disk.

    >>> Ragged.of([np.array([1, 2]), np.array([3])]).take(np.array([1, 0]))
    (tensor([[3, 0],
            [1, 2]]), tensor([1, 2]))
    """

    flat: NDArray[Any]  # (ΣT, ...)
    offsets: Ints  # (n + 1,)

    @classmethod
    def of(cls, rows: list[NDArray[Any]]) -> Ragged:
        return cls(np.concatenate(rows), offsets_of([len(row) for row in rows]))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Ints:
        return np.diff(self.offsets)

    def take(self, rows: Ints) -> tuple[Tensor, Tensor]:
        """These rows padded with zeros, (b, T, ...), and their lengths (b,)."""
        lengths = self.offsets[rows + 1] - self.offsets[rows]
        longest = max(int(lengths.max()), 1) if len(rows) else 1
        values = self.flat[ranges(self.offsets[rows], lengths)]
        if len(values) == len(rows) * longest:  # nothing to pad: the usual case of one vector a row
            padded = values.reshape(len(rows), longest, *self.flat.shape[1:])
        else:
            padded = np.zeros((len(rows), longest, *self.flat.shape[1:]), self.flat.dtype)
            padded[np.arange(longest) < lengths[:, None]] = values
        tensor = torch.from_numpy(np.ascontiguousarray(padded))
        return (tensor.float() if tensor.dtype == torch.float16 else tensor), torch.from_numpy(lengths)


def offsets_of(lengths: Any) -> Ints:
    """[2, 1] → [0, 2, 3]."""
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)


def ranges(starts: Ints, lengths: Ints) -> Ints:
    """The numbers start, start + 1, … of every range, end to end.

    >>> ranges(np.array([5, 0]), np.array([2, 3]))
    array([5, 6, 0, 1, 2])
    """
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    numbers: Ints = np.arange(total, dtype=np.int64) + np.repeat(starts - (ends - lengths), lengths)
    return numbers


def spans(starts: Tensor, lengths: Tensor, total: int | None = None) -> Tensor:
    """`ranges` of tensors; where the total is known, a GPU need not wait for it.

    >>> spans(torch.tensor([5, 0]), torch.tensor([2, 3]))
    tensor([5, 6, 0, 1, 2])
    """
    shift = starts - (lengths.cumsum(0) - lengths)
    places = torch.repeat_interleave(shift, lengths, output_size=total)
    return places.add_(torch.arange(len(places), device=places.device))


def padded(flat: NDArray[Any], lengths: NDArray[Any], filling: float) -> NDArray[Any]:
    """Rows of these lengths (n,) that lie end to end in `flat`, as (n, the longest).

    >>> padded(np.array([1, 2, 3]), np.array([2, 1]), -1)
    array([[ 1,  2],
           [ 3, -1]])
    """
    rows = np.full((len(lengths), int(lengths.max(initial=1))), filling, flat.dtype)
    rows[np.arange(rows.shape[1]) < lengths[:, None]] = flat
    return rows
