"""The catalogue beside a model: search, known labels of an item, training examples of a label."""

from __future__ import annotations

from functools import cached_property, partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from mufin.data.catalogue import Catalogue
from mufin.data.items import Items
from mufin.encode.features import Groups
from mufin.model.labels import Labels
from mufin.model.mufin import Mufin
from mufin.retrieve.lists import bounded
from mufin.serve.batching import Batcher

LABELS_SHOWN = 20  # known labels listed per item
EXAMPLES_SHOWN = 8
TRIED = 24  # items of a label to embed if the memory has none of them
AT_ONCE = 6  # of these per call, so that other requests wait no longer than for a batch
KEPT = 50_000  # vectors


class Listing:
    """Some rows of items, in their order, searched by substring.

    >>> from mufin.data.item import Item
    >>> listing = Listing(Items.of([Item("a", ["Oak desk"]), Item("b", ["Lamp"])]))
    >>> listing.find("DESK").tolist(), listing.find("").tolist()
    ([0], [0, 1])
    """

    def __init__(self, items: Items, shown: np.ndarray | None = None) -> None:
        self.items = items
        self.rows = np.arange(len(items)) if shown is None else np.flatnonzero(shown)
        texts = pc.fill_null(pc.binary_join(items.texts, "\n"), "")
        both = (column.cast(pa.large_string()) for column in (items.ids, texts))
        words = pc.binary_join_element_wise(*both, pa.scalar("\n", pa.large_string()))
        self._words = words.take(pa.array(self.rows))

    def find(self, query: str) -> np.ndarray:
        """Return the rows whose id or texts contain the query, ignoring case."""
        if not query.strip():
            return self.rows
        found = pc.match_substring(self._words, query.strip(), ignore_case=True)
        return np.asarray(self.rows[found.to_numpy()])


class CatalogueView:
    """Items by id, with their splits and known labels."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self.items: Items = catalogue.items
        self.splits = sorted(catalogue.splits)
        self.images = self.items.pictures.counts()
        self._place = np.full((len(self.items), 2), -1)  # the number of a split, and of a point in it
        self._points = []
        for number, name in enumerate(self.splits):
            split = catalogue.split(name)
            alone = np.flatnonzero(np.diff(split.offsets) == 1)  # labels of a set are not those of its items
            self._place[split.members[split.offsets[alone]]] = np.column_stack(
                [np.full(len(alone), number), alone]
            )
            self._points.append(split)

    @cached_property
    def listing(self) -> Listing:
        return Listing(self.items)

    def row(self, id: str) -> int | None:
        """Return the row of an id, or None."""
        row = int(self.items.rows([id])[0])
        return row if row >= 0 else None

    def find(self, query: str, split: str | None) -> np.ndarray:
        """Return the rows that match, in one split or in all."""
        rows = self.listing.find(query)
        return rows if split is None else rows[self._place[rows, 0] == self.splits.index(split)]

    def known_labels(self, row: int) -> list[str] | None:
        """Return the ids of the labels that are relevant to an item; None if unknown."""
        number, point = self._place[row]
        if number < 0:
            return None
        relevance = self._points[number].relevance
        columns = relevance.indices[relevance.indptr[point] : relevance.indptr[point + 1]]
        ids: list[str] = self.catalogue.labels.ids.take(columns).to_pylist()
        return ids

    def hidden(self, ids: list[str], labels: Labels) -> csr_matrix | None:
        """Return the filter pairs of these items, (B, L) bool, as columns of the model's labels."""
        if "filter" not in self.catalogue.parts:
            return None
        rows = self.items.rows(ids)
        pairs = csr_matrix(self.catalogue.filter[np.maximum(rows, 0)])
        pairs = csr_matrix(pairs.multiply((rows >= 0)[:, None]))
        return labels.align(pairs, self.catalogue.labels)

    def card(self, row: int) -> dict[str, Any]:
        """Return an item as answers show it."""
        texts = self.items.texts[row].as_py() or []
        labels = self.catalogue.labels
        shown = (self.known_labels(row) or [])[:LABELS_SHOWN]
        first = [next(iter(labels.texts[int(i)].as_py() or ()), "") for i in labels.rows(shown)]
        return {
            "id": self.items.ids[row].as_py(),
            "text": next(iter(texts), ""),
            "texts": texts,
            "images": int(self.images[row]),
            "split": self.splits[self._place[row, 0]] if self._place[row, 0] >= 0 else None,
            "labels": [{"id": id, "text": text} for id, text in zip(shown, first, strict=True)],
        }


class Examples:
    """Training items of a label: vectors from the model's memory, others embedded on demand."""

    def __init__(
        self, model: Mufin, view: CatalogueView, batcher: Batcher[Any], split: str = "train"
    ) -> None:
        self.model, self.view, self.batcher = model, view, batcher
        self.split = view.catalogue.split(split)
        self.by_label = csr_matrix(self.split.relevance.T)
        self.vectors: dict[int, Tensor] = dict(self._remembered())

    def _remembered(self) -> list[tuple[int, Tensor]]:
        """Return item rows and their vectors in the memory, if it was made from this very split."""
        vectors, had, labels = self.model.point_vectors(), self.model.points, self.model.labels
        if vectors is None:
            return []
        relevance = labels.align(self.split.relevance, self.view.catalogue.labels)
        kept = bounded(relevance, self.model.config.memory.per_label)
        points = csr_matrix(relevance[kept])
        same = (had.offsets.numpy(), points.indptr), (had.labels.numpy(), points.indices)
        if len(kept) != len(had) or not all(np.array_equal(a, b) for a, b in same):
            return []
        return list(zip(self._items(kept).tolist(), vectors, strict=True))

    def _items(self, points: np.ndarray) -> np.ndarray:
        """Return the first item of each point."""
        return np.asarray(self.split.members[self.split.offsets[points]])

    async def nearest(self, x: Tensor, label: str) -> list[dict[str, Any]]:
        """Return up to 8 training items of the label, by falling ⟨x̂, x̂ᵢ⟩."""
        column = int(self.view.catalogue.labels.rows([label])[0])
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
        best = similarity.sort(descending=True, stable=True).indices[:EXAMPLES_SHOWN].tolist()
        return [self._shown(known[i], float(similarity[i])) for i in best]

    @torch.no_grad()
    def _embed(self, rows: list[int]) -> None:
        if len(self.vectors) > KEPT:
            self.vectors.clear()
        features = self.model.features(self.view.items.take(rows))
        vectors = self.model.embedder.embed(features, Groups.singles(np.arange(len(rows)))).vectors()
        self.vectors.update(zip(rows, vectors, strict=True))

    def _shown(self, row: int, similarity: float) -> dict[str, Any]:
        card = self.view.card(row)
        return {name: card[name] for name in ("id", "text", "images")} | {"similarity": similarity}
