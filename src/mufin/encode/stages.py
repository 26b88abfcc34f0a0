"""What earlier stages of an image encoder saw, beside its last map and of the same scale."""

from __future__ import annotations

import torch
from torch import Tensor, nn

LEAST = 1e-3  # a column that varies less says nothing


class Stages(nn.Module):
    """[v, s (u − μ) / σ] of a last map v and earlier stages u: μ, σ column by column, s the mean σ of v.

    Early columns differ in scale by a thousand times; unbrought to that of v, few would be all that counts.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, last: int, width: int) -> None:
        """Rows of `width` columns, the first `last` of which are the last map's."""
        super().__init__()
        self.last, self.width = last, width
        self.register_buffer("mean", torch.zeros(width - last))
        self.register_buffer("scale", torch.ones(width - last))

    def learn(self, rows: Tensor) -> None:
        """μ, σ and s of these rows (n, width)."""
        if len(rows) < 2:
            return
        deviation, mean = torch.std_mean(rows.float(), dim=0)
        self.mean.copy_(mean[self.last :])
        self.scale.copy_(deviation[: self.last].mean() / deviation[self.last :].clamp(min=LEAST))

    def forward(self, rows: Tensor) -> Tensor:
        """(n, width) → (n, width)."""
        last, early = rows[:, : self.last], rows[:, self.last :]
        return torch.cat([last, (early - self.mean) * self.scale], dim=1)
