"""Module III: what fine-tuning starts from — A_C identity, η Xavier-uniform, α = 0.5; E as it is."""

from __future__ import annotations

from mufin.config import Config
from mufin.encode.embedder import Embedder
from mufin.rank.classifiers import Classifiers
from mufin.rank.ranker import Ranker
from mufin.train.networks import Networks


def transfer(config: Config, embedder: Embedder, n_labels: int) -> Networks:
    """The pre-trained embedder with a fresh ranker and fresh classifiers."""
    classifiers = Classifiers(n_labels, config.embed.dim, learnt=config.rank.alpha == "learnt")
    return Networks(embedder, Ranker(config).to(embedder.device), classifiers.to(embedder.device))
