"""Pairs: training pairs of a datapoint and its label, remembered to say which odd things go together too."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

MOST = 50_000  # pairs remembered
WIDTH = 0.5  # of the kernel, in coordinates whose variance is at most 1
FLOOR = 0.01  # how far below chance a pair may count
CHUNK = 256  # rows of (B, P) kernels at a time


@dataclass(frozen=True)
class Pairs:
    """P pairs in coordinates where points and labels can be compared with others of their kind."""

    points: Tensor  # (P, k)
    labels: Tensor  # (P, k)
    weight: Tensor  # (P,), sums to 1

    @classmethod
    def of(cls, points: Tensor, labels: Tensor, weights: csr_matrix) -> Pairs:
        """All weighted pairs (N, L) of points (N, k) and labels (L, k), or an even sample of them."""
        pairs = weights.tocoo()
        chosen = np.arange(0, pairs.nnz, max(1, -(-pairs.nnz // MOST)))
        rows, columns = (torch.from_numpy(which[chosen].astype(np.int64)) for which in (pairs.row, pairs.col))
        weight = torch.from_numpy(pairs.data[chosen].astype(np.float32))
        return cls(points[rows], labels[columns], weight / weight.sum())

    def score(self, x: Tensor, z: Tensor) -> Tensor:
        """log(0.01 + Σ w K(x, xᵢ) K(z, zᵢ) / (Σ w K(x, xᵢ) · Σ w K(z, zᵢ))), (B, C); K = exp(−|·|² / 0.5)."""
        near_z = _kernel(z, self.labels)  # (C, P)
        return torch.cat([self._chunk(part, near_z) for part in x.split(CHUNK)])

    def _chunk(self, x: Tensor, near_z: Tensor) -> Tensor:
        near_x = _kernel(x, self.points) * self.weight  # (B, P)
        apart = near_x.sum(1)[:, None] * (near_z @ self.weight)
        return (near_x @ near_z.T / apart.clamp(min=1e-12) + FLOOR).log()


def _kernel(x: Tensor, others: Tensor) -> Tensor:
    """exp(−|x − o|² / WIDTH), (B, P), of each row relative to its nearest: a ratio is left as it is."""
    distance = torch.cdist(x, others, compute_mode="donot_use_mm_for_euclid_dist").square()
    return (-(distance - distance.amin(1, keepdim=True)) / WIDTH).exp()
