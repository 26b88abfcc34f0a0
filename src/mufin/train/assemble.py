"""From trained networks to a model: all embeddings once more, index, memory, the mixture of scores."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from mufin.config import Config
from mufin.data.catalogue import Catalogue
from mufin.data.items import Items
from mufin.data.thumbnails import thumbnails
from mufin.labels import Labels
from mufin.model import Mufin
from mufin.progress import Progress
from mufin.ragged import Ints
from mufin.rank.fusion import PAPER_BETA, Fusion
from mufin.retrieve.build import build_index
from mufin.retrieve.entries import centroids
from mufin.retrieve.memory import Memory
from mufin.train.affinity import Coordinates, unseen_mixture
from mufin.train.data import TrainingData
from mufin.train.implied import implied
from mufin.train.networks import Networks
from mufin.train.retrieve import Embedded, embed_all
from mufin.train.validate import learn_mixture


def assemble(
    networks: Networks,
    config: Config,
    catalogue: Catalogue,
    data: TrainingData,
    held_out: Ints,
    progress: Progress,
) -> Mufin:
    """The finished model; the mixture is learnt before the held-out points join centroids and memory."""
    data = data.encoded(networks.embedder)
    embedded = embed_all(networks.embedder, data, progress)
    items = thumbnails(catalogue.labels) if config.run.pictures else catalogue.labels.only("text")
    fusion = Fusion.of_beta(PAPER_BETA if config.rank.beta == "learnt" else config.rank.beta)
    seen, words, own_items = data.others(held_out), embedded.words, catalogue.labels_are_items
    labels = _labels(networks, data.take(seen), embedded, items, own_items)
    more = implied(data) if config.memory.implied and not own_items else None
    pairs = None
    if config.rank.affinity and own_items:  # only then is a set completed by items
        pairs = Coordinates.of(networks.embedder, data)

    def model(which: Ints, fusion: Fusion) -> Mufin:
        """With the centroids and the memory of these points."""
        relevance, points = (
            data.relevance[which],
            embedded.points[torch.from_numpy(which).to(networks.device)],
        )
        means, has = centroids(points, relevance)
        frequency = _frequency(data.take(which)).to(points.device)
        known = replace(labels, centroids=means, has_centroid=has, frequency=frequency)
        index = build_index(known.entries(config.retrieve.entries), config.retrieve.search, points[:256])
        memory = None
        if config.memory.neighbours:
            of_words = None if words is None else words[which]
            said = None if more is None else more[which]
            memory = Memory.of(points, relevance, config.memory.per_label, of_words, said)
        affinity = None if pairs is None else pairs.affinity(which, relevance)
        return Mufin(config, networks.embedder, networks.ranker, known, fusion, memory, index, affinity)

    mixture = None
    if len(held_out):
        draft = model(seen, fusion)
        fusion = learn_mixture(draft, data.take(held_out))
        mixture = unseen_mixture(draft, data.take(seen), data.take(held_out))
    final = model(np.arange(len(data.groups), dtype=np.int64), fusion)
    if final.affinity is not None and mixture is not None:
        final.affinity = replace(final.affinity, mixture=mixture)
    return final


def _labels(
    networks: Networks, trained_on: TrainingData, embedded: Embedded, items: Items, own_items: bool
) -> Labels:
    """Bags and classifiers; a label that training did not see is its own classifier: w = ẑ, α = 1."""
    z = embedded.labels.vectors()
    frequency = _frequency(trained_on).to(z.device)
    trained = frequency > 0
    alpha = networks.classifiers.alpha(len(z)).where(trained, 1.0)
    weights = networks.weights(z).where(trained[:, None], z)
    alive = torch.ones_like(trained)
    bags = embedded.labels.halved()
    return Labels(items, bags, weights.half(), alpha, z, ~alive, frequency, alive, own_items)


def _frequency(data: TrainingData) -> Tensor:
    """How many points have each label, (L,)."""
    return torch.from_numpy(np.bincount(data.relevance.indices, minlength=data.n_labels).astype(np.float32))
