"""One-vs-all classifiers w_l = N(α_l ẑ_l + (1 − α_l) N(η_l))."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Classifiers(nn.Module):
    """The free vectors η and the mixing weights α = sigmoid(logit), α being the weight on ẑ.

    Rows are looked up with sparse gradients: a step costs what its labels cost, however many there are.
    """

    def __init__(self, n_labels: int, dim: int, learnt: bool = True) -> None:
        super().__init__()
        self.learnt = learnt
        rows = n_labels if learnt else 0
        self.free = nn.Parameter(torch.empty(rows, dim))  # η
        self.logit = nn.Parameter(torch.zeros(rows, 1))  # α = 0.5
        if rows:
            nn.init.xavier_uniform_(self.free)

    def weight(self, labels: Tensor, z: Tensor) -> Tensor:
        """w of these labels (U,), given their vectors ẑ (U, D); ẑ itself where α = 1 holds for all."""
        if not self.learnt:
            return z
        free = F.embedding(labels, self.free, sparse=True)
        alpha = F.embedding(labels, self.logit, sparse=True).sigmoid()  # (U, 1)
        return combine(alpha, z, free)

    @torch.no_grad()
    def alpha(self, n_labels: int) -> Tensor:
        """α of every label, (L,)."""
        return self.logit.sigmoid()[:, 0] if self.learnt else torch.ones(n_labels, device=self.logit.device)

    def sparse_parameters(self) -> list[nn.Parameter]:
        return [self.free, self.logit] if self.learnt else []


def combine(alpha: Tensor, z: Tensor, free: Tensor) -> Tensor:
    """w = N(α ẑ + (1 − α) N(η)).

    >>> z, free = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 5.0]])
    >>> combine(torch.tensor([[1.0]]), z, free)
    tensor([[1., 0.]])
    >>> combine(torch.tensor([[0.5]]), z, free)
    tensor([[0.7071, 0.7071]])
    """
    return F.normalize(alpha * z + (1 - alpha) * F.normalize(free, dim=-1), dim=-1)
