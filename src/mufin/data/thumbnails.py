"""Thumbnails of labels, saved with the model, so that hits can be shown without the catalogue."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa

from mufin.data.images import thumbnail
from mufin.data.items import Items


def thumbnails(items: Items) -> Items:
    """Return the items with a thumbnail of their first image; drop images that cannot be read."""
    offsets, pictures = items.flat_images()
    if not len(pictures):
        return items
    first = [[thumbnail(pictures[start])] if start < end else [] for start, end in pairwise(offsets)]
    column = pa.array([[p for p in row if p] for row in first], pa.list_(pa.binary()))
    return Items.from_table(items.table.append_column("images", column))
