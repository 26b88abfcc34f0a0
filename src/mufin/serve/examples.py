"""Examples: the training items of a label that lie nearest to a query."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from mufin.encode.features import Groups
from mufin.model import Mufin
from mufin.retrieve.lists import bounded
from mufin.serve.batching import Batcher
from mufin.serve.shelf import Shelf

SHOWN = 8
TRIED = 24  # items of a label that are embedded where the memory does not have them
AT_ONCE = 6  # of these in one go: others wait no longer than for a batch
KEPT = 50_000  # vectors


class Examples:
    """Vectors of training items: those that the model remembers, and others as they are asked for."""

    def __init__(self, model: Mufin, shelf: Shelf, batcher: Batcher[Any], split: str = "train") -> None:
        self.model, self.shelf, self.batcher = model, shelf, batcher
        self.split = shelf.catalogue.split(split)
        self.by_label = csr_matrix(self.split.relevance.T)
        self.vectors: dict[int, Tensor] = dict(self._remembered())

    def _remembered(self) -> list[tuple[int, Tensor]]:
        """Item rows of the keys in the memory, if it is that of this very split."""
        vectors, had, labels = self.model.point_vectors(), self.model.points, self.model.labels
        if vectors is None:
            return []
        relevance = labels.align(self.split.relevance, self.shelf.catalogue.labels)
        kept = bounded(relevance, self.model.config.memory.per_label)
        points = csr_matrix(relevance[kept])
        same = (had.offsets.numpy(), points.indptr), (had.labels.numpy(), points.indices)
        if len(kept) != len(had) or not all(np.array_equal(a, b) for a, b in same):
            return []
        return list(zip(self._items(kept).tolist(), vectors, strict=True))

    def _items(self, points: np.ndarray) -> np.ndarray:
        """The item of each point; of several, the first."""
        return np.asarray(self.split.members[self.split.offsets[points]])

    async def nearest(self, x: Tensor, label: str) -> list[dict[str, Any]]:
        """Up to 8 items that had the label in training, by falling ⟨x̂, x̂ᵢ⟩."""
        column = int(self.shelf.catalogue.labels.rows([label])[0])
        if column < 0:
            return []
        points = self.by_label.indices[self.by_label.indptr[column] : self.by_label.indptr[column + 1]]
        rows = self._items(np.asarray(points)).tolist()
        known = [row for row in rows if row in self.vectors]
        if not known:
            known = rows[:TRIED]
            for start in range(0, len(known), AT_ONCE):
                await self.batcher.call(partial(self._embed, known[start : start + AT_ONCE]))
        if not known:
            return []
        similarity = torch.stack([self.vectors[row] for row in known]) @ x
        best = similarity.sort(descending=True, stable=True).indices[:SHOWN].tolist()
        return [self._shown(known[i], float(similarity[i])) for i in best]

    @torch.no_grad()
    def _embed(self, rows: list[int]) -> None:
        if len(self.vectors) > KEPT:
            self.vectors.clear()
        features = self.model.features(self.shelf.items.take(rows))
        vectors = self.model.embedder.embed(features, Groups.singles(np.arange(len(rows)))).vectors()
        self.vectors.update(zip(rows, vectors, strict=True))

    def _shown(self, row: int, similarity: float) -> dict[str, Any]:
        card = self.shelf.card(row)
        return {name: card[name] for name in ("id", "text", "images")} | {"similarity": similarity}
