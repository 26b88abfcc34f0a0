"""Listing: items in pages, found by a substring of their id or texts."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mufin.data.items import Items


class Listing:
    """Some rows of items, in their order.

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
        """The rows in which the query occurs, whatever the case of its letters."""
        if not query.strip():
            return self.rows
        found = pc.match_substring(self._words, query.strip(), ignore_case=True)
        return np.asarray(self.rows[found.to_numpy()])
