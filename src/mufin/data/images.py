"""Pictures: open, turn upright, resize, pad; broken ones are reported, never fatal."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from mufin.errors import PictureError

if TYPE_CHECKING:
    from mufin.data.item import Picture

PIXELS = 100_000_000  # more is refused by the header, before anything is decoded
WHITE = (255, 255, 255)
SIGNATURES = (
    (b"\x89PNG", ".png"),
    (b"\xff\xd8\xff", ".jpg"),
    (b"GIF8", ".gif"),
    (b"BM", ".bmp"),
    (b"II*\x00", ".tif"),
    (b"MM\x00*", ".tif"),
)


def open_picture(picture: Picture, size: int | None = None) -> Image.Image:
    """The first frame upright, RGB, on white; `size` lets a JPEG be decoded no bigger than needed."""
    with _explained(picture):
        image = picture if isinstance(picture, Image.Image) else Image.open(io.BytesIO(_encoded(picture)))
        if image.width * image.height > PIXELS:
            found = f"{image.width} × {image.height} pixels"
            raise PictureError(f"{found}, more than {PIXELS:,}; make it smaller", _name(picture))
        if size is not None and image is not picture and image.format == "JPEG":
            image.draft("RGB", (size, size))
        image.load()
        return _on_white(_upright(image))


def load_pixels(picture: Picture, size: int) -> np.ndarray:
    """The picture scaled so that its longer side is `size`, padded white: (size, size, 3) uint8."""
    image = scaled(picture, size)
    width, height = image.size
    canvas = Image.new("RGB", (size, size), WHITE)
    canvas.paste(image, ((size - width) // 2, (size - height) // 2))
    return np.array(canvas)


def scaled(picture: Picture, size: int) -> Image.Image:
    """The picture with a longer side of `size`; doing it again changes nothing."""
    image = open_picture(picture, size)
    scale = size / max(image.size)
    width, height = (max(1, round(side * scale)) for side in image.size)
    if (width, height) == image.size:
        return image
    return image.resize((width, height), Image.Resampling.BICUBIC, reducing_gap=3.0)


def load_batch(
    pictures: Sequence[Picture], size: int, workers: int = 2
) -> tuple[np.ndarray, np.ndarray, list[PictureError]]:
    """Pixels (n, size, size, 3) uint8, which were readable (n,) bool, and what was wrong with the others.

    A broken picture is white.
    """
    pictures = list(pictures)  # a lazy sequence is read by one thread
    pixels = np.full((len(pictures), size, size, 3), 255, np.uint8)
    readable = np.ones(len(pictures), bool)

    def load(row: int) -> PictureError | None:
        try:
            pixels[row] = load_pixels(pictures[row], size)
        except PictureError as error:
            readable[row] = False
            return error
        return None

    with ThreadPoolExecutor(max(1, workers)) as pool:
        errors = [error for error in pool.map(load, range(len(pictures))) if error is not None]
    return pixels, readable, errors


def suffix_of(encoded: bytes) -> str:
    """The file suffix for encoded picture bytes, from their first bytes; `.bin` when unknown."""
    if encoded[:4] == b"RIFF" and encoded[8:12] == b"WEBP":
        return ".webp"
    return next((suffix for start, suffix in SIGNATURES if encoded.startswith(start)), ".bin")


def _encoded(picture: str | Path | bytes) -> bytes:
    """The bytes of a picture; a PictureError when there are none to be had."""
    if isinstance(picture, bytes):
        encoded = picture
    elif str(picture).startswith(("http:", "https:")):
        raise PictureError("an address is not fetched; download it and give the file", _name(picture))
    else:
        try:
            encoded = Path(picture).read_bytes()
        except (OSError, ValueError) as error:  # ValueError: a NUL in the name
            reason = getattr(error, "strerror", None) or error
            raise PictureError(f"cannot be read: {reason}; put the picture there", _name(picture)) from None
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
        message = "not a picture that Pillow can read; save it as PNG, JPEG or WebP"
        raise PictureError(message, _name(picture)) from None
    except Image.DecompressionBombError as error:
        raise PictureError(f"too many pixels ({error}); make it smaller", _name(picture)) from None
    except Exception as error:  # decoders raise OSError, SyntaxError, ValueError, struct.error, …
        reason = str(error) or type(error).__name__
        raise PictureError(f"damaged or cut short ({reason}); save it again", _name(picture)) from None


def _upright(image: Image.Image) -> Image.Image:
    """Turned as its EXIF says; EXIF that cannot be read says nothing."""
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # a damaged EXIF block is no reason to lose the picture
        return image


def _on_white(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I") or image.mode == "F":
        return _from_wide(image)
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        image = image.convert("RGBA")
        canvas = Image.new("RGBA", image.size, (*WHITE, 255))
        return Image.alpha_composite(canvas, image).convert("RGB")
    return image.convert("RGB")


def _from_wide(image: Image.Image) -> Image.Image:
    """16 or 32 bits a pixel, which Pillow would clip at 255: scale the range of the values to 0 … 255."""
    values = np.nan_to_num(np.asarray(image, np.float64))
    highest = float(values.max(initial=0.0))
    top = 65535.0 if image.mode.startswith("I;16") else 255.0
    while highest > top:  # 255 → 65535 → 2³² − 1, the depths that files have
        top = (top + 1) ** 2 - 1
    return Image.fromarray((values / top * 255).clip(0, 255).astype(np.uint8)).convert("RGB")


def _name(picture: Picture) -> str:
    if isinstance(picture, bytes):
        return f"picture of {len(picture):,} bytes"
    if isinstance(picture, Image.Image):
        return f"{picture.mode} image {picture.width} × {picture.height}"
    return str(picture)
