"""Item: a datapoint or a label, as a bag of texts and images."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mufin.errors import InputTypeError, UsageError

if TYPE_CHECKING:
    import numpy as np
    import PIL.Image
    import torch
    from numpy.typing import NDArray

    Picture = str | Path | bytes | PIL.Image.Image
    Pixels = NDArray[np.uint8] | torch.Tensor


SHOWN = 3  # texts and images that `repr` shows
CHARS = 60  # of a text that `repr` shows


@dataclass(frozen=True, repr=False)
class Item:
    """A bag of descriptors: texts, images or both.

    An image is a path, encoded bytes (PNG, JPEG, WebP, GIF, BMP, TIFF), a PIL image, or pixels: a NumPy
    array or torch tensor of shape (H, W, 3) and dtype uint8, which is copied into a PIL image.

    >>> Item("desk-1", texts=["oak desk"]).texts
    ('oak desk',)
    """

    id: str = ""
    texts: Sequence[str] = ()
    images: Sequence[Picture | Pixels] = ()
    category: str | None = None
    related: Sequence[str] = ()

    def __post_init__(self) -> None:
        # A string instead of a list is a likely slip: tuple("oak") would silently be three descriptors.
        for name in ("texts", "related"):
            value = getattr(self, name)
            value = (value,) if isinstance(value, str) or not isinstance(value, Iterable) else tuple(value)
            for text in value:
                if not isinstance(text, str):
                    raise InputTypeError(
                        f'{name} are strings, not {type(text).__name__}; write Item({name}=["oak desk"])'
                    )
            object.__setattr__(self, name, value)
        images = self.images if isinstance(self.images, list | tuple) else (self.images,)
        object.__setattr__(self, "images", tuple(map(_picture, images)))

    def __repr__(self) -> str:
        shown = [repr(self.id)] if self.id else []
        shown += [f"texts={[_cut(text) for text in self.texts[:SHOWN]]}"] if self.texts else []
        shown += [f"{len(self.texts) - SHOWN:,} more texts"] if len(self.texts) > SHOWN else []
        shown += [f"images=[{', '.join(map(_described, self.images[:SHOWN]))}]"] if self.images else []
        shown += [f"{len(self.images) - SHOWN:,} more images"] if len(self.images) > SHOWN else []
        shown += [f"category={self.category!r}"] if self.category is not None else []
        shown += [f"{len(self.related):,} related"] if self.related else []
        return f"Item({', '.join(shown)})"

    def _repr_html_(self) -> str:
        from mufin.data import html

        name = f"<b>{html.text(self.id)}</b> " if self.id else ""
        return f"<div>{name}{html.item(self.texts, self.images)}</div>"

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to encode: no image and no text that is not blank."""
        return not self.images and not any(text.strip() for text in self.texts)


def _cut(text: str) -> str:
    return text if len(text) <= CHARS else f"{text[: CHARS - 1]}…"


def _described(image: Any) -> str:
    """Describe an image in a few characters."""
    if isinstance(image, str | Path):
        return repr(str(image))
    if isinstance(image, bytes):
        return f"<{len(image):,} bytes>"
    return f"<{image.width} × {image.height} pixels>"


def _picture(image: Any) -> Picture:
    """Return the image unchanged, but pixels as a PIL image."""
    if isinstance(image, str | Path | bytes):
        return image
    from PIL import Image

    if isinstance(image, Image.Image):
        return image
    if not (hasattr(image, "shape") and hasattr(image, "dtype")):
        raise InputTypeError(
            f"an image is a path, bytes, a PIL image or an array, not {type(image).__name__}; "
            'write Item(images=["desk.jpg"])'
        )
    pixels = image.detach().cpu().numpy() if hasattr(image, "detach") else image  # a tensor, on any device
    if pixels.ndim != 3 or pixels.shape[2] != 3 or not pixels.size or str(pixels.dtype) != "uint8":
        raise UsageError(
            f"pixels of shape {tuple(image.shape)}, {image.dtype}; an image is (H, W, 3), uint8, "
            "such as numpy.zeros((480, 640, 3), numpy.uint8)"
        )
    return Image.fromarray(pixels)
