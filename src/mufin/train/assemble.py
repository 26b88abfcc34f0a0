"""From trained parts to a model: all embeddings once more, the index, β."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mufin.config import Config
from mufin.data.catalogue import Catalogue
from mufin.data.items import Items
from mufin.data.thumbnails import thumbnails
from mufin.encode.embedder import Embedder
from mufin.encode.ragged import Ints
from mufin.labels import Labels
from mufin.model import Mufin
from mufin.progress import Progress
from mufin.rank.classifiers import Classifiers
from mufin.rank.ranker import Ranker
from mufin.train.data import TrainingData
from mufin.train.retrieve import Embedded, embed_all, label_index
from mufin.train.validate import fit_beta

BETA = 0.7  # the paper's, where none can be fitted


@dataclass(frozen=True)
class Trained:
    """What Modules I–IV leave."""

    embedder: Embedder
    ranker: Ranker
    classifiers: Classifiers

    def model(
        self,
        config: Config,
        data: TrainingData,
        embedded: Embedded,
        items: Items,
        own_items: bool,
        beta: float,
    ) -> Mufin:
        """A model whose centroids are those of `data`, whose labels' texts and pictures are `items`."""
        z = embedded.labels.vectors()
        with torch.no_grad():
            weights = self.classifiers.weight(torch.arange(len(z), device=z.device), z)
        index, centroids, has = label_index(embedded, data.relevance, config.retrieve)
        alive = torch.ones(len(z), dtype=torch.bool, device=z.device)
        labels = Labels(
            items, embedded.labels, weights, self.classifiers.alpha(len(z)), centroids, has, alive, own_items
        )
        return Mufin(config, self.embedder, self.ranker, labels, beta, index)


def assemble(
    trained: Trained,
    config: Config,
    catalogue: Catalogue,
    data: TrainingData,
    held_out: Ints,
    progress: Progress,
) -> Mufin:
    """The finished model; β is fitted before the held-out points join the centroids."""
    embedded = embed_all(trained.embedder, data, progress)
    items = thumbnails(catalogue.labels) if config.run.pictures else catalogue.labels.only("text")
    own_items = catalogue.labels_are_items
    beta = BETA if config.rank.beta == "fitted" else config.rank.beta
    if config.rank.beta == "fitted" and len(held_out):
        seen = data.others(held_out)
        partly = Embedded(embedded.labels, embedded.points[torch.from_numpy(seen)])
        draft = trained.model(config, data.take(seen), partly, items, own_items, beta)
        beta = fit_beta(draft, data.take(held_out))
    return trained.model(config, data, embedded, items, own_items, beta)
