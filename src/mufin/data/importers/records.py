"""Rows of a table as records: the role of each column, and how a cell is read.

A cell holds one value, a list, or several values with a separator between them. An image is a path inside
the folder of the table or inside `images_dir`, a URL, or bytes (alone, or as `{bytes, path}` as Hugging Face
stores images). A label is its own text, or the id of a row.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mufin.data.decoding import inside
from mufin.data.formats.files import is_file
from mufin.data.importers.rows import OpenTable, Row
from mufin.data.loading import loaded
from mufin.errors import PictureError, UsageError

TEST_SIZE = 64  # pixels; JPEGs decode faster at a fraction of their size


@dataclass(frozen=True)
class Columns:
    """The role of each column; without `id`, rows are numbered."""

    text: Sequence[str] = ()
    image: Sequence[str] = ()
    labels: Sequence[str] = ()
    id: str | None = None
    category: str | None = None
    split: str | None = None  # its values name the splits; without it, rows are drawn for `test`
    separator: str = "|"
    labels_are_items: bool = False
    test: float = 0.2
    seed: int = 0
    images_dir: Path | None = None  # the folder of image files; by default that of the table
    encoding: str | None = None  # of CSV, TSV and JSON lines; by default UTF-8, or UTF-16 by its mark
    max_bad_rows: int = 100  # more are an error; 0 makes every bad row an error
    lenient: bool = False  # one of the text and image columns is enough

    def __post_init__(self) -> None:
        for name in ("text", "image", "labels"):
            value = getattr(self, name)
            object.__setattr__(self, name, (value,) if isinstance(value, str) else tuple(value))
        if not self.text and not self.image:
            raise UsageError("no text or image column; name at least one")
        if not 0 <= self.test < 1:
            raise UsageError(f"test share {self.test}: expected a number in [0, 1)")
        if self.max_bad_rows < 0:
            raise UsageError(f"at most {self.max_bad_rows} bad rows: expected 0 or more")

    @property
    def wanted(self) -> list[str]:
        """The names of all columns that are read."""
        single = [name for name in (self.id, self.category, self.split) if name is not None]
        return list(dict.fromkeys([*self.text, *self.image, *self.labels, *single]))

    def check(self, names: Sequence[str], source: Path | str) -> None:
        """Raise a UsageError if the source lacks a column that is wanted."""
        found = f"columns: {', '.join(names)}"
        content = [*self.text, *self.image]
        if self.lenient and not set(names).intersection(content):
            raise UsageError(
                f"{source}: no column {' or '.join(content)}; name yours, such as --text name ({found})"
            )
        for name in () if self.lenient else self.wanted:
            if name not in names:
                raise UsageError(f"{source}: no column {name!r}; {found}")


@dataclass
class SourceTable:
    """A table to import."""

    split: str | None  # the name of its split, where there are several tables
    table: OpenTable
    folder: Path | None = None  # image paths are relative to it
    classes: dict[str, list[str]] = field(default_factory=dict)  # column → names of its class numbers


@dataclass(slots=True)
class Record:
    """A row as an item with its labels; unusable if it has a fault."""

    place: str
    id: str
    fault: str = ""
    texts: list[str] = field(default_factory=list)
    images: list[bytes | Path] = field(default_factory=list)
    urls: list[str] = field(default_factory=list)
    category: str | None = None
    labels: list[str] = field(default_factory=list)
    split: str | None = None


class Records:
    """Turns the rows of a table into records; each image is decoded once, to find the broken ones."""

    def __init__(self, columns: Columns, source: SourceTable, first: int = 1) -> None:
        root = columns.images_dir or source.folder
        self.columns, self.source = columns, source
        self.folder = None if root is None else Path(os.path.realpath(root))
        self.number = first  # of the next row, for rows without an id
        self.seen: set[str] = set()  # columns that occurred

    def read(self, rows: Iterable[Row]) -> list[Record]:
        """Return one record per row."""
        records = [self._record(row) for row in rows]
        images = [(record, image) for record in records for image in record.images]
        for (record, image), decoded in zip(images, loaded([i for _, i in images], TEST_SIZE), strict=True):
            if isinstance(decoded, PictureError):
                record.fault = record.fault or self._image_fault(image, decoded)
        return records

    def _record(self, row: Row) -> Record:
        columns, cells = self.columns, row.cells
        self.seen.update(cells)
        numbered = f"row-{self.number}"
        self.number += 1
        name = numbered
        if columns.id is not None and not (columns.lenient and columns.id not in cells):
            name = _text(cells.get(columns.id))
        record = Record(row.place, name or numbered, row.fault)
        if row.fault:
            return record
        if not name:
            record.fault = f"column {columns.id!r} is empty; every row needs an id"
        record.texts = [text for column in columns.text for text in _texts(cells.get(column))]
        if columns.category is not None:
            record.category = _text(cells.get(columns.category)) or None
        labels = [label for column in columns.labels for label in self._labels(cells.get(column), column)]
        record.labels = list(dict.fromkeys(labels))
        record.split = self.source.split
        if columns.split is not None:
            record.split = _text(cells.get(columns.split)) or None
        self._add_images(record, cells)
        return record

    def _labels(self, value: Any, column: str) -> list[str]:
        classes = self.source.classes.get(column)
        if classes is not None:
            values = value if isinstance(value, list) else [value]
            return [classes[i] for i in values if isinstance(i, int) and 0 <= i < len(classes)]
        return [part for part in self._parts(value) if isinstance(part, str)]

    def _add_images(self, record: Record, cells: dict[str, Any]) -> None:
        """Add the images of a row, as bytes or paths, and its URLs."""
        for value in (part for column in self.columns.image for part in self._parts(cells.get(column))):
            if isinstance(value, bytes):
                record.images.append(value)
            elif value.lower().startswith(("http://", "https://")):
                record.urls.append(value)
            else:
                try:
                    path = inside(self.folder / value, str(self.folder)) if self.folder else Path(value)
                except PictureError as error:
                    reason = str(error).removeprefix(f"{error.file}: ")
                    record.fault = record.fault or f"image {quoted(value)} {reason}"
                    continue
                if is_file(path):
                    record.images.append(path)
                else:
                    record.fault = record.fault or f"image {quoted(value)} not found"

    def _parts(self, cell: Any) -> list[bytes | str]:
        """Return the values in a cell: those of a list, or the parts of a text."""
        if isinstance(cell, list):
            return [part for value in cell for part in self._values(value, split=False)]
        return self._values(cell, split=True)

    def _values(self, value: Any, split: bool) -> list[bytes | str]:
        if isinstance(value, dict):  # an image of Hugging Face
            value = value.get("bytes") or value.get("path")
        if isinstance(value, bytes):
            return [value]
        text = _text(value)
        parts = text.split(self.columns.separator) if split and self.columns.separator else [text]
        return [part.strip() for part in parts if part.strip()]

    def _image_fault(self, image: bytes | Path, error: PictureError) -> str:
        reason = str(error).removeprefix(f"{error.file}: ")
        if isinstance(image, bytes):
            return f"image of {len(image):,} bytes: {reason}"
        inner = image.relative_to(self.folder) if self.folder is not None else image
        return f"image {quoted(str(inner))}: {reason}"


def quoted(text: str) -> str:
    """Return the text in double quotes, for messages."""
    return f'"{text}"'


def _text(value: Any) -> str:
    """Return a value as text; nothing for a missing one."""
    return "" if value is None or value != value else str(value).strip()


def _texts(value: Any) -> list[str]:
    return [text for one in (value if isinstance(value, list) else [value]) if (text := _text(one))]
