"""Encoded images: which files and formats are opened, and how much memory decoding may take."""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Condition, Lock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from PIL import Image

from mufin.data.formats.schema import flatten
from mufin.errors import PictureError

LEAVING = r"^[/\\]|^[A-Za-z]:|(^|[/\\])\.\.([/\\]|$)"  # absolute on any operating system, or with a ".."
REMEDY = "copy the image into the folder, or import the table with `mufin import table … --images-dir DIR`"


def leaving(images: pa.ChunkedArray) -> list[tuple[int, str]]:
    """Return (row, path) of the first path per row that is absolute or has a `..`; opens no file."""
    if not pa.types.is_string(images.type.value_type):
        return []
    offsets, flat = flatten(images)
    at = np.flatnonzero(pc.match_substring_regex(flat, LEAVING).to_numpy())
    rows, first = np.unique(np.searchsorted(offsets, at, side="right") - 1, return_index=True)
    return [(int(row), flat[int(place)].as_py()) for row, place in zip(rows, at[first], strict=True)]


def inside(path: Path, folder: str) -> Path:
    """Return the path if it stays inside the folder (a real path) after following symbolic links."""
    try:
        real = os.path.realpath(path)
    except ValueError:  # a NUL in the name; opening the file reports it
        return path
    if not os.path.normcase(real).startswith(os.path.normcase(folder).rstrip(os.sep) + os.sep):
        raise PictureError(f"leads out of {folder}; {REMEDY}", path)
    return path


FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")  # Pillow knows 40 more; one starts Ghostscript
FILE_BYTES = 64 << 20  # of an image file
PIXELS = 100_000_000  # by the header; bounds the time, as IMAGE_MEMORY bounds the memory
IMAGE_MEMORY = 768 << 20  # bytes that decoding one image may take
ALL_MEMORY = 1 << 30  # bytes that the images being decoded in this process may take together

# Bytes per pixel as Pillow holds them; modes that are not listed take 4, RGB included.
RASTER = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16L": 2, "I;16B": 2, "I;16N": 2}
RGB = 4
TILE_WIDTH, TILE_LENGTH = 322, 323  # tags of TIFF
BUFFERS = {"WEBP": 8, "TIFF": 8}  # what these decoders hold beside the raster, at most


def read_file(path: str | Path) -> bytes:
    """The bytes of an image file; devices, pipes and files over 64 MiB are refused before reading."""
    try:
        # Without O_NONBLOCK, opening a pipe waits for someone to write into it.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        try:
            return _read(descriptor, path)
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or error
        raise PictureError(f"cannot be read: {reason}; put the image there", path) from None


def _read(descriptor: int, path: str | Path) -> bytes:
    found = os.fstat(descriptor)
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(found.st_mode):
        raise PictureError("a device or a pipe, not a file; put the image there", path)
    if found.st_size <= FILE_BYTES:
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            encoded = file.read(FILE_BYTES + 1)  # it may grow, and some files do not tell their size
        if len(encoded) <= FILE_BYTES:
            return encoded
    size = max(found.st_size, FILE_BYTES + 1)
    raise PictureError(f"{size:,} bytes, more than {FILE_BYTES:,}; make the image smaller", path)


def open_encoded(encoded: bytes, formats: tuple[str, ...] = FORMATS) -> Image.Image:
    """The image with its header read and nothing decoded; raises whatever Pillow raises."""
    return Image.open(io.BytesIO(encoded), formats=formats)


def memory_of(image: Image.Image, full: tuple[int, int] | None = None) -> int:
    """Bytes that decoding takes at most: the raster, its RGB copy, the decoder's buffers.

    `full` is the size in the file where a JPEG is decoded at a fraction of it.
    """
    pixels = image.width * image.height
    buffered = max(pixels, _tile(image))
    need = pixels * (RASTER.get(image.mode, 4) + RGB) + buffered * BUFFERS.get(image.format or "", 0)
    if "progressive" in image.info:  # libjpeg keeps all coefficients, 16 bits each, at any fraction
        width, height = full or image.size
        need += width * height * 2 * len(image.getbands())
    return need


def _tile(image: Image.Image) -> int:
    """The pixels of a tile of a TIFF, which may be far larger than the image; it is decoded whole."""
    tags = getattr(image, "tag_v2", {})
    return int(tags.get(TILE_WIDTH, 0)) * int(tags.get(TILE_LENGTH, 0))


class Budget:
    """Bytes that threads share: whoever asks for more than is left waits, first come, first served."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.reset()

    def reset(self) -> None:
        """Take everything back: nobody holds any of it, or waits for it."""
        self.left = self.size
        self._turn, self._freed = Lock(), Condition()

    @contextmanager
    def spend(self, need: int) -> Iterator[None]:
        """Hold `need` bytes, or all of them where it is more."""
        need = min(need, self.size)
        with self._turn, self._freed:  # one waits at the front, so a large image is not overtaken for ever
            self._freed.wait_for(lambda: need <= self.left)
            self.left -= need
        try:
            yield
        finally:
            with self._freed:
                self.left += need
                self._freed.notify()


BUDGET = Budget(ALL_MEMORY)
if hasattr(os, "register_at_fork"):  # what threads of the parent hold, no thread of the child gives back
    os.register_at_fork(after_in_child=BUDGET.reset)
