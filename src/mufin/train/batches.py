"""Which datapoints share a mini-batch."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

LEAF = 32  # points that stay together


def shuffled(numbers: Tensor, batch: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    """Random batches that go through all numbers once."""
    order = torch.randperm(len(numbers), generator=generator, device=numbers.device)
    batches: tuple[Tensor, ...] = numbers[order].split(batch)
    return batches


def clustered(numbers: Tensor, vectors: Tensor, batch: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    """Batches of whole neighbourhoods (NGAME): a point's hard negatives are the labels of those beside it.

    vectors (n, D) of the numbers (n,) are halved along a random pair's direction until at most 32 are left.
    """
    seed = torch.randint(2**62, (), generator=generator, device=numbers.device)
    rng = np.random.default_rng(int(seed))
    leaves = _halved(torch.arange(len(numbers)), vectors.cpu(), rng)
    order = torch.cat([leaves[i] for i in rng.permutation(len(leaves))])
    batches: tuple[Tensor, ...] = numbers[order.to(numbers.device)].split(batch)
    return batches


def _halved(rows: Tensor, vectors: Tensor, rng: np.random.Generator) -> list[Tensor]:
    if len(rows) <= LEAF:
        return [rows]
    a, b = (vectors[rows[i]] for i in rng.choice(len(rows), 2, replace=False))
    order = rows[(vectors[rows] @ (a - b)).argsort()]
    middle = len(order) // 2
    return _halved(order[:middle], vectors, rng) + _halved(order[middle:], vectors, rng)
