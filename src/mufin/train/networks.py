"""Networks: what Module IV trains — embedder, ranker and classifiers together."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mufin.encode.embedder import Embedder
from mufin.rank.classifiers import Classifiers
from mufin.rank.ranker import Ranker


@dataclass(frozen=True)
class Networks:
    """E as Module I left it, with the A_C and w of Module III."""

    embedder: Embedder
    ranker: Ranker
    classifiers: Classifiers

    @property
    def device(self) -> torch.device:
        return self.embedder.device

    def train(self) -> None:
        """Dropout on."""
        self.embedder.train()
        self.ranker.train()

    def eval(self) -> None:
        self.embedder.eval()
        self.ranker.eval()

    @torch.no_grad()
    def weights(self, z: Tensor) -> Tensor:
        """w of every label, given all ẑ (L, D)."""
        return self.classifiers.weight(torch.arange(len(z), device=z.device), z)
