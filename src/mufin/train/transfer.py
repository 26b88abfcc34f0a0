"""Module III: what fine-tuning starts from — A_C identity, η Xavier-uniform, α = 0.5; E as it is."""

from __future__ import annotations

from mufin.config import Config
from mufin.encode.embedder import Embedder
from mufin.rank.classifiers import Classifiers
from mufin.rank.ranker import Ranker
from mufin.retrieve.entries import centroids
from mufin.train.data import TrainingData
from mufin.train.networks import Networks


def transfer(config: Config, embedder: Embedder, data: TrainingData) -> Networks:
    """The pre-trained embedder with a fresh ranker and fresh classifiers."""
    classifiers = Classifiers(data.n_labels, config.embed.dim, learnt=config.rank.alpha == "learnt")
    if config.rank.start == "centroid" and classifiers.learnt:
        points = embedder.embed(data.points, data.groups).vectors()
        means, known = (t.cpu() for t in centroids(points, data.relevance))
        classifiers.free.data[known] = means[known]
    return Networks(embedder, Ranker(config).to(embedder.device), classifiers.to(embedder.device))
