"""TrainingData: the features and relevance that all modules train on.

With several ranks, all of them know the relevance, and each has the features of what it owns.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from torch import Tensor

from mufin.data.catalogue import Catalogue
from mufin.data.items import Items
from mufin.data.ragged import Ints, Ragged
from mufin.data.split import Split
from mufin.encode.bag import PackedBags
from mufin.encode.cache import keys
from mufin.encode.embedder import Embedder
from mufin.encode.features import Descriptors, Features, Groups
from mufin.progress import SILENT, Task
from mufin.train.ranks import ALONE, Ranks


@dataclass(frozen=True)
class TrainingData:
    """Features of N datapoints and L labels, and their sparse relevance."""

    points: Features
    groups: Groups  # (N)
    labels: Features  # (L)
    relevance: csr_matrix  # (N, L) bool
    exclude: csr_matrix  # (N, L) bool: neither positive nor negative
    held_out: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # datapoints for validation
    ranks: Ranks = ALONE
    owner: Ints | None = None  # (N,) the rank of each datapoint; None: there is one rank

    @cached_property
    def used_labels(self) -> Ints:
        """Labels with at least one datapoint."""
        return np.flatnonzero(np.bincount(self.relevance.indices, minlength=self.n_labels)).astype(np.int64)

    @property
    def used_points(self) -> Ints:
        """Datapoints with at least one label."""
        return np.flatnonzero(np.diff(self.relevance.indptr)).astype(np.int64)

    @cached_property
    def point_owner(self) -> Tensor:
        """The rank that embeds each datapoint, (N,)."""
        return (
            torch.zeros(len(self.groups), dtype=torch.int64)
            if self.owner is None
            else torch.from_numpy(self.owner)
        )

    @cached_property
    def label_owner(self) -> Tensor:
        """The rank that embeds each label and keeps its classifier, (L,)."""
        return torch.arange(self.n_labels) % self.ranks.size

    @torch.no_grad()
    def embed_points(self, embedder: Embedder, which: Ints | None = None, task: Task = SILENT) -> PackedBags:
        """Return the bags X̂¹ of these datapoints, or of all."""
        which = np.arange(len(self.groups)) if which is None else which
        owner = self.point_owner[torch.from_numpy(which)]
        mine = which[self.ranks.owns(owner).numpy()]
        bags = embedder.embed(self.points, self.groups.take(mine), task=task)
        return self.ranks.gather_packed(bags, owner.to(embedder.device))

    @torch.no_grad()
    def embed_labels(self, embedder: Embedder, task: Task = SILENT) -> PackedBags:
        """Return the bags Ẑ¹ of all labels."""
        mine = Groups.singles(self.ranks.owns(self.label_owner).numpy())
        bags = embedder.embed(self.labels, mine, task=task)
        return self.ranks.gather_packed(bags, self.label_owner.to(embedder.device))

    @property
    def n_labels(self) -> int:
        return int(self.relevance.shape[1])

    @property
    def label_groups(self) -> Groups:
        return Groups.singles(np.arange(self.n_labels))

    def encoded(self, embedder: Embedder) -> TrainingData:
        """Return a copy with all descriptors encoded now, for epochs in which the encoders are frozen."""
        labels = embedder.encoded(self.labels)
        points = labels if self.points is self.labels else embedder.encoded(self.points)
        return replace(self, points=points, labels=labels)

    @property
    def seen(self) -> Ints:
        """All datapoints except those held out."""
        return np.setdiff1d(np.arange(len(self.groups), dtype=np.int64), self.held_out)

    def take(self, points: Ints) -> TrainingData:
        """Select these datapoints; keep all labels."""
        return TrainingData(
            self.points, self.groups.take(points), self.labels, self.relevance[points], self.exclude[points],
            ranks=self.ranks, owner=None if self.owner is None else self.owner[points],
        )  # fmt: skip


def numbered_texts(items: Items) -> Features:
    """Return features that only distinguish equal texts from different ones, without encoding any."""
    offsets, texts = items.flat_texts()
    which = texts.dictionary_encode().indices.to_numpy().astype(np.int64)
    rows = Ragged(np.zeros((0, 1), np.float32), np.zeros(1, np.int64))
    return Features(Descriptors(rows, which, offsets), Descriptors.none(len(items)))


def catalogue_hashes(catalogue: Catalogue, points: Split) -> dict[str, str]:
    """Return hashes of all that training reads of the catalogue, by the name that a user knows."""
    items, labels = catalogue.items, catalogue.labels
    found = {"label ids": _hash(keys(labels.ids.to_pylist()))}
    if labels is not items:
        found |= _descriptor_hashes("label", labels)
        items = items.take(np.unique(points.members))  # items of other splits may change
    found |= _descriptor_hashes("item", items)
    pairs = (points.relevance, points.exclude)
    found["datapoints"] = _hash(points.offsets, points.members)
    found["labels of datapoints"] = _hash(*(a for m in pairs for a in (m.indptr, m.indices)))
    return found


def _descriptor_hashes(name: str, items: Items) -> dict[str, str]:
    (text_offsets, texts), (image_offsets, images) = items.flat_texts(), items.flat_images()
    return {
        f"{name} texts": _hash(text_offsets, keys(texts.to_pylist())),
        f"{name} images": _hash(image_offsets, keys(images)),
    }


def _hash(*arrays: NDArray[Any]) -> str:
    digest = xxhash.xxh3_128()
    for array in arrays:
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
