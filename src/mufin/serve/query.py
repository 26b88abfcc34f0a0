"""What is asked: items as they come over the wire, checked and decoded before they wait for the model."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from PIL import Image

from mufin.data.decoding import open_encoded
from mufin.data.images import scaled
from mufin.data.item import Item
from mufin.data.items import Items
from mufin.data.pictures import Encoded, Pictures
from mufin.errors import PictureError
from mufin.serve.limits import LIMITS
from mufin.serve.problem import Problem

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")  # decoders that strangers may reach


@dataclass(frozen=True)
class Query:
    """An item whose pictures are decoded to the size that the model reads."""

    id: str = ""
    texts: tuple[str, ...] = ()
    images: tuple[Image.Image, ...] = ()


class Decoded(Pictures):
    """Pictures that need no decoding any more."""

    def __init__(self, rows: Sequence[tuple[Image.Image, ...]]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def row(self, row: int) -> tuple[Encoded, ...]:
        # The encoders take whatever can be opened; only what is stored must be bytes or a path.
        return cast("tuple[Encoded, ...]", self.rows[row])

    def counts(self) -> np.ndarray:
        return np.array([len(row) for row in self.rows], np.int64)


def table_of(queries: Sequence[Query]) -> Items:
    """The queries as items."""
    plain = Items.of([Item(query.id, query.texts) for query in queries])
    return Items(plain.table, Decoded([query.images for query in queries]))


def check_count(pictures: Iterable[Sequence[str]]) -> None:
    """Refuse more pictures than others can wait for."""
    count = sum(map(len, pictures))
    if count > LIMITS.images_in_all:
        raise Problem(413, f"{count} pictures; at most {LIMITS.images_in_all} are looked at in one call")


def check_pixels(images: Iterable[Sequence[str]]) -> None:
    """Refuse more pixels than can be decoded while others wait; only the headers of the files are read."""
    total = sum(_pixels(text) for some in images for text in some)
    if total > LIMITS.pixels_in_all:
        most = f"at most {LIMITS.pixels_in_all:,} are decoded in one call"
        raise Problem(413, f"the images have {total:,} pixels together; {most}, make them smaller")


def _pixels(text: str) -> int:
    """Width × height by the header; 0 where there is none: decoding says what is wrong."""
    try:
        with open_encoded(base64.b64decode(text), FORMATS) as image:
            return image.width * image.height
    except Exception:  # decoders raise whatever they like
        return 0


def from_base64(text: str, name: str) -> bytes:
    """The bytes of a picture in a JSON body."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise Problem(422, f"{name} is not base64") from None


def checked_picture(encoded: bytes, name: str) -> bytes:
    """A picture of a known kind with not too many bytes and pixels; only its header is read."""
    if len(encoded) > LIMITS.image_bytes:
        raise Problem(413, f"{name} has {len(encoded):,} bytes; at most {LIMITS.image_bytes:,} are read")
    try:
        with open_encoded(encoded, FORMATS) as image:
            width, height = image.size
    except Image.DecompressionBombError:
        raise Problem(413, f"{name} has far too many pixels; make it smaller") from None
    except Exception:  # decoders raise whatever they like
        raise Problem(422, f"{name} is not a picture; send PNG, JPEG, WebP, GIF or BMP") from None
    if width * height > LIMITS.image_pixels:
        most = f"at most {LIMITS.image_pixels:,} pixels are read"
        raise Problem(413, f"{name} is {width} × {height}; {most}, make it smaller")
    return encoded


def decoded(encoded: bytes, name: str, size: int) -> Image.Image:
    """A checked picture, upright on white, no bigger than the model reads it."""
    try:
        return scaled(checked_picture(encoded, name), size)
    except PictureError as error:
        raise Problem(422, f"{name}: {error}") from None
