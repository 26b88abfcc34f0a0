"""Thumbnails of labels, saved with the model, so that hits can be shown without the catalogue."""

from __future__ import annotations

import io
from itertools import pairwise

import pyarrow as pa

from mufin.data.images import opened
from mufin.data.items import Items
from mufin.data.pictures import Encoded
from mufin.errors import PictureError

MAX_SIDE = 96  # pixels


def thumbnails(items: Items) -> Items:
    """Return the items with a thumbnail of their first image; drop images that cannot be read."""
    offsets, pictures = items.flat_images()
    if not len(pictures):
        return items
    first = [[thumbnail(pictures[start])] if start < end else [] for start, end in pairwise(offsets)]
    column = pa.array([[p for p in row if p] for row in first], pa.list_(pa.binary()))
    return Items.from_table(items.table.append_column("images", column))


def thumbnail(picture: Encoded) -> bytes | None:
    """Return the image as WebP, at most 96 px wide and high, or None if it cannot be read."""
    try:
        with opened(picture, MAX_SIDE) as image:
            image.thumbnail((MAX_SIDE, MAX_SIDE))
            buffer = io.BytesIO()
            image.save(buffer, "WEBP", quality=80)
            return buffer.getvalue()
    except PictureError:
        return None
