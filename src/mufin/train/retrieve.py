"""Module II: embed everything, index the labels, and compute the shortlists R_i."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from mufin.encode.bag import PackedBags
from mufin.encode.embedder import Embedder
from mufin.progress import Progress
from mufin.retrieve.build import Index, build_index
from mufin.retrieve.entries import Entries, centroids
from mufin.retrieve.shortlist import Shortlist
from mufin.settings import Retrieve
from mufin.train.data import TrainingData


@dataclass(frozen=True)
class Embedded:
    """Bags of all labels and vectors of all datapoints."""

    labels: PackedBags
    points: Tensor  # (N, D)


def embed_all(embedder: Embedder, data: TrainingData, progress: Progress) -> Embedded:
    """Compute Ẑ¹ of every label and x̂¹ of every datapoint."""
    with progress.task("Embedding ", (data.n_labels + len(data.groups)) // data.ranks.size) as task:
        labels = data.embed_labels(embedder, task=task)
        points = data.embed_points(embedder, task=task)
    return Embedded(labels, points.vectors())


def label_index(embedded: Embedded, relevance: csr_matrix, settings: Retrieve) -> Index:
    """Build the index over Σ (m_l + 1) entries; an approximate one is tuned on real queries."""
    means, has = centroids(embedded.points, relevance)
    bags = embedded.labels
    entries = Entries.build(bags.rows, bags.offsets, means, has, settings.entries, vectors=bags.whole)
    return build_index(entries, settings.search, embedded.points[:256])


@torch.no_grad()
def retrieve(embedder: Embedder, data: TrainingData, settings: Retrieve, progress: Progress) -> Shortlist:
    """Return R_i, the nearest unique labels of every datapoint; each rank searches for its own."""
    embedded = embed_all(embedder, data, progress)
    index = label_index(embedded, data.relevance, settings)
    owner = data.point_owner.to(embedder.device)
    mine = data.ranks.owns(owner)
    labels, similarity = [], []
    with progress.task("Shortlists", len(mine)) as task:
        for points in mine.split(4096):
            part = index.search(
                embedded.points[points], settings.shortlist, data.exclude[points.cpu().numpy()]
            )
            labels.append(part.labels)
            similarity.append(part.similarity)
            task.advance(len(points))
    found = torch.cat(labels), torch.cat(similarity)
    return Shortlist(*(data.ranks.gather(each, owner.to(each.device)) for each in found))
