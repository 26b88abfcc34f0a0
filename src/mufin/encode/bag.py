"""Bag: an encoded item, one row per descriptor; PackedBags: many bags without padding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from mufin.runtime.recorded import pads


@dataclass(frozen=True)
class Bag:
    """A batch of bags X̂, padded to the longest.

    >>> bag = Bag(torch.tensor([[[3.0, 0.0], [0.0, 4.0], [9.0, 9.0]]]), torch.tensor([[True, True, False]]))
    >>> bag.vector()
    tensor([[0.6000, 0.8000]])
    """

    values: Tensor  # (..., m, D)
    mask: Tensor  # (..., m) bool, False for padding
    whole: Tensor | None = None  # (..., D) x̂, if it is not derived from these rows

    def vector(self) -> Tensor:
        """Return x̂ (..., D): `whole` if set, else N(1ᵀ X̂); the zero vector for an empty bag."""
        if self.whole is not None:
            return self.whole
        total = self.values.masked_fill(~self.mask[..., None], 0.0).sum(dim=-2)
        return F.normalize(total, dim=-1)

    def map(self, change: Callable[[Tensor], Tensor]) -> Bag:
        """Apply a function to every tensor; it may only change leading dimensions."""
        whole = None if self.whole is None else change(self.whole)
        return Bag(change(self.values), change(self.mask), whole)

    def to(self, device: torch.device | str) -> Bag:
        return self.map(lambda tensor: tensor.to(device))

    def __len__(self) -> int:
        return self.values.shape[0]


@dataclass(frozen=True)
class PackedBags:
    """Many bags without padding: bag i is `rows[offsets[i]:offsets[i + 1]]`."""

    rows: Tensor  # (Σm, D), in half precision for long-term storage
    offsets: Tensor  # (n + 1,) int64
    whole: Tensor | None = None  # (n, D) x̂ of each bag, if it is not derived from its rows

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def longest(self) -> int:
        """Rows of the longest bag."""
        return len(self.rows) if len(self) == 1 else int(self.offsets.diff().amax()) if len(self) else 0

    def take(self, which: Tensor) -> Bag:
        """Return the bags with these indices (...) as values (..., m, D); index −1 gives an empty bag."""
        some = which.clamp(min=0)
        start = self.offsets[some]
        length = torch.where(which >= 0, self.offsets[some + 1] - start, 0)
        few = pads(which, which.numel() * self.longest)
        m = max(self.longest if few else int(length.max()), 1) if length.numel() else 1
        slot = torch.arange(m, device=which.device)
        mask = slot < length[..., None]  # (..., m)
        whole = None
        if self.whole is not None:
            whole = F.embedding(some, self.whole).masked_fill_((which < 0)[..., None], 0.0)
        if not len(self.rows):
            return Bag(torch.zeros(*mask.shape, self.rows.shape[1], device=mask.device), mask, whole)
        position = (start[..., None] + slot).where(mask, 0)
        # F.embedding is the fastest way to gather rows
        values = F.embedding(position, self.rows).float()
        return Bag(values.masked_fill_(~mask[..., None], 0.0), mask, whole)

    def vectors(self, block: int = 65536) -> Tensor:
        """Return x̂ of every bag, (n, D)."""
        if self.whole is not None:
            return self.whole
        device = self.rows.device
        blocks = [
            self.take(torch.arange(start, min(start + block, len(self)), device=device)).vector()
            for start in range(0, len(self), block)
        ]
        return torch.cat(blocks) if blocks else torch.zeros(0, self.rows.shape[1], device=device)

    @classmethod
    def pack(cls, bags: list[Bag], dim: int) -> PackedBags:
        """Concatenate several batches without their padding."""
        if not bags:
            return cls(torch.zeros(0, dim), torch.zeros(1, dtype=torch.int64))
        rows = torch.cat([bag.values[bag.mask] for bag in bags])
        lengths = torch.cat([bag.mask.sum(-1) for bag in bags])
        return cls(rows, F.pad(lengths.cumsum(0), (1, 0)), whole=joined([bag.whole for bag in bags]))

    def concat(self, other: PackedBags) -> PackedBags:
        tail = other.offsets[1:] + self.offsets[-1]
        rows = torch.cat([self.rows, other.rows.to(self.rows.dtype)])
        offsets = torch.cat([self.offsets, tail])
        return PackedBags(rows, offsets, joined([self.whole, other.whole]))

    def half(self) -> PackedBags:
        """Convert rows to half precision; `take` still returns f32."""
        return replace(self, rows=self.rows.half())

    def select(self, which: Tensor) -> PackedBags:
        """Return only these bags, in this order, still packed."""
        start, end = self.offsets[which], self.offsets[which + 1]
        offsets = F.pad((end - start).cumsum(0), (1, 0))
        shift = torch.repeat_interleave(start - offsets[:-1], end - start)
        position = torch.arange(len(shift), device=shift.device) + shift
        whole = None if self.whole is None else self.whole[which]
        return PackedBags(self.rows[position], offsets, whole)

    def to(self, device: torch.device) -> PackedBags:
        whole = None if self.whole is None else self.whole.to(device)
        return PackedBags(self.rows.to(device), self.offsets.to(device), whole)


def joined(parts: Sequence[Tensor | None]) -> Tensor | None:
    """Concatenate the parts that are not None; None if all are."""
    present = [part for part in parts if part is not None]
    return torch.cat(present) if present else None
