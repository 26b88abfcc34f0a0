"""Which datapoints share a mini-batch."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mufin.ragged import Ints

LEAF = 32  # points that stay together


def shuffled(numbers: Ints, batch: int, rng: np.random.Generator) -> list[Ints]:
    """Random batches that go through all numbers once."""
    order = rng.permutation(numbers)
    return [order[start : start + batch] for start in range(0, len(order), batch)]


def clustered(numbers: Ints, vectors: Tensor, batch: int, rng: np.random.Generator) -> list[Ints]:
    """Batches of whole neighbourhoods (NGAME): a point's hard negatives are the labels of those beside it.

    vectors (n, D) of the numbers (n,) are halved along a random pair's direction until at most 32 are left.
    """
    leaves = [numbers[leaf.numpy()] for leaf in _halved(torch.arange(len(numbers)), vectors.cpu(), rng)]
    order = np.concatenate([leaves[i] for i in rng.permutation(len(leaves))])
    return [order[start : start + batch] for start in range(0, len(order), batch)]


def _halved(rows: Tensor, vectors: Tensor, rng: np.random.Generator) -> list[Tensor]:
    if len(rows) <= LEAF:
        return [rows]
    a, b = (vectors[rows[i]] for i in rng.choice(len(rows), 2, replace=False))
    order = rows[(vectors[rows] @ (a - b)).argsort()]
    middle = len(order) // 2
    return _halved(order[:middle], vectors, rng) + _halved(order[middle:], vectors, rng)
