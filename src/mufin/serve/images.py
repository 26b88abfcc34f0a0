"""Images that the service sends: decoded and encoded again, never the bytes of a file."""

from __future__ import annotations

import hashlib
import io

from fastapi import Request
from fastapi.responses import Response

from mufin.data.images import encoded_of, opened, suffix_of
from mufin.data.pictures import Pictures
from mufin.errors import PictureError
from mufin.serve.problem import Problem

SIDE = 1024  # pixels of the longer side at most: what a page shows, and a bound on the work
FORMATS = {".jpg": "JPEG", ".webp": "WEBP"}  # others become PNG


def shown(pictures: Pictures, row: int, n: int) -> tuple[bytes, str]:
    """The n-th image of a row and its media type; 404 where there is none that can be decoded."""
    try:
        found = pictures.row(row)
        if not 0 <= n < len(found):
            raise Problem(404, f"there is no picture {n}; there are {len(found)}")
        return _encoded(encoded_of(found[n]))
    except PictureError:  # its message names files of this machine
        raise Problem(404, f"picture {n} cannot be read") from None


def _encoded(stored: bytes) -> tuple[bytes, str]:
    format = FORMATS.get(suffix_of(stored), "PNG")
    with opened(stored, SIDE) as image:
        image.thumbnail((SIDE, SIDE))
        image.info = {}  # comments, colour profiles and the like would be written again as they are
        buffer = io.BytesIO()
        image.save(buffer, format, **({} if format == "PNG" else {"quality": 90}))
    return buffer.getvalue(), f"image/{format.lower()}"


def cacheable(content: bytes, kind: str, request: Request) -> Response:
    """Return the bytes with an ETag, or 304 if the client has them."""
    tag = f'"{hashlib.blake2b(content, digest_size=8).hexdigest()}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache"}  # an id may be given to another label at any time
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=kind, headers=headers)
