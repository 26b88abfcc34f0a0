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
    with progress.task("Embedding ", data.n_labels + len(data.groups)) as task:
        labels = embedder.embed(data.labels, data.label_groups, advance=task.advance)
        points = embedder.embed(data.points, data.groups, advance=task.advance)
    return Embedded(labels, points.vectors())


def label_index(embedded: Embedded, relevance: csr_matrix, settings: Retrieve) -> Index:
    """Build the index over Σ (m_l + 1) entries; an approximate one is tuned on real queries."""
    means, has = centroids(embedded.points, relevance)
    bags = embedded.labels
    entries = Entries.build(bags.rows, bags.offsets, means, has, settings.entries, vectors=bags.whole)
    return build_index(entries, settings.search, embedded.points[:256])


def retrieve(embedder: Embedder, data: TrainingData, settings: Retrieve, progress: Progress) -> Shortlist:
    """Return R_i, the nearest unique labels of every datapoint."""
    embedded = embed_all(embedder, data, progress)
    index = label_index(embedded, data.relevance, settings)
    labels, similarity = [], []
    with progress.task("Shortlists", len(embedded.points)) as task:
        for start in range(0, len(embedded.points), 4096):
            stop = min(start + 4096, len(embedded.points))
            part = index.search(embedded.points[start:stop], settings.shortlist, data.exclude[start:stop])
            labels.append(part.labels)
            similarity.append(part.similarity)
            task.advance(stop - start)
    return Shortlist(torch.cat(labels), torch.cat(similarity))
