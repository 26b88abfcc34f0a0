"""Pictures: open, turn upright, resize, pad; broken ones are reported, never fatal."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from mufin.data.decoding import BUDGET, IMAGE_MEMORY, PIXELS, memory_of, open_encoded, read_file
from mufin.errors import PictureError

if TYPE_CHECKING:
    from mufin.data.item import Picture

STRIP = 1 << 20  # pixels converted at a time; the copies that a conversion makes are no larger
WHITE = (255, 255, 255)
Box = tuple[float, float, float, float]  # left, top, right, bottom, in pixels
# For each orientation of EXIF, which side of the image in the file comes to lie left, above, right, below.
TURNS = {
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
    """The first frame upright, RGB, on white; `size` lets a JPEG be decoded no bigger than needed.

    Waits until the images that other threads decode leave enough memory, and holds it until the end.
    """
    with _opened(picture, size) as (image, _):
        yield image


@contextmanager
def _opened(picture: Picture, size: int | None) -> Iterator[tuple[Image.Image, Box]]:
    """The image, and the box that it fills: a JPEG decoded small ends within its last pixels."""
    with _explained(picture):
        image = picture if isinstance(picture, Image.Image) else open_encoded(encoded_of(picture))
        box, need = _prepare(image, picture, size)
    with BUDGET.spend(need):
        with _explained(picture):
            image.load()
            image, box = _upright(image, box)  # under the same name: what is no longer needed is freed
            image = _on_white(image)
        yield (image.copy() if image is picture else image), box


def open_picture(picture: Picture, size: int | None = None) -> Image.Image:
    """The image as `opened` gives it."""
    with opened(picture, size) as image:
        return image


def _prepare(image: Image.Image, picture: Picture, size: int | None) -> tuple[Box, int]:
    """The box that the image will fill, and the bytes that decoding takes.

    What takes too much time or memory is refused by its header.
    """
    full = image.size
    box: Box = (0, 0, *full)
    found = f"{image.width} × {image.height} pixels"
    if image.width * image.height > PIXELS:
        raise PictureError(f"{found}, more than {PIXELS:,}; make it smaller", _name(picture))
    if size is not None and image is not picture and image.format == "JPEG":
        drafted = image.draft("RGB", (size, size))
        box = box if drafted is None else drafted[1]
    need = memory_of(image, full)
    if need > IMAGE_MEMORY:
        takes = f"{found} ({image.format or 'image'}, {image.mode}) take {need >> 20:,} MiB to decode"
        raise PictureError(f"{takes}, more than {IMAGE_MEMORY >> 20:,}; make it smaller", _name(picture))
    return box, need


def load_pixels(picture: Picture, size: int) -> np.ndarray:
    """The picture scaled so that its longer side is `size`, padded white: (size, size, 3) uint8."""
    image = scaled(picture, size)
    width, height = image.size
    canvas = Image.new("RGB", (size, size), WHITE)
    canvas.paste(image, ((size - width) // 2, (size - height) // 2))
    return np.array(canvas)


def scaled(picture: Picture, size: int) -> Image.Image:
    """The picture with a longer side of `size`; doing it again changes nothing."""
    with _opened(picture, size) as (image, box):
        sides = box[2] - box[0], box[3] - box[1]
        width, height = (max(1, round(side * (size / max(sides)))) for side in sides)
        if (width, height) == image.size:
            return image
        return image.resize((width, height), Image.Resampling.BICUBIC, box, reducing_gap=3.0)


def read_bytes(picture: Picture) -> bytes:
    """The encoded image, from memory or from its file; a decoded one becomes PNG."""
    if isinstance(picture, Image.Image):
        return _png(picture)
    return picture if isinstance(picture, bytes) else read_file(picture)


def in_memory(picture: Picture) -> bytes | Path | Image.Image:
    """The image for any thread to read: one that is decoded, or that Pillow has opened, upright and RGB."""
    if not isinstance(picture, Image.Image):
        return Path(picture) if isinstance(picture, str) else picture
    plain = type(picture) is Image.Image and picture.mode == "RGB" and not picture.info
    return picture if plain else open_picture(picture)


def _png(picture: Image.Image) -> bytes:
    """The image as `opened` gives it: as PNG it loads as the same pixels again."""
    buffer = io.BytesIO()
    with opened(picture) as image:
        image.info = {}  # comments, colour profiles and the like are not needed again
        image.save(buffer, "PNG")
    return buffer.getvalue()


def suffix_of(encoded: bytes) -> str:
    """The file suffix for encoded picture bytes, from their first bytes; `.bin` when unknown."""
    if encoded[:4] == b"RIFF" and encoded[8:12] == b"WEBP":
        return ".webp"
    return next((suffix for start, suffix in SIGNATURES if encoded.startswith(start)), ".bin")


def encoded_of(picture: str | Path | bytes) -> bytes:
    """The bytes of a picture; a PictureError when there are none to be had."""
    if isinstance(picture, str) and picture.startswith(("http:", "https:")):
        raise PictureError("an address is not fetched; download it and give the file", picture)
    encoded = picture if isinstance(picture, bytes) else read_file(picture)
    if not encoded:
        raise PictureError("empty (0 bytes); put the picture there again", _name(picture))
    return encoded


@contextmanager
def _explained(picture: Picture) -> Iterator[None]:
    """Every way in which Pillow fails, as a PictureError that names the picture."""
    try:
        yield
    except PictureError:
        raise
    except UnidentifiedImageError:
        message = "not a picture in a known format; save it as PNG, JPEG, WebP, GIF, BMP or TIFF"
        raise PictureError(message, _name(picture)) from None
    except Image.DecompressionBombError as error:
        raise PictureError(f"too many pixels ({error}); make it smaller", _name(picture)) from None
    except Exception as error:  # decoders raise OSError, SyntaxError, ValueError, struct.error, …
        reason = str(error) or type(error).__name__
        raise PictureError(f"damaged or cut short ({reason}); save it again", _name(picture)) from None


def _upright(image: Image.Image, box: Box) -> tuple[Image.Image, Box]:
    """Image and box, turned as the EXIF says; EXIF that cannot be read says nothing."""
    try:
        orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
        if orientation == 1:
            return image, box  # exif_transpose would copy it
        turned = ImageOps.exif_transpose(image)
    except Exception:  # a damaged EXIF block is no reason to lose the picture
        return image, box
    margins = (*box[:2], image.width - box[2], image.height - box[3])
    left, top, right, bottom = (margins[side] for side in TURNS.get(orientation, (0, 1, 2, 3)))
    return turned, (left, top, turned.width - right, turned.height - bottom)


def _on_white(image: Image.Image) -> Image.Image:
    """RGB, strip by strip where the image is large: each pixel depends on no other."""
    wide = image.mode.startswith("I") or image.mode == "F"
    transparent = image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info
    convert: Callable[[Image.Image], Image.Image] = _from_transparent if transparent else _from_opaque
    if wide:
        convert = partial(_from_wide, top=_top(image))
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
    """Boxes of whole rows, at most STRIP pixels each where a row is no longer than that."""
    width, height = size
    rows = max(1, STRIP // max(1, width))
    return [(0, top, width, min(top + rows, height)) for top in range(0, height, rows)]


def _from_opaque(image: Image.Image) -> Image.Image:
    return image.convert("RGB")


def _from_transparent(image: Image.Image) -> Image.Image:
    image = image.convert("RGBA")
    canvas = Image.new("RGBA", image.size, (*WHITE, 255))
    return Image.alpha_composite(canvas, image).convert("RGB")


def _from_wide(image: Image.Image, top: float) -> Image.Image:
    """16 or 32 bits a pixel, which Pillow would clip at 255: scale 0 … top to 0 … 255."""
    return Image.fromarray((_values(image) / top * 255).clip(0, 255).astype(np.uint8)).convert("RGB")


def _top(image: Image.Image) -> float:
    """The highest value that a pixel of this depth can have."""
    highest = max(float(_values(image.crop(box)).max(initial=0.0)) for box in _strips(image.size))
    top = 65535.0 if image.mode.startswith("I;16") else 255.0
    while highest > top:  # 255 → 65535 → 2³² − 1, the depths that files have
        top = (top + 1) ** 2 - 1
    return top


def _values(image: Image.Image) -> np.ndarray:
    values: np.ndarray = np.nan_to_num(np.asarray(image, np.float64))
    return values


def _name(picture: Picture) -> str:
    if isinstance(picture, bytes):
        return f"picture of {len(picture):,} bytes"
    if isinstance(picture, Image.Image):
        return f"{picture.mode} image {picture.width} × {picture.height}"
    return str(picture)
