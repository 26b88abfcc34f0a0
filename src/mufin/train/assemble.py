"""Build a model from trained networks: final embeddings, index, memory and mixture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from mufin.config import Config
from mufin.data.catalogue import Catalogue
from mufin.data.items import Items
from mufin.data.ragged import Ints
from mufin.data.thumbnails import thumbnails
from mufin.encode.bag import PackedBags
from mufin.encode.features import Groups
from mufin.model.labels import Labels
from mufin.model.mufin import Mufin
from mufin.progress import Progress
from mufin.retrieve.build import build_index
from mufin.retrieve.entries import centroids
from mufin.retrieve.lists import Lists, bounded
from mufin.signals.base import Query, Signal, Training, grouped
from mufin.signals.mixture import PAPER_BETA, Mixture
from mufin.train.compatibility import Coordinates, unseen_mixture
from mufin.train.data import TrainingData
from mufin.train.retrieve import Embedded, embed_all
from mufin.train.transfer import Networks
from mufin.train.validate import learn_mixture

SCALE_SAMPLE = 2000  # training pairs used to estimate the scale of untrained labels


@dataclass(frozen=True)
class Trained:
    """The result of the modules: networks, all embeddings, and the data."""

    networks: Networks
    embedded: Embedded
    data: TrainingData

    @classmethod
    def of(cls, networks: Networks, data: TrainingData, progress: Progress) -> Trained:
        data = data.encoded(networks.embedder)
        return cls(networks.whole(), embed_all(networks.embedder, data, progress), data)


def assemble(trained: Trained, signals: Sequence[Signal], config: Config, catalogue: Catalogue) -> Mufin:
    """Build the final model; learn the mixture before held-out points join the centroids and the memory."""
    networks, embedded, data = trained.networks, trained.embedded, trained.data
    items = thumbnails(catalogue.labels) if config.run.pictures else catalogue.labels.only("text")
    own_items = catalogue.labels_are_items
    seen = data.seen
    untrained = 1.0 if config.rank.beta == "learnt" else _untrained_scale(networks, data.take(seen))
    labels = _labels(networks, data.take(seen), embedded, items, own_items, untrained)
    pairs = None
    if config.rank.compatibility and own_items:  # only item labels can complete a set
        pairs = Coordinates.of(networks.embedder, data)

    def model(which: Ints, mixture: Mixture) -> Mufin:
        """Build the model with the centroids and the memory of these points."""
        relevance, points = (
            data.relevance[which],
            embedded.points[torch.from_numpy(which).to(networks.device)],
        )
        means, has = centroids(points, relevance)
        frequency = _frequency(data.take(which)).to(points.device)
        known = replace(labels, centroids=means, has_centroid=has, frequency=frequency)
        index = build_index(known.entries(config.retrieve.entries), config.retrieve.search, points[:256])
        compatibility = None if pairs is None else pairs.compatibility(which, relevance)
        empty = Lists.none(0, points.device)
        draft = Mufin(
            config, networks.embedder, networks.ranker, known, signals, mixture, empty, index, compatibility
        )
        return _teach_signals(draft, data.take(which), points, embedded.labels)

    beta = PAPER_BETA if config.rank.beta == "learnt" else config.rank.beta
    mixture, unseen = Mixture.of_beta(signals, beta), None
    if len(data.held_out):
        draft = model(seen, mixture)
        mixture = learn_mixture(draft, data.take(data.held_out), catalogue)
        unseen = unseen_mixture(draft, data.take(seen), data.take(data.held_out))
    final = model(np.arange(len(data.groups), dtype=np.int64), mixture)
    if final.compatibility is not None and unseen is not None:
        final.compatibility = replace(final.compatibility, mixture=unseen)
    return final


def _teach_signals(model: Mufin, data: TrainingData, points: Tensor, labels: PackedBags) -> Mufin:
    """Let the model's signals learn from these points, with vectors `points`, and from all labels."""
    kept = np.zeros(0, np.int64)
    if model.config.memory.neighbours:
        kept = bounded(data.relevance, model.config.memory.per_label)
    relevance, vectors = data.relevance[kept], points[torch.from_numpy(kept).to(points.device)]
    model.points = Lists.of(relevance).to(points.device)
    known = model.known
    bags = PackedBags(vectors, torch.arange(len(kept) + 1, device=points.device), vectors)
    remembered = Query(known, bags, grouped(data.points, data.groups.take(kept)))
    label_queries = Query(known, labels, grouped(data.labels, data.label_groups))
    training = Training(remembered, label_queries, relevance, data.exclude[kept], model.labels.own_items)
    model.signals = tuple(signal.learn(training) for signal in model.signals)
    return model


def _labels(
    networks: Networks,
    trained_on: TrainingData,
    embedded: Embedded,
    items: Items,
    own_items: bool,
    untrained: float,
) -> Labels:
    """Collect bags and classifiers of all labels; an untrained label gets α = 1 and w = `untrained` · ẑ."""
    z = embedded.labels.vectors()
    frequency = _frequency(trained_on).to(z.device)
    trained = frequency > 0
    alpha = networks.classifiers.alpha(len(z)).where(trained, 1.0)
    weights = networks.weights(z).where(trained[:, None], untrained * z)
    alive = torch.ones_like(trained)
    bags = embedded.labels.half()
    return Labels(items, bags, weights.half(), alpha, z, ~alive, frequency, alive, own_items, untrained)


@torch.no_grad()
def _untrained_scale(networks: Networks, data: TrainingData) -> float:
    """Return the ratio of mean ⟨x̂²ˡ, w_l⟩ to mean ⟨x̂²ˡ, ẑ_l⟩ on training pairs, clamped to [0, 1].

    A trained w mixes ẑ with η. Until η is well trained, it lowers the score, so an untrained label with
    w = ẑ would outrank every trained one.
    """
    points = data.used_points
    points = points[:: max(1, len(points) // SCALE_SAMPLE)]
    if not len(points):
        return 1.0
    first = data.relevance.indices[data.relevance.indptr[points]].astype(np.int64)
    x = networks.embedder.embed(data.points, data.groups.take(points))
    z = networks.embedder.embed(data.labels, Groups.singles(first))
    rows = torch.arange(len(points), device=networks.device)
    label, w = z.take(rows), networks.classifiers.weight(torch.from_numpy(first).to(rows.device), z.vectors())
    adapted = networks.ranker.adapted(x.take(rows), label.map(lambda t: t[:, None]))[:, 0]  # (n, D)
    trained, untrained = (float((adapted * vector).sum(1).mean()) for vector in (w, label.vector()))
    return min(1.0, max(0.0, trained / untrained)) if untrained > 0 else 1.0


def _frequency(data: TrainingData) -> Tensor:
    """Return the number of points per label, (L,)."""
    return torch.from_numpy(np.bincount(data.relevance.indices, minlength=data.n_labels).astype(np.float32))
