"""Write a catalogue: every table, and for JSONL every image as a file."""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from mufin.data.formats import jsonl, parquet
from mufin.data.formats.files import Part
from mufin.data.formats.schema import PICTURES
from mufin.data.images import open_picture, read_bytes, suffix_of
from mufin.data.items import Items
from mufin.data.pictures import Encoded, NoPictures
from mufin.errors import CatalogueError, PictureError, UsageError
from mufin.files.folder import temporary_path

Format = Literal["parquet", "jsonl"]
TEST_SIZE = 64  # pixels; JPEGs decode faster at a fraction of their size
ROWS_WITH_IMAGES = 2048  # per row group, and in memory at a time


def write_folder(
    folder: Path, format: Format, items: Items, labels: Items | None, parts: list[Part]
) -> list[str]:
    """Write a catalogue into a new or empty folder; return why each skipped image file was skipped.

    Image files that cannot be decoded are skipped.
    """
    if format not in ("parquet", "jsonl"):
        raise UsageError(f"format {format!r} is unknown; use parquet or jsonl")
    skipped: list[str] = []
    with new_folder(folder) as temporary:
        for name, rows in (("items", items), ("labels", labels)):
            if rows is not None:
                _write_items(rows, temporary / f"{name}.{format}", format, skipped)
        for part in parts:
            _write_table(part.table(), temporary / f"{part.name}.{format}", format)
    return skipped


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder; rename it to `folder` if nothing goes wrong."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CatalogueError("folder exists and is not empty; choose another, or delete it", folder)
    temporary = temporary_path(folder)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        if folder.exists():
            folder.rmdir()
        temporary.replace(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write_table(table: pa.Table, path: Path, format: Format) -> None:
    if format == "parquet":
        parquet.write([table], path)
    else:
        jsonl.write(jsonl.rows(table), path)


def _write_items(items: Items, path: Path, format: Format, skipped: list[str]) -> None:
    if isinstance(items.pictures, NoPictures):
        _write_table(items.table, path, format)
    elif format == "parquet":
        parquet.write(_with_bytes(items, skipped), path, ROWS_WITH_IMAGES)
    else:
        jsonl.write(_with_files(items, path.parent, skipped), path)


def _with_bytes(items: Items, skipped: list[str]) -> Iterator[pa.Table]:
    """Yield the table in slices, with the images as bytes."""
    for table, images in _slices(items, skipped):
        yield table.append_column("images", pa.array(images, PICTURES))


def _with_files(items: Items, folder: Path, skipped: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the rows, with the images as paths; write the images as files."""
    (folder / "images").mkdir(exist_ok=True)
    for table, images in _slices(items, skipped):
        for row, encoded in zip(jsonl.rows(table), images, strict=True):
            yield row | {"images": [save_picture(image, folder) for image in encoded]}


def _slices(items: Items, skipped: list[str]) -> Iterator[tuple[pa.Table, list[list[bytes]]]]:
    """Yield the table a few rows at a time, with the encoded images of each row."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for start in range(0, max(1, len(items)), ROWS_WITH_IMAGES):
            table = items.table.slice(start, ROWS_WITH_IMAGES)
            rows = [items.pictures.row(row) for row in range(start, start + table.num_rows)]
            copies = iter(pool.map(_read_image, [image for row in rows for image in row]))
            found = [[next(copies) for _ in row] for row in rows]
            skipped += [str(one) for row in found for one in row if isinstance(one, PictureError)]
            yield table, [[one for one in row if isinstance(one, bytes)] for row in found]


def _read_image(picture: Encoded) -> bytes | PictureError:
    """Return the encoded image; a file must be decodable, so that no other file is published."""
    encoded = read_bytes(picture)
    if not isinstance(picture, bytes):
        try:
            open_picture(encoded, TEST_SIZE)
        except PictureError as error:
            return PictureError(str(error).partition(": ")[2], picture)
    return encoded


def save_picture(picture: bytes, folder: Path) -> str:
    """Write an image under the hash of its content; return its path relative to the folder."""
    name = f"images/{hashlib.sha256(picture).hexdigest()[:32]}{suffix_of(picture)}"
    path = folder / name
    if not path.exists():
        temporary = path.with_name(f".{path.name}.{threading.get_ident()}")
        temporary.write_bytes(picture)
        temporary.replace(path)
    return name
