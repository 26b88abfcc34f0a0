"""Tables of one's own, CSV, TSV, Parquet or JSON lines, with a mapping of their columns to a catalogue.

A cell holds one value, a list, or several values between separators; a picture is a path inside the folder of
the table or inside `images_dir`, an address, or bytes (alone or as `{bytes, path}`, the way of Hugging Face).
A label is its own text, or the id of a row.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc_csv

from mufin.data.catalogue import Catalogue, check_ids
from mufin.data.decoding import read_file
from mufin.data.formats import jsonl, parquet
from mufin.data.formats.files import Part, is_file
from mufin.data.formats.schema import PICTURES, STRING, STRINGS
from mufin.data.importers.imported import Imported, statistics
from mufin.data.items import Items
from mufin.data.paths import inside
from mufin.data.problems import BadLines, add_warning
from mufin.errors import CatalogueError, PictureError, UsageError

SUFFIXES = (".csv", ".tsv", ".parquet", ".jsonl")
TAKEN = ("items", "labels", "filter")  # names of other files of a catalogue


@dataclass(frozen=True)
class Columns:
    """Which column is what; without an `id`, rows are numbered."""

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
    images_dir: Path | None = None  # where image files may come from; the folder of the table

    def __post_init__(self) -> None:
        for name in ("text", "image", "labels"):
            value = getattr(self, name)
            object.__setattr__(self, name, (value,) if isinstance(value, str) else tuple(value))
        if not self.text and not self.image:
            raise UsageError("which columns are texts or pictures? Name at least one of them")
        if not 0 <= self.test < 1:
            raise UsageError(f"test share {self.test} is not in [0, 1)")

    @property
    def wanted(self) -> list[str]:
        """All columns that are looked at."""
        single = [name for name in (self.id, self.category, self.split) if name is not None]
        return list(dict.fromkeys([*self.text, *self.image, *self.labels, *single]))


@dataclass
class Named:
    """A table, the name of its split where several come together, and where its paths begin."""

    name: str | None
    table: pa.Table
    folder: Path | None = None
    classes: dict[str, list[str]] = field(default_factory=dict)  # column → the names of its numbers
    path: Path | None = None  # the file, for messages


def read_tables(paths: Sequence[Path], columns: Columns) -> Catalogue:
    """The catalogue in these files; several files are splits under their names."""
    bad_lines = BadLines()
    tables = [
        Named(_split(path, paths), read_table(path, columns.wanted, bad_lines), path.parent, path=path)
        for path in paths
    ]
    catalogue = from_tables(tables, columns)
    if catalogue.imported is not None:
        catalogue.imported.counts["bad lines"] = bad_lines.count
        catalogue.imported.problems = [*bad_lines.problems(), *catalogue.imported.problems]
    return catalogue


def _split(path: Path, paths: Sequence[Path]) -> str | None:
    return path.stem if len(paths) > 1 else None


def read_table(path: Path, wanted: list[str], bad_lines: BadLines) -> pa.Table:
    """The wanted columns of a file; rows of CSV with too many or too few cells are counted and left out."""
    if not path.is_file():
        raise CatalogueError(f"no such file; expected one of {', '.join(SUFFIXES)}", path)
    match path.suffix:
        case ".parquet":
            names = parquet.columns(path)
            _check(wanted, names, path)
            return parquet.read_columns(path, wanted)
        case ".csv" | ".tsv":
            return _csv(path, wanted, bad_lines)
        case ".jsonl":
            table = jsonl.read_any(path)
            _check(wanted, table.column_names, path)
            return table.select(wanted)
        case _:
            raise CatalogueError(f"a table ends in one of {', '.join(SUFFIXES)}", path)


def _csv(path: Path, wanted: list[str], bad_lines: BadLines) -> pa.Table:
    def wrong(row: Any) -> str:
        message = f"{row.actual_columns} cells, expected {row.expected_columns}; the row is left out"
        bad_lines.add(path.name, message, row.number)
        return "skip"

    delimiter = "\t" if path.suffix == ".tsv" else ","
    form = pc_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True, invalid_row_handler=wrong)
    options = pc_csv.ReadOptions(use_threads=False)
    try:
        with path.open("rb") as file:
            head = pc_csv.ReadOptions(use_threads=False, block_size=1 << 20)
            names = pc_csv.open_csv(file, head, pc_csv.ParseOptions(
                delimiter=delimiter, newlines_in_values=True, invalid_row_handler=lambda row: "skip"
            )).schema.names  # fmt: skip
        _check(wanted, names, path)
        kinds = pc_csv.ConvertOptions(
            column_types=dict.fromkeys(wanted, STRING), include_columns=wanted, strings_can_be_null=True
        )
        return pc_csv.read_csv(path, options, form, kinds)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> CatalogueError:
    """The error of a CSV file that Arrow refuses, with the line of the first byte that is not UTF-8."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                line.decode()
            except UnicodeDecodeError as wrong:
                message = f"byte {wrong.start + 1} of the line is not UTF-8; save the file as UTF-8"
                return CatalogueError(message, path, number)
    return CatalogueError(f"not readable as a table ({error}); save it as UTF-8 CSV", path)


def _check(wanted: list[str], names: list[str], path: Path | str) -> None:
    for name in wanted:
        if name not in names:
            raise UsageError(f"{path}: no column {name!r}; there are: {', '.join(names)}")


