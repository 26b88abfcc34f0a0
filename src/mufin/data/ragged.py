"""Ragged arrays: rows of different lengths, stored end to end; and helpers for ranges."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Ints = NDArray[np.int64]
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Ragged:
    """A ragged array: row i is `flat[offsets[i]:offsets[i + 1]]`; `flat` may be memory-mapped.

    >>> Ragged.of([np.array([1, 2]), np.array([3])]).take(np.array([1, 0]))
    (tensor([[3, 0],
            [1, 2]]), tensor([1, 2]))
    """

    flat: NDArray[Any]  # (ΣT, ...)
    offsets: Ints  # (n + 1,)
    copies: dict[torch.device, RaggedTensor] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, rows: list[NDArray[Any]]) -> Ragged:
        return cls(np.concatenate(rows), offsets_of([len(row) for row in rows]))

    @classmethod
    def of_lists(cls, rows: list[list[int]]) -> Ragged:
        return cls(np.fromiter(chain.from_iterable(rows), np.int64), offsets_of([len(row) for row in rows]))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Ints:
        return np.diff(self.offsets)

    def take(self, rows: Ints) -> tuple[Tensor, Tensor]:
        """Return these rows padded with zeros, (b, T, ...), and their lengths (b,)."""
        return self.on(CPU).take(torch.from_numpy(rows))

    def on(self, device: torch.device) -> RaggedTensor:
        """Return the rows for batches on a device: copied there once if they fit, else read from the host."""
        if device not in self.copies:
            flat, single = torch.from_numpy(self.flat), bool((self.lengths == 1).all())
            resident = fits(flat.nbytes, device)
            offsets = torch.from_numpy(self.offsets).to(device)
            self.copies[device] = RaggedTensor(
                flat.to(device) if resident else flat, offsets, single, resident
            )
        return self.copies[device]


@dataclass(frozen=True)
class RaggedTensor:
    """Ragged rows with their offsets on a device, and their content too if `resident`."""

    flat: Tensor  # (ΣT, ...)
    offsets: Tensor  # (n + 1,)
    single: bool  # every row has length one
    resident: bool

    @property
    def vectors(self) -> bool:
        """Whether every row is one vector."""
        return self.single and self.flat.dim() == 2

    def take(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return these rows padded with zeros, (b, T, ...), and their lengths (b,)."""
        if self.single:
            values, lengths = self._gather(rows[:, None]), torch.ones_like(rows)
        else:
            start = self.offsets[rows]
            lengths = self.offsets[rows + 1] - start
            slot = torch.arange(max(int(lengths.max()), 1) if len(rows) else 1, device=rows.device)
            mask = slot < lengths[:, None]  # (b, T)
            values = self._gather((start[:, None] + slot).where(mask, 0))
            values.masked_fill_(~mask.view(*mask.shape, *[1] * (values.dim() - 2)), 0)
        return (values.float() if values.dtype == torch.float16 else values), lengths

    def _gather(self, at: Tensor) -> Tensor:
        """Return the content at these positions (b, T), as (b, T, ...)."""
        shape = (*at.shape, *self.flat.shape[1:])
        if not len(self.flat):
            return self.flat.new_zeros(shape, device=at.device)
        if self.resident:
            return self.flat.index_select(0, at.flatten()).view(shape)
        # The copy from pinned memory overlaps with computation on the device.
        pinned = at.device.type == "cuda"
        found = torch.empty((at.numel(), *self.flat.shape[1:]), dtype=self.flat.dtype, pin_memory=pinned)
        torch.index_select(self.flat, 0, at.flatten().cpu(), out=found)
        return found.view(shape).to(at.device, non_blocking=True)


def fits(size: int, device: torch.device) -> bool:
    """Return whether `size` bytes take at most half of the free GPU memory; always True on the CPU."""
    return device.type != "cuda" or size <= torch.cuda.mem_get_info(device)[0] // 2


def offsets_of(lengths: Any) -> Ints:
    """Return the offsets of rows of these lengths: [2, 1] → [0, 2, 3]."""
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)


def ranges(starts: Ints, lengths: Ints) -> Ints:
    """Return the numbers start, start + 1, … of every range, end to end.

    >>> ranges(np.array([5, 0]), np.array([2, 3]))
    array([5, 6, 0, 1, 2])
    """
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    numbers: Ints = np.arange(total, dtype=np.int64) + np.repeat(starts - (ends - lengths), lengths)
    return numbers


def spans(starts: Tensor, lengths: Tensor, total: int | None = None) -> Tensor:
    """Return `ranges` as a tensor; passing the total length avoids a GPU synchronisation.

    >>> spans(torch.tensor([5, 0]), torch.tensor([2, 3]))
    tensor([5, 6, 0, 1, 2])
    """
    shift = starts - (lengths.cumsum(0) - lengths)
    numbers = torch.repeat_interleave(shift, lengths, output_size=total)
    return numbers.add_(torch.arange(len(numbers), device=numbers.device))


def padded(flat: NDArray[Any], lengths: NDArray[Any], filling: float) -> NDArray[Any]:
    """Return rows of these lengths (n,), end to end in `flat`, padded to (n, longest).

    >>> padded(np.array([1, 2, 3]), np.array([2, 1]), -1)
    array([[ 1,  2],
           [ 3, -1]])
    """
    rows = np.full((len(lengths), int(lengths.max(initial=1))), filling, flat.dtype)
    rows[np.arange(rows.shape[1]) < lengths[:, None]] = flat
    return rows
