"""Images: check and decode those of a request, encode those of an answer."""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
from collections.abc import Iterable, Sequence

from fastapi import Request
from fastapi.responses import Response
from PIL import Image

from mufin.data.decoding import open_encoded
from mufin.data.images import encoded_of, opened, scaled, suffix_of
from mufin.data.pictures import Pictures
from mufin.errors import PictureError
from mufin.serve.problem import Problem
from mufin.serve.requests import service_of
from mufin.serve.schemas import LIMITS

READ = ("PNG", "JPEG", "WEBP", "GIF", "BMP")  # the decoders that requests may use
SIDE = 1024  # pixels of the longer side of an image that is sent: enough for a page, and a bound on the work
WRITTEN = {".jpg": "JPEG", ".webp": "WEBP"}  # all others become PNG


def check_count(images: Iterable[Sequence[str]]) -> None:
    """Refuse more images than the model processes in about a second."""
    count = sum(map(len, images))
    if count > LIMITS.images_in_all:
        raise Problem(413, f"{count} images; at most {LIMITS.images_in_all} are allowed in one call")


def check_pixels(images: Iterable[Sequence[str]]) -> None:
    """Refuse more pixels than can be decoded in a few seconds; only the headers of the files are read."""
    total = sum(_pixels(text) for some in images for text in some)
    if total > LIMITS.pixels_in_all:
        most = f"at most {LIMITS.pixels_in_all:,} are decoded in one call"
        raise Problem(413, f"the images have {total:,} pixels together; {most}, make them smaller")


def _pixels(text: str) -> int:
    """Return width × height by the header, or 0 if it cannot be read: decoding reports why."""
    try:
        with open_encoded(base64.b64decode(text), READ) as image:
            return image.width * image.height
    except Exception:  # decoders raise all kinds of errors
        return 0


def from_base64(text: str, name: str) -> bytes:
    """Return the bytes of an image in a JSON body; `name` is its place in the body."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise Problem(422, f"{name} is not base64") from None


def decoded(encoded: bytes, name: str, size: int) -> Image.Image:
    """Check an image and scale it to what the model reads, upright on white."""
    try:
        return scaled(_checked(encoded, name), size)
    except PictureError as error:
        raise Problem(422, f"{name}: {error}") from None


def _checked(encoded: bytes, name: str) -> bytes:
    """Return an image of a known format and an allowed size; only its header is read."""
    if len(encoded) > LIMITS.image_bytes:
        raise Problem(413, f"{name} has {len(encoded):,} bytes; at most {LIMITS.image_bytes:,} are allowed")
    try:
        with open_encoded(encoded, READ) as image:
            width, height = image.size
    except Image.DecompressionBombError:
        raise Problem(413, f"{name} has far too many pixels; make it smaller") from None
    except Exception:  # decoders raise all kinds of errors
        raise Problem(422, f"{name} is not an image; send PNG, JPEG, WebP, GIF or BMP") from None
    if width * height > LIMITS.image_pixels:
        most = f"at most {LIMITS.image_pixels:,} pixels are allowed"
        raise Problem(413, f"{name} is {width} × {height}; {most}, make it smaller")
    return encoded


async def image_response(images: Pictures, row: int, n: int, request: Request) -> Response:
    """Answer with the n-th image of a row, or with 304 if the client has it."""
    content, kind = await service_of(request).in_pool(_sent, images, row, n)
    tag = f'"{hashlib.blake2b(content, digest_size=8).hexdigest()}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache"}  # an id may be given to another label at any time
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=kind, headers=headers)


def _sent(images: Pictures, row: int, n: int) -> tuple[bytes, str]:
    """Return the n-th image of a row, encoded anew, and its media type."""
    try:
        found = images.row(row)
        if not 0 <= n < len(found):
            raise Problem(404, f"there is no image {n}; there are {len(found)}")
        return _encoded(encoded_of(found[n]))
    except PictureError:  # its message names files of this machine
        raise Problem(404, f"image {n} cannot be read") from None


def _encoded(stored: bytes) -> tuple[bytes, str]:
    format = WRITTEN.get(suffix_of(stored), "PNG")
    with opened(stored, SIDE) as image:
        image.thumbnail((SIDE, SIDE))
        image.info = {}  # or comments and colour profiles would be copied
        buffer = io.BytesIO()
        image.save(buffer, format, **({} if format == "PNG" else {"quality": 90}))
    return buffer.getvalue(), f"image/{format.lower()}"
