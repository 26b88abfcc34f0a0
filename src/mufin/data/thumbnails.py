"""Small label pictures that travel with the model, so that hits can be shown without the catalogue."""

from __future__ import annotations

import io
from itertools import pairwise

import pyarrow as pa

from mufin.data.images import opened
from mufin.data.items import Items
from mufin.data.pictures import Encoded
from mufin.errors import PictureError

SIDE = 96  # pixels


def thumbnails(items: Items) -> Items:
    """The items with the first picture of each made small; broken ones are left out."""
    offsets, pictures = items.flat_images()
    if not len(pictures):
        return items
    first = [[small(pictures[start])] if start < end else [] for start, end in pairwise(offsets)]
    column = pa.array([[p for p in row if p] for row in first], pa.list_(pa.binary()))
    return Items.from_table(items.table.append_column("images", column))


def small(picture: Encoded) -> bytes | None:
    """At most 96 px as WebP, or nothing if it cannot be read."""
    try:
        with opened(picture, SIDE) as image:
            image.thumbnail((SIDE, SIDE))
            buffer = io.BytesIO()
            image.save(buffer, "WEBP", quality=80)
            return buffer.getvalue()
    except PictureError:
        return None
