"""Writing a catalogue: every table, and in JSONL every picture as a file of its own."""

from __future__ import annotations

import hashlib
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from mufin.data.decoding import read_file
from mufin.data.formats import jsonl, parquet
from mufin.data.formats.files import Part
from mufin.data.formats.schema import PICTURES
from mufin.data.images import suffix_of
from mufin.data.items import Items
from mufin.data.pictures import Encoded, NoPictures
from mufin.errors import CatalogueError, UsageError

Format = Literal["parquet", "jsonl"]
ROWS_WITH_PICTURES = 2048  # a row group, and what is in memory at a time


def write_folder(folder: Path, format: Format, items: Items, labels: Items | None, parts: list[Part]) -> None:
    """Write a catalogue into a folder that does not exist yet, or is empty."""
    if format not in ("parquet", "jsonl"):
        raise UsageError(f"format {format!r} is not one of parquet, jsonl")
    with new_folder(folder) as temporary:
        for name, some in (("items", items), ("labels", labels)):
            if some is not None:
                _write_items(some, temporary, name, format)
        for part in parts:
            _write_table(part.table(), temporary / f"{part.name}.{format}", format)


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder to write into, which takes the place of `folder` when nothing went wrong."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CatalogueError("already there and not empty; choose a new folder or remove this one", folder)
    temporary = folder.with_name(folder.name + ".tmp")
    shutil.rmtree(temporary, ignore_errors=True)
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


def _write_items(items: Items, folder: Path, name: str, format: Format) -> None:
    if isinstance(items.pictures, NoPictures):
        _write_table(items.table, folder / f"{name}.{format}", format)
    elif format == "parquet":
        parquet.write(_with_bytes(items), folder / f"{name}.parquet", ROWS_WITH_PICTURES)
    else:
        jsonl.write(_with_files(items, folder), folder / f"{name}.jsonl")


def _with_bytes(items: Items) -> Iterator[pa.Table]:
    """The table in slices, the pictures as bytes in it."""
    for start in range(0, max(1, len(items)), ROWS_WITH_PICTURES):
        table = items.table.slice(start, ROWS_WITH_PICTURES)
        rows = range(start, start + table.num_rows)
        images = [[read_bytes(picture) for picture in items.pictures.row(row)] for row in rows]
        yield table.append_column("images", pa.array(images, PICTURES))


def _with_files(items: Items, folder: Path) -> Iterator[dict[str, Any]]:
    """The rows, the pictures as paths in them and as files in images/ of the folder."""
    (folder / "images").mkdir(exist_ok=True)
    for number, row in enumerate(jsonl.rows(items.table)):
        images = [save_picture(read_bytes(picture), folder) for picture in items.pictures.row(number)]
        yield row | {"images": images}


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
