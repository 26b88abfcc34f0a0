"""Item: a datapoint or a label, as a bag of texts and images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mufin.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    import PIL.Image
    import torch
    from numpy.typing import NDArray

    Picture = str | Path | bytes | PIL.Image.Image
    Pixels = NDArray[np.uint8] | torch.Tensor


@dataclass(frozen=True)
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
            object.__setattr__(self, name, (value,) if isinstance(value, str) else tuple(value))
        images = self.images if isinstance(self.images, list | tuple) else (self.images,)
        object.__setattr__(self, "images", tuple(map(_picture, images)))

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to encode: no image and no text that is not blank."""
        return not self.images and not any(text.strip() for text in self.texts)


def _picture(image: Any) -> Picture:
    """Return the image unchanged, but pixels as a PIL image."""
    if isinstance(image, str | Path | bytes):
        return image
    from PIL import Image

    if isinstance(image, Image.Image):
        return image
    if not (hasattr(image, "shape") and hasattr(image, "dtype")):
        raise UsageError(
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
