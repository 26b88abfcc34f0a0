"""Shelf: the catalogue beside a model, with the truth about its items, for those who look."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from mufin.data.catalogue import Catalogue
from mufin.data.items import Items
from mufin.labels import Labels
from mufin.serve.listing import Listing

TRUTH_SHOWN = 20  # relevant labels listed beside an item


class Shelf:
    """Items by id, their splits and relevant labels."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self.items: Items = catalogue.items
        self.splits = sorted(catalogue.splits)
        self.pictures = self.items.pictures.counts()
        self._place = np.full((len(self.items), 2), -1)  # which split, and which point of it
        self._points = []
        for number, name in enumerate(self.splits):
            split = catalogue.split(name)
            alone = np.flatnonzero(np.diff(split.offsets) == 1)  # a point of several items is no item's truth
            self._place[split.members[split.offsets[alone]]] = np.column_stack(
                [np.full(len(alone), number), alone]
            )
            self._points.append(split)

    @cached_property
    def listing(self) -> Listing:
        return Listing(self.items)

    def row(self, id: str) -> int | None:
        """The row of an id."""
        row = int(self.items.rows([id])[0])
        return row if row >= 0 else None

    def find(self, query: str, split: str | None) -> np.ndarray:
        """The rows that match, of one split or of all."""
        rows = self.listing.find(query)
        return rows if split is None else rows[self._place[rows, 0] == self.splits.index(split)]

    def truth(self, row: int) -> list[str] | None:
        """The ids of the labels that are relevant to an item; None where nobody knows."""
        number, point = self._place[row]
        if number < 0:
            return None
        relevance = self._points[number].relevance
        columns = relevance.indices[relevance.indptr[point] : relevance.indptr[point + 1]]
        ids: list[str] = self.catalogue.labels.ids.take(columns).to_pylist()
        return ids

    def hidden(self, ids: list[str], labels: Labels) -> csr_matrix | None:
        """(B, L) bool: the filter pairs of these items, as columns of the model's labels."""
        if "filter" not in self.catalogue.parts:
            return None
        rows = self.items.rows(ids)
        pairs = csr_matrix(self.catalogue.filter[np.maximum(rows, 0)])
        pairs = csr_matrix(pairs.multiply((rows >= 0)[:, None]))
        return labels.align(pairs, self.catalogue.labels)

    def card(self, row: int) -> dict[str, Any]:
        """What is shown of an item."""
        texts = self.items.texts[row].as_py() or []
        truth = self.truth(row) or []
        labels = self.catalogue.labels
        shown = truth[:TRUTH_SHOWN]
        first = [next(iter(labels.texts[int(i)].as_py() or ()), "") for i in labels.rows(shown)]
        return {
            "id": self.items.ids[row].as_py(),
            "text": next(iter(texts), ""),
            "texts": texts,
            "images": int(self.pictures[row]),
            "split": self.splits[self._place[row, 0]] if self._place[row, 0] >= 0 else None,
            "labels": [{"id": id, "text": text} for id, text in zip(shown, first, strict=True)],
        }
