"""Module III: what fine-tuning starts from — A_C identity, η Xavier-uniform, α = 0.5; E as it is."""

from __future__ import annotations

import torch

from mufin.config import Config
from mufin.rank.classifiers import Classifiers
from mufin.rank.ranker import Ranker


def transfer(config: Config, n_labels: int, device: torch.device) -> tuple[Ranker, Classifiers]:
    """A fresh ranker and fresh classifiers beside the pre-trained embedder."""
    classifiers = Classifiers(n_labels, config.embed.dim, learnt=config.rank.alpha == "learnt")
    return Ranker(config).to(device), classifiers.to(device)
