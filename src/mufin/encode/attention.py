"""The attention block A(X, Z): queries from X, keys and values from Z.

Used for self-attention A_S(X) = A(X, X) and cross-attention A_C(X, Z), which share no parameters.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from mufin.encode.bag import Bag


class Attention(nn.Module):
    """A(X, Z) = LayerNorm(X + O · softmax(Q X (K Z)ᵀ / √d) V Z), with Q, K, V, O initialised to identity.

    Computed as softmax((Kᵀ Q X) Zᵀ / √d) and V (softmax · Z): one x meets about a hundred z, so applying K
    and V to rows of x is cheaper. The bias of K shifts all scores of a row equally, which softmax ignores.
    """

    def __init__(self, dim: int, heads: int = 1, dropout: float = 0.1) -> None:
        super().__init__()
        if dim % heads:
            raise ValueError(f"dim {dim} cannot be split into {heads} heads")
        self.heads = heads
        self.query, self.key, self.value, self.output = (_identity(dim) for _ in range(4))
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: Bag, z: Bag) -> Bag:
        """Let x (..., m, D) attend to z (..., n, D); leading dimensions broadcast."""
        weights = self.dropout(self.weights(x, z))  # (..., h, m, n)
        attended = (weights.flatten(-3, -2) @ z.values).unflatten(-2, weights.shape[-3:-1])  # (..., h, m, D)
        mixed = _matmul_per_head(attended, self._per_head(self.value).mT).transpose(-3, -2)  # (..., m, h, d)
        biases = weights.sum(-1)[..., None].transpose(-3, -2) * self.value.bias.unflatten(0, (self.heads, -1))
        values = self.norm(x.values + self.output((mixed + biases).flatten(-2)))  # (..., m, D)
        mask = x.mask.expand(values.shape[:-1])
        return Bag(values.masked_fill(~mask[..., None], 0.0), mask)

    def weights(self, x: Bag, z: Bag) -> Tensor:
        """Return attention weights (..., h, m, n) from x to z; each row sums to 1, or to 0 if z is empty."""
        if z.values.shape[-2] == 1:  # a single row gets all the attention
            # not torch.broadcast_shapes, which imports sympy
            lead = np.broadcast_shapes(x.values.shape[:-2], z.values.shape[:-2])
            present = z.mask[..., None, None, :].to(x.values)  # (..., 1, 1, 1)
            return present.expand(*lead, self.heads, x.values.shape[-2], 1)
        query = self.query(x.values).unflatten(-1, (self.heads, -1)).transpose(-3, -2)  # (..., h, m, d)
        projected = _matmul_per_head(query, self._per_head(self.key)).flatten(-3, -2)  # (..., hm, D)
        each: Tensor = projected @ z.values.transpose(-2, -1) / math.sqrt(query.shape[-1])  # (..., hm, n)
        scores: Tensor = each.unflatten(-2, (self.heads, -1))  # (..., h, m, n)
        keep = z.mask[..., None, None, :]
        # Mask with a finite value, then mask again: softmax over −inf only (an empty z) would be NaN.
        scores = scores.masked_fill(~keep, torch.finfo(scores.dtype).min)
        return scores.softmax(dim=-1).masked_fill(~keep, 0.0)

    def _per_head(self, layer: nn.Linear) -> Tensor:
        """Return the weights of each head, (h, d, D)."""
        weights: Tensor = layer.weight.unflatten(0, (self.heads, -1))
        return weights


def _matmul_per_head(rows: Tensor, weights: Tensor) -> Tensor:
    """Multiply rows (..., h, m, i) by their head's weights (h, i, o): (..., h, m, o)."""
    first = rows.movedim(-3, 0)  # (h, ..., m, i)
    flat = torch.bmm(first.flatten(1, -2), weights)  # (h, N, o)
    return flat.view(*first.shape[:-1], weights.shape[-1]).movedim(0, -3)


class FeedForward(nn.Module):
    """LayerNorm(X + O · relu(I X)), the replacement for A_S in the paper's variant "no A_S"."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.inner, self.outer = _identity(dim), _identity(dim)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: Bag) -> Bag:
        values = self.norm(x.values + self.outer(torch.relu(self.inner(x.values))))
        return Bag(values.masked_fill(~x.mask[..., None], 0.0), x.mask)


class Sum(nn.Module):
    """Sum a bag into one row, for variants that represent an item as one vector."""

    def forward(self, x: Bag) -> Bag:
        total = x.values.masked_fill(~x.mask[..., None], 0.0).sum(dim=-2, keepdim=True)
        return Bag(total, x.mask.any(dim=-1, keepdim=True))


class SelfAttention(nn.Module):
    """A_S: one or more blocks of A(X, X)."""

    def __init__(self, dim: int, blocks: int = 1, heads: int = 1, dropout: float = 0.1) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Attention(dim, heads, dropout) for _ in range(blocks))

    def forward(self, x: Bag) -> Bag:
        for block in self.blocks:
            x = block(x, x)
        return x


class CrossAttention(nn.Module):
    """A_C: one or more blocks of A(X, Z)."""

    def __init__(self, dim: int, blocks: int = 1, heads: int = 1, dropout: float = 0.1) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Attention(dim, heads, dropout) for _ in range(blocks))

    def forward(self, x: Bag, z: Bag) -> Bag:
        for block in self.blocks:
            x = block(x, z)
        return x

    def weights(self, x: Bag, z: Bag) -> Tensor:
        """Return the first block's attention averaged over heads, (..., m, n), for heat maps."""
        first = self.blocks[0]
        assert isinstance(first, Attention)
        return first.weights(x, z).mean(dim=-3)


def _identity(dim: int) -> nn.Linear:
    layer = nn.Linear(dim, dim)
    nn.init.eye_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer
