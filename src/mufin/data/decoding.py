"""Encoded images: the files and formats that are opened, and the memory that decoding may use."""

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

OUTSIDE_FOLDER = r"^[/\\]|^[A-Za-z]:|(^|[/\\])\.\.([/\\]|$)"  # absolute on any OS, or with a ".."
REMEDY = "copy the image into the folder, or import the table with `mufin import table … --images-dir DIR`"


def paths_outside(images: pa.ChunkedArray) -> list[tuple[int, str]]:
    """Return (row, path) of the first path per row that is absolute or has a `..`; open no file."""
    if not pa.types.is_string(images.type.value_type):
        return []
    offsets, flat = flatten(images)
    at = np.flatnonzero(pc.match_substring_regex(flat, OUTSIDE_FOLDER).to_numpy())
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
MAX_FILE_BYTES = 64 << 20  # per image file
MAX_PIXELS = 100_000_000  # by the header; limits decoding time as MAX_IMAGE_MEMORY limits memory
MAX_IMAGE_MEMORY = 768 << 20  # bytes for decoding one image
MAX_TOTAL_MEMORY = 1 << 30  # bytes for all images being decoded in this process

# Bytes per pixel in Pillow's memory; all other modes, including RGB, take 4.
BYTES_PER_PIXEL = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16L": 2, "I;16B": 2, "I;16N": 2}
RGB_BYTES = 4
TILE_WIDTH, TILE_LENGTH = 322, 323  # TIFF tags
BUFFER_BYTES = {"WEBP": 8, "TIFF": 8}  # per pixel, at most, that these decoders need besides the image


def read_file(path: str | Path) -> bytes:
    """Return the bytes of an image file; refuse devices, pipes and files over 64 MiB before reading."""
    try:
        # Without O_NONBLOCK, opening a pipe blocks until another process opens it for writing.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        try:
            return _read(descriptor, path)
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or error
        raise PictureError(f"cannot be read: {reason}; check the path", path) from None


def _read(descriptor: int, path: str | Path) -> bytes:
    found = os.fstat(descriptor)
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(found.st_mode):
        raise PictureError("a device or a pipe, not a file; use an image file", path)
    if found.st_size <= MAX_FILE_BYTES:
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            encoded = file.read(MAX_FILE_BYTES + 1)  # it may grow, and some files report no size
        if len(encoded) <= MAX_FILE_BYTES:
            return encoded
    size = max(found.st_size, MAX_FILE_BYTES + 1)
    raise PictureError(f"{size:,} bytes, more than {MAX_FILE_BYTES:,}; make the image smaller", path)


def open_encoded(encoded: bytes, formats: tuple[str, ...] = FORMATS) -> Image.Image:
    """Read the header of an image and decode nothing; errors of Pillow pass through."""
    return Image.open(io.BytesIO(encoded), formats=formats)


def decoding_memory(image: Image.Image, full: tuple[int, int] | None = None) -> int:
    """Return an upper bound on the bytes for decoding: the image, its RGB copy, the decoder's buffers.

    `full` is the size in the file if a JPEG is decoded at a reduced size.
    """
    pixels = image.width * image.height
    buffered = max(pixels, _tile_pixels(image))
    need = pixels * (BYTES_PER_PIXEL.get(image.mode, 4) + RGB_BYTES)
    need += buffered * BUFFER_BYTES.get(image.format or "", 0)
    if "progressive" in image.info:  # libjpeg keeps all coefficients, 16 bits each, at any size
        width, height = full or image.size
        need += width * height * 2 * len(image.getbands())
    return need


def _tile_pixels(image: Image.Image) -> int:
    """Return the pixels per TIFF tile; a tile is decoded whole and may be far larger than the image."""
    tags = getattr(image, "tag_v2", {})
    return int(tags.get(TILE_WIDTH, 0)) * int(tags.get(TILE_LENGTH, 0))


class Budget:
    """A number of bytes shared by threads; `spend` waits, in order of arrival, until enough are free."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.reset()

    def reset(self) -> None:
        """Start over with all bytes free and no thread waiting."""
        self.left = self.size
        self._turn, self._freed = Lock(), Condition()

    @contextmanager
    def spend(self, need: int) -> Iterator[None]:
        """Hold `need` bytes, at most all of them, until the context ends."""
        need = min(need, self.size)
        with self._turn, self._freed:  # queue on _turn, so that small images do not starve a large one
            self._freed.wait_for(lambda: need <= self.left)
            self.left -= need
        try:
            yield
        finally:
            with self._freed:
                self.left += need
                self._freed.notify()


BUDGET = Budget(MAX_TOTAL_MEMORY)
if hasattr(os, "register_at_fork"):  # the child does not have the threads that hold the parent's bytes
    os.register_at_fork(after_in_child=BUDGET.reset)
