"""Item: a datapoint or a label, as a bag of texts and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import PIL.Image

    Picture = str | Path | bytes | PIL.Image.Image


@dataclass(frozen=True)
class Item:
    """A bag of descriptors: texts and pictures, of which either kind may be missing, never both.

    A picture is a path, encoded bytes (PNG, JPEG, WebP, GIF, BMP, TIFF) or a PIL image.

    >>> Item("desk-1", texts=["oak desk"]).texts
    ('oak desk',)
    """

    id: str = ""
    texts: Sequence[str] = ()
    images: Sequence[Picture] = ()
    category: str | None = None
    related: Sequence[str] = ()

    def __post_init__(self) -> None:
        # A lone string is a likely slip: tuple("oak") would silently become three descriptors.
        for name in ("texts", "related"):
            value = getattr(self, name)
            object.__setattr__(self, name, (value,) if isinstance(value, str) else tuple(value))
        images = self.images if isinstance(self.images, list | tuple) else (self.images,)
        object.__setattr__(self, "images", tuple(images))

    @property
    def is_empty(self) -> bool:
        """True when there is nothing to encode: no picture, and no text but blanks."""
        return not self.images and not any(text.strip() for text in self.texts)
