"""Writing a catalogue: every table, and in JSONL every picture as a file of its own."""

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

from mufin.data.decoding import read_file
from mufin.data.formats import jsonl, parquet
from mufin.data.formats.files import Part
from mufin.data.formats.schema import PICTURES
from mufin.data.images import open_picture, suffix_of
from mufin.data.items import Items
from mufin.data.pictures import Encoded, NoPictures
from mufin.errors import CatalogueError, PictureError, UsageError
from mufin.temporary import beside

Format = Literal["parquet", "jsonl"]
SMALL = 64  # pixels: decoding a JPEG to see whether it can be decoded is quicker at a fraction
ROWS_WITH_PICTURES = 2048  # a row group, and what is in memory at a time


def write_folder(
    folder: Path, format: Format, items: Items, labels: Items | None, parts: list[Part]
) -> list[str]:
    """Write a catalogue into a folder that does not exist yet, or is empty.

    Files that cannot be decoded as an image are not copied; returns what is wrong with each of them.
    """
    if format not in ("parquet", "jsonl"):
        raise UsageError(f"format {format!r} is not one of parquet, jsonl")
    left_out: list[str] = []
    with new_folder(folder) as temporary:
        for name, some in (("items", items), ("labels", labels)):
            if some is not None:
                _write_items(some, temporary / f"{name}.{format}", format, left_out)
        for part in parts:
            _write_table(part.table(), temporary / f"{part.name}.{format}", format)
    return left_out


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder to write into; it becomes `folder` if nothing goes wrong."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CatalogueError("already there and not empty; choose a new folder or remove this one", folder)
    temporary = beside(folder)
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


def _write_items(items: Items, path: Path, format: Format, left_out: list[str]) -> None:
    if isinstance(items.pictures, NoPictures):
        _write_table(items.table, path, format)
    elif format == "parquet":
        parquet.write(_with_bytes(items, left_out), path, ROWS_WITH_PICTURES)
    else:
        jsonl.write(_with_files(items, path.parent, left_out), path)


def _with_bytes(items: Items, left_out: list[str]) -> Iterator[pa.Table]:
    """The table in slices, the pictures as bytes in it."""
    for table, images in _slices(items, left_out):
        yield table.append_column("images", pa.array(images, PICTURES))


def _with_files(items: Items, folder: Path, left_out: list[str]) -> Iterator[dict[str, Any]]:
    """The rows, the pictures as paths in them and as files in images/ of the folder."""
    (folder / "images").mkdir(exist_ok=True)
    for table, images in _slices(items, left_out):
        for row, pictures in zip(jsonl.rows(table), images, strict=True):
            yield row | {"images": [save_picture(picture, folder) for picture in pictures]}


def _slices(items: Items, left_out: list[str]) -> Iterator[tuple[pa.Table, list[list[bytes]]]]:
    """The table a few rows at a time, with the encoded pictures of each row."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for start in range(0, max(1, len(items)), ROWS_WITH_PICTURES):
            table = items.table.slice(start, ROWS_WITH_PICTURES)
            rows = [items.pictures.row(row) for row in range(start, start + table.num_rows)]
            copies = iter(pool.map(_copied, [picture for row in rows for picture in row]))
            found = [[next(copies) for _ in row] for row in rows]
            left_out += [str(one) for row in found for one in row if isinstance(one, PictureError)]
            yield table, [[one for one in row if isinstance(one, bytes)] for row in found]


def _copied(picture: Encoded) -> bytes | PictureError:
    """The encoded picture; a file is copied only if it can be decoded, lest other files get published."""
    encoded = read_bytes(picture)
    if not isinstance(picture, bytes):
        try:
            open_picture(encoded, SMALL)
        except PictureError as error:
            return PictureError(str(error).partition(": ")[2], picture)
    return encoded


def save_picture(picture: bytes, folder: Path) -> str:
    """Write a picture under the name of its content; return its path relative to the folder."""
    name = f"images/{hashlib.sha256(picture).hexdigest()[:32]}{suffix_of(picture)}"
    path = folder / name
    if not path.exists():
        temporary = path.with_name(f".{path.name}.{threading.get_ident()}")
        temporary.write_bytes(picture)
        temporary.replace(path)
    return name


def read_bytes(picture: Encoded) -> bytes:
    """The encoded picture, from memory or from its file."""
    return picture if isinstance(picture, bytes) else read_file(picture)