def from_tables(tables: Sequence[Named], columns: Columns) -> Catalogue:
    """A catalogue out of tables in memory."""
    built = _Builder(columns)
    for one in tables:
        _check(columns.wanted, one.table.column_names, one.name or "the table")
        built.add(one)
    return built.catalogue()


class _Builder:
    """Collects rows of tables as columns of a catalogue."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self.ids: list[str | None] = []
        self.texts: list[list[str]] = []
        self.images: list[list[bytes | Path]] = []
        self.urls: list[list[str]] = []
        self.categories: list[str | None] = []
        self.labels: list[list[str]] = []
        self.splits: list[str | None] = []
        self.missing: list[str] = []

    def add(self, one: Named) -> None:
        """Take the rows of a table."""
        columns = self.columns
        before, root = len(self.ids), columns.images_dir or one.folder
        folder = None if root is None else Path(os.path.realpath(root))
        for batch in one.table.select(columns.wanted).to_batches(max_chunksize=4096):
            for row in batch.to_pylist():
                number = len(self.ids)
                self.ids.append(f"row-{number + 1}" if columns.id is None else _text(row[columns.id]) or None)
                self.texts.append([text for name in columns.text for text in _texts(row[name])])
                try:
                    self._pictures(row, folder)
                except PictureError as error:
                    raise CatalogueError(f"row {number - before + 1}: {error}", one.path) from None
                self.categories.append(
                    None if columns.category is None else _text(row[columns.category]) or None
                )
                values = [
                    label
                    for name in columns.labels
                    for label in self._labels(row[name], one.classes.get(name))
                ]
                self.labels.append(list(dict.fromkeys(values)))
                given = one.name if columns.split is None else _text(row[columns.split]) or None
                self.splits.append(given)

    def _labels(self, value: Any, classes: list[str] | None) -> list[str]:
        values = value if isinstance(value, list) else [value]
        if classes is not None:
            return [
                classes[number] for number in values if isinstance(number, int) and 0 <= number < len(classes)
            ]
        parts = (part for one in values for part in _text(one).split(self.columns.separator))
        return [part.strip() for part in parts if part.strip()]

    def _pictures(self, row: dict[str, Any], folder: Path | None) -> None:
        images: list[bytes | Path] = []
        urls: list[str] = []
        for name in self.columns.image:
            value = row[name]
            for one in value if isinstance(value, list) else [value]:
                encoded = one.get("bytes") or one.get("path") if isinstance(one, dict) else one
                if isinstance(encoded, bytes):
                    images.append(encoded)
                    continue
                for part in _text(encoded).split(self.columns.separator):
                    text = part.strip()
                    if text.lower().startswith(("http://", "https://")):
                        urls.append(text)
                    elif text:
                        path = Path(text) if folder is None else inside(folder / text, str(folder))
                        if is_file(path):
                            images.append(path)
                        else:
                            self.missing.append(text)
        self.images.append(images)
        self.urls.append(urls)

    def catalogue(self) -> Catalogue:
        """All of it as a catalogue."""
        items = self._items()
        check_ids(items.ids, Part("table", "items", items.table))
        found = Imported("table")
        add_warning(
            found.problems,
            "picture file that is not there; the row goes without it",
            "table",
            self.missing,
        )
        labels = None
        if self.columns.labels_are_items:
            self._known_labels(found)
        elif self.columns.labels:
            names = list(dict.fromkeys(label for row in self.labels for label in row))
            texts = pa.array([[name] for name in names], STRINGS)
            labels = Items.from_table(pa.table({"id": pa.array(names, STRING), "texts": texts}))
        catalogue = Catalogue(items, labels, self._splits() if self.columns.labels else [])
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

    def _known_labels(self, found: Imported) -> None:
        ids = set(self.ids)
        unknown = sorted({label for row in self.labels for label in row} - ids)
        add_warning(found.problems, "label that is no id of a row; it is left out", "table", unknown)
        self.labels = [[label for label in row if label in ids] for row in self.labels]

    def _splits(self) -> list[Part]:
        """The rows with labels, by the split they name or at random."""
        columns = self.columns
        rng = np.random.default_rng(columns.seed)
        drawn = rng.random(len(self.ids)) < columns.test
        groups: dict[str, list[int]] = {}
        for row, (labels, given) in enumerate(zip(self.labels, self.splits, strict=True)):
            name = given or ("test" if drawn[row] and columns.split is None else "train")
            if labels:
                groups.setdefault(name, []).append(row)
        for name in groups:
            if name in TAKEN or not name.replace("-", "").replace("_", "").isalnum():
                raise UsageError(
                    f"split {name!r}: expected a plain name such as train, and none of {', '.join(TAKEN)}"
                )
        if not groups:
            raise CatalogueError(f"no row has a label in {', '.join(columns.labels)}; is this the column?")
        return [self._part(name, rows) for name, rows in groups.items()]

    def _part(self, name: str, rows: list[int]) -> Part:
        ids = pa.array([self.ids[row] for row in rows], STRING)
        labels = pa.array([self.labels[row] for row in rows], STRINGS)
        return Part(name, "split", pa.table({"id": ids, "labels": labels}))


def _text(value: Any) -> str:
    return "" if value is None else str(value).strip()


def _texts(value: Any) -> list[str]:
    return [text for one in (value if isinstance(value, list) else [value]) if (text := _text(one))]
