"""Open images, rotate them upright, resize and pad them; a broken image raises a PictureError."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from mufin.data.decoding import BUDGET, MAX_IMAGE_MEMORY, MAX_PIXELS, decoding_memory, open_encoded, read_file
from mufin.errors import PictureError

if TYPE_CHECKING:
    from mufin.data.item import Picture

STRIP_PIXELS = 1 << 20  # convert this many pixels at a time, to keep temporary copies small
THUMBNAIL_SIDE = 96  # pixels
WHITE = (255, 255, 255)
Box = tuple[float, float, float, float]  # left, top, right, bottom, in pixels
# For each EXIF orientation: the sides of the stored image that become left, top, right and bottom.
ROTATED_SIDES = {
    2: (2, 1, 0, 3), 3: (2, 3, 0, 1), 4: (0, 3, 2, 1), 5: (1, 0, 3, 2),
    6: (3, 0, 1, 2), 7: (3, 2, 1, 0), 8: (1, 2, 3, 0),
}  # fmt: skip
SIGNATURES = (
    (b"\x89PNG", ".png"),
    (b"\xff\xd8\xff", ".jpg"),
    (b"GIF8", ".gif"),
    (b"BM", ".bmp"),
    (b"II*\x00", ".tif"),
    (b"MM\x00*", ".tif"),
)


@contextmanager
def opened(picture: Picture, size: int | None = None) -> Iterator[Image.Image]:
    """Open the first frame: upright, RGB, on white. `size` lets a JPEG decode at a reduced size.

    Waits for free decoding memory, which all threads share, and holds it until the context ends.
    """
    with _open_with_box(picture, size) as (image, _):
        yield image


@contextmanager
def _open_with_box(picture: Picture, size: int | None) -> Iterator[tuple[Image.Image, Box]]:
    """Open the image and return its exact extent: a reduced JPEG may end inside its last pixels."""
    with _picture_errors(picture):
        image = picture if isinstance(picture, Image.Image) else open_encoded(encoded_of(picture))
        box, need = _prepare(image, picture, size)
    with BUDGET.spend(need):
        with _picture_errors(picture):
            image.load()
            image, box = _upright(image, box)  # rebind the name, so that the old image is freed
            image = _to_rgb(image)
        yield (image.copy() if image is picture else image), box


def open_picture(picture: Picture, size: int | None = None) -> Image.Image:
    """Open and decode the image as `opened` does."""
    with opened(picture, size) as image:
        return image


def _prepare(image: Image.Image, picture: Picture, size: int | None) -> tuple[Box, int]:
    """Return the extent of the decoded image and the bytes that decoding needs.

    Reads the header only, and refuses images that would take too much time or memory.
    """
    full = image.size
    box: Box = (0, 0, *full)
    found = f"{image.width} × {image.height} pixels"
    if image.width * image.height > MAX_PIXELS:
        raise PictureError(f"{found}, more than {MAX_PIXELS:,}; make it smaller", _name(picture))
    if size is not None and image is not picture and image.format == "JPEG":
        drafted = image.draft("RGB", (size, size))
        box = box if drafted is None else drafted[1]
    need = decoding_memory(image, full)
    if need > MAX_IMAGE_MEMORY:
        found = f"{found} ({image.format or 'image'}, {image.mode}) take {need >> 20:,} MiB to decode"
        raise PictureError(f"{found}, more than {MAX_IMAGE_MEMORY >> 20:,}; make it smaller", _name(picture))
    return box, need


def load_pixels(picture: Picture, size: int) -> np.ndarray:
    """Return the image scaled to a longer side of `size` and padded with white: (size, size, 3) uint8."""
    image = scaled(picture, size)
    width, height = image.size
    canvas = Image.new("RGB", (size, size), WHITE)
    canvas.paste(image, ((size - width) // 2, (size - height) // 2))
    return np.array(canvas)


def scaled(picture: Picture, size: int) -> Image.Image:
    """Scale the image to a longer side of `size`; scaling the result again changes nothing."""
    with _open_with_box(picture, size) as (image, box):
        sides = box[2] - box[0], box[3] - box[1]
        width, height = (max(1, round(side * (size / max(sides)))) for side in sides)
        if (width, height) == image.size:
            return image
        return image.resize((width, height), Image.Resampling.BICUBIC, box, reducing_gap=3.0)


def thumbnail(picture: Picture) -> bytes | None:
    """Return the image as WebP, at most 96 px wide and high, or None if it cannot be read."""
    try:
        with opened(picture, THUMBNAIL_SIDE) as image:
            image.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE))
            buffer = io.BytesIO()
            image.save(buffer, "WEBP", quality=80)
            return buffer.getvalue()
    except PictureError:
        return None


def read_bytes(picture: Picture) -> bytes:
    """Return the encoded image, from memory or from its file; a decoded image becomes PNG."""
    if isinstance(picture, Image.Image):
        return _png(picture)
    return picture if isinstance(picture, bytes) else read_file(picture)


def shareable(picture: Picture) -> bytes | Path | Image.Image:
    """Return the image in a form that any thread can read: a PIL image becomes upright RGB."""
    if not isinstance(picture, Image.Image):
        return Path(picture) if isinstance(picture, str) else picture
    plain = type(picture) is Image.Image and picture.mode == "RGB" and not picture.info
    return picture if plain else open_picture(picture)


def _png(picture: Image.Image) -> bytes:
    """Encode the image as PNG; it decodes to the same pixels."""
    buffer = io.BytesIO()
    with opened(picture) as image:
        image.info = {}  # leave out comments, colour profiles and other metadata
        image.save(buffer, "PNG")
    return buffer.getvalue()


def suffix_of(encoded: bytes) -> str:
    """Return the file suffix by the first bytes of an encoded image; `.bin` when unknown."""
    if encoded[:4] == b"RIFF" and encoded[8:12] == b"WEBP":
        return ".webp"
    return next((suffix for start, suffix in SIGNATURES if encoded.startswith(start)), ".bin")


def reject_url(picture: str | Path | bytes) -> None:
    """Raise a PictureError for a URL."""
    if isinstance(picture, str) and picture.startswith(("http:", "https:")):
        raise PictureError("URLs are not fetched; download it and pass the file", picture)


def encoded_of(picture: str | Path | bytes) -> bytes:
    """Return the bytes of an image; raise a PictureError for a URL, an unreadable file or no bytes."""
    reject_url(picture)
    encoded = picture if isinstance(picture, bytes) else read_file(picture)
    if not encoded:
        raise PictureError("empty (0 bytes); replace it", _name(picture))
    return encoded


@contextmanager
def _picture_errors(picture: Picture) -> Iterator[None]:
    """Turn every error of Pillow into a PictureError that names the image."""
    try:
        yield
    except PictureError:
        raise
    except UnidentifiedImageError:
        message = "not an image in a supported format; save it as PNG, JPEG, WebP, GIF, BMP or TIFF"
        raise PictureError(message, _name(picture)) from None
    except Image.DecompressionBombError as error:
        raise PictureError(f"too many pixels ({error}); make it smaller", _name(picture)) from None
    except Exception as error:  # decoders raise OSError, SyntaxError, ValueError, struct.error, …
        reason = str(error) or type(error).__name__
        raise PictureError(f"damaged or cut short ({reason}); save it again", _name(picture)) from None


def _upright(image: Image.Image, box: Box) -> tuple[Image.Image, Box]:
    """Rotate image and box by the EXIF orientation, if it can be read."""
    try:
        orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
        if orientation == 1:
            return image, box  # exif_transpose would copy the image
        turned = ImageOps.exif_transpose(image)
    except Exception:  # use the image despite a damaged EXIF block
        return image, box
    margins = (*box[:2], image.width - box[2], image.height - box[3])
    left, top, right, bottom = (margins[side] for side in ROTATED_SIDES.get(orientation, (0, 1, 2, 3)))
    return turned, (left, top, turned.width - right, turned.height - bottom)


def _to_rgb(image: Image.Image) -> Image.Image:
    """Convert to RGB on white; large images strip by strip, to save memory."""
    deep = image.mode.startswith("I") or image.mode == "F"
    transparent = image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info
    convert: Callable[[Image.Image], Image.Image] = _from_transparent if transparent else _from_opaque
    if deep:
        convert = partial(_from_deep, white=_white_level(image))
    boxes = _strips(image.size)
    if len(boxes) == 1:
        return convert(image)
    if image.mode == "RGB" and not transparent:
        return image
    flat = Image.new("RGB", image.size)
    for box in boxes:
        flat.paste(convert(image.crop(box)), box)
    return flat


def _strips(size: tuple[int, int]) -> list[tuple[int, int, int, int]]:
    """Divide the image into boxes of whole rows, of at most STRIP_PIXELS or one row each."""
    width, height = size
    rows = max(1, STRIP_PIXELS // max(1, width))
    return [(0, top, width, min(top + rows, height)) for top in range(0, height, rows)]


def _from_opaque(image: Image.Image) -> Image.Image:
    return image.convert("RGB")


def _from_transparent(image: Image.Image) -> Image.Image:
    image = image.convert("RGBA")
    canvas = Image.new("RGBA", image.size, (*WHITE, 255))
    return Image.alpha_composite(canvas, image).convert("RGB")


def _from_deep(image: Image.Image, white: float) -> Image.Image:
    """Scale 16 or 32 bits per pixel from 0 … white to 0 … 255; Pillow would clip them at 255."""
    return Image.fromarray((_values(image) / white * 255).clip(0, 255).astype(np.uint8)).convert("RGB")


def _white_level(image: Image.Image) -> float:
    """Return the highest value that a pixel of this depth can have."""
    highest = max(float(_values(image.crop(box)).max(initial=0.0)) for box in _strips(image.size))
    white = 65535.0 if image.mode.startswith("I;16") else 255.0
    while highest > white:  # 255 → 65535 → 2³² − 1, the depths used in files
        white = (white + 1) ** 2 - 1
    return white


def _values(image: Image.Image) -> np.ndarray:
    values: np.ndarray = np.nan_to_num(np.asarray(image, np.float64))
    return values


def _name(picture: Picture) -> str:
    if isinstance(picture, bytes):
        return f"image of {len(picture):,} bytes"
    if isinstance(picture, Image.Image):
        return f"{picture.mode} image {picture.width} × {picture.height}"
    return str(picture)
