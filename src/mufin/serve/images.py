"""Images that the service sends: decoded and encoded again, never the bytes of a file."""

from __future__ import annotations

import io

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
