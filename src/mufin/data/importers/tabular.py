"""Tables with named columns as a catalogue; `table.py` and `dataset.py` read the tables.

A cell holds one value, a list, or several values with a separator between them. An image is a path inside
the folder of the table or inside `images_dir`, a URL, or bytes (alone, or as `{bytes, path}` as Hugging Face
stores images). A label is its own text, or the id of a row.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from mufin.data.check_report import add_warning
from mufin.data.decoding import inside, read_file
from mufin.data.formats.files import Part, is_file
from mufin.data.formats.schema import PICTURES, STRING, STRINGS
from mufin.data.importers.imported import Imported, statistics
from mufin.data.items import Items, check_ids
from mufin.errors import CatalogueError, PictureError, UsageError

if TYPE_CHECKING:
    from mufin.data.catalogue import Catalogue

RESERVED_NAMES = ("items", "labels", "filter")  # tables of a catalogue that are not splits
ROWS_PER_BATCH = 4096  # rows turned into Python objects at a time


@dataclass(frozen=True)
class Columns:
    """Which column holds what; without `id`, rows are numbered."""

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

    def __post_init__(self) -> None:
        for name in ("text", "image", "labels"):
            value = getattr(self, name)
            object.__setattr__(self, name, (value,) if isinstance(value, str) else tuple(value))
        if not self.text and not self.image:
            raise UsageError("no text or image column; name at least one")
        if not 0 <= self.test < 1:
            raise UsageError(f"test share {self.test}: expected a number in [0, 1)")

    @property
    def wanted(self) -> list[str]:
        """The names of all columns that are read."""
        single = [name for name in (self.id, self.category, self.split) if name is not None]
        return list(dict.fromkeys([*self.text, *self.image, *self.labels, *single]))

    def check(self, names: Sequence[str], source: Path | str) -> None:
        """Raise a UsageError if the source lacks a column that is wanted."""
        for name in self.wanted:
            if name not in names:
                raise UsageError(f"{source}: no column {name!r}; columns: {', '.join(names)}")


@dataclass
class SourceTable:
    """A table to import."""

    split: str | None  # the name of its split, where there are several tables
    table: pa.Table
    folder: Path | None = None  # image paths are relative to it
    classes: dict[str, list[str]] = field(default_factory=dict)  # column → names of its class numbers
    path: Path | None = None  # the file, for messages


def from_tables(make: type[Catalogue], tables: Sequence[SourceTable], columns: Columns) -> Catalogue:
    """Build a catalogue from tables."""
    builder = _Builder(columns)
    for source in tables:
        columns.check(source.table.column_names, source.split or "the table")
        builder.add(source)
    return builder.catalogue(make)


class _Builder:
    """Collects the rows of tables, then builds the catalogue."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self.ids: list[str | None] = []
        self.texts: list[list[str]] = []
        self.images: list[list[bytes | Path]] = []
        self.urls: list[list[str]] = []
        self.categories: list[str | None] = []
        self.labels: list[list[str]] = []
        self.splits: list[str | None] = []
        self.missing_images: list[str] = []

    def add(self, source: SourceTable) -> None:
        """Add the rows of a table."""
        root = self.columns.images_dir or source.folder
        folder = None if root is None else Path(os.path.realpath(root))
        number = 0
        for batch in source.table.select(self.columns.wanted).to_batches(max_chunksize=ROWS_PER_BATCH):
            for row in batch.to_pylist():
                number += 1
                try:
                    self._add_row(row, source, folder)
                except PictureError as error:
                    raise CatalogueError(f"row {number}: {error}", source.path) from None

    def _add_row(self, row: dict[str, Any], source: SourceTable, folder: Path | None) -> None:
        columns = self.columns
        images, urls = self._images(row, folder)
        number = len(self.ids) + 1
        self.ids.append(f"row-{number}" if columns.id is None else _text(row[columns.id]) or None)
        self.texts.append([text for name in columns.text for text in _texts(row[name])])
        self.images.append(images)
        self.urls.append(urls)
        self.categories.append(None if columns.category is None else _text(row[columns.category]) or None)
        labels = [
            label for name in columns.labels for label in self._labels(row[name], source.classes.get(name))
        ]
        self.labels.append(list(dict.fromkeys(labels)))
        self.splits.append(source.split if columns.split is None else _text(row[columns.split]) or None)

    def _labels(self, value: Any, classes: list[str] | None) -> list[str]:
        values = value if isinstance(value, list) else [value]
        if classes is not None:
            return [
                classes[number] for number in values if isinstance(number, int) and 0 <= number < len(classes)
            ]
        parts = (part for one in values for part in _text(one).split(self.columns.separator))
        return [part.strip() for part in parts if part.strip()]

    def _images(self, row: dict[str, Any], folder: Path | None) -> tuple[list[bytes | Path], list[str]]:
        """Return the images of a row, as bytes or paths, and its URLs; note missing files."""
        images: list[bytes | Path] = []
        urls: list[str] = []
        for encoded in self._image_values(row):
            if isinstance(encoded, bytes):
                images.append(encoded)
            elif encoded.lower().startswith(("http://", "https://")):
                urls.append(encoded)
            else:
                path = Path(encoded) if folder is None else inside(folder / encoded, str(folder))
                if is_file(path):
                    images.append(path)
                else:
                    self.missing_images.append(encoded)
        return images, urls

    def _image_values(self, row: dict[str, Any]) -> list[bytes | str]:
        """Return every value in the image columns: bytes, or one path or URL."""
        values: list[bytes | str] = []
        for name in self.columns.image:
            cell = row[name]
            for value in cell if isinstance(cell, list) else [cell]:
                encoded = value.get("bytes") or value.get("path") if isinstance(value, dict) else value
                if isinstance(encoded, bytes):
                    values.append(encoded)
                else:
                    parts = (part.strip() for part in _text(encoded).split(self.columns.separator))
                    values += [part for part in parts if part]
        return values

    def catalogue(self, make: type[Catalogue]) -> Catalogue:
        """Build the catalogue of all rows."""
        items = self._items()
        check_ids(items.ids, Part("table", "items", items.table))
        found = Imported("table")
        message = "image file not found; the row is used without it"
        add_warning(found.problems, message, "table", self.missing_images)
        labels = None
        if self.columns.labels_are_items:
            self._drop_unknown_labels(found)
        elif self.columns.labels:
            names = list(dict.fromkeys(label for row in self.labels for label in row))
            texts = pa.array([[name] for name in names], STRINGS)
            labels = Items.from_table(pa.table({"id": pa.array(names, STRING), "texts": texts}))
        catalogue = make(items, labels, self._split_parts() if self.columns.labels else [])
        found.statistics = statistics(catalogue)
        catalogue.imported = found
        return catalogue

    def _items(self) -> Items:
        table = {"id": pa.array(self.ids, STRING), "texts": pa.array(self.texts, STRINGS)}
        if any(isinstance(image, bytes) for row in self.images for image in row):
            encoded = [[i if isinstance(i, bytes) else read_file(i) for i in row] for row in self.images]
            table["images"] = pa.array(encoded, PICTURES)
        elif any(self.images):
            table["images"] = pa.array([[str(image) for image in row] for row in self.images], STRINGS)
        if any(self.categories):
            table["category"] = pa.array(self.categories, STRING)
        if any(self.urls):
            table["image_urls"] = pa.array(self.urls, STRINGS)
        return Items.from_table(pa.table(table))

    def _drop_unknown_labels(self, found: Imported) -> None:
        ids = set(self.ids)
        unknown = sorted({label for row in self.labels for label in row} - ids)
        add_warning(found.problems, "label is not the id of a row; ignored", "table", unknown)
        self.labels = [[label for label in row if label in ids] for row in self.labels]

    def _split_parts(self) -> list[Part]:
        """Return the labelled rows by split: the one they name, or `train` and `test` at random."""
        columns = self.columns
        rng = np.random.default_rng(columns.seed)
        drawn = rng.random(len(self.ids)) < columns.test
        rows_of: dict[str, list[int]] = {}
        for row, (labels, given) in enumerate(zip(self.labels, self.splits, strict=True)):
            name = given or ("test" if drawn[row] and columns.split is None else "train")
            if labels:
                rows_of.setdefault(name, []).append(row)
        for name in rows_of:
            if name in RESERVED_NAMES or not name.replace("-", "").replace("_", "").isalnum():
                reserved = ", ".join(RESERVED_NAMES)
                raise UsageError(f"split {name!r}: expected letters, digits, - or _, and not {reserved}")
        if not rows_of:
            raise CatalogueError(f"no row has a label in {', '.join(columns.labels)}; name another column")
        return [self._split_part(name, rows) for name, rows in rows_of.items()]

    def _split_part(self, name: str, rows: list[int]) -> Part:
        ids = pa.array([self.ids[row] for row in rows], STRING)
        labels = pa.array([self.labels[row] for row in rows], STRINGS)
        return Part(name, "split", pa.table({"id": ids, "labels": labels}))


def _text(value: Any) -> str:
    return "" if value is None else str(value).strip()


def _texts(value: Any) -> list[str]:
    return [text for one in (value if isinstance(value, list) else [value]) if (text := _text(one))]
