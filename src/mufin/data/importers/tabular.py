"""Tables with named columns as a catalogue; a row is imported whole or skipped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from mufin.data.check_report import add_warning
from mufin.data.decoding import read_file
from mufin.data.formats.files import Part
from mufin.data.formats.schema import PICTURES, STRING, STRINGS
from mufin.data.importers.imported import Imported, statistics
from mufin.data.importers.label_forms import odd_labels
from mufin.data.importers.records import Columns, Record, Records, SourceTable, quoted
from mufin.data.importers.rows import ROWS_PER_BATCH, BadRows
from mufin.data.items import Items
from mufin.errors import CatalogueError, UsageError

if TYPE_CHECKING:
    from mufin.data.catalogue import Catalogue

RESERVED_NAMES = ("items", "labels", "filter")  # tables of a catalogue that are not splits


def from_tables(make: type[Catalogue], tables: Iterable[SourceTable], columns: Columns) -> Catalogue:
    """Build a catalogue from tables, and close them."""
    builder = _Builder(columns)
    for source in tables:
        with closing(source.table):
            builder.add(source)
    return builder.catalogue(make)


class _Builder:
    """Collects the usable rows of tables, then builds the catalogue."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self.records: list[Record] = []
        self.bad = BadRows(columns.max_bad_rows)
        self.rows = 0  # of all tables so far
        self.unlabelled: dict[str, list[str]] = {}  # table → places of rows
        self.first: dict[str, str] = {}  # id → its first place
        self.names: list[str] = []  # of all columns

    def add(self, source: SourceTable) -> None:
        """Add the rows of a table."""
        table, reader = source.table, Records(self.columns, source, self.rows + 1)
        if table.names is not None:
            self.columns.check(table.names, table.name)
        rows = iter(table.rows)
        while batch := reader.read(islice(rows, ROWS_PER_BATCH)):
            for record in batch:
                self._add(record, table.name)
        self.rows = reader.number - 1
        if table.names is None and self.rows:
            self.columns.check(sorted(reader.seen), table.name)
        self.names += table.names or sorted(reader.seen)

    def _add(self, record: Record, table: str) -> None:
        fault = record.fault
        if not fault and record.id in self.first:
            first = self.first[record.id].removeprefix(f"{table}, ")
            fault = f"id {quoted(record.id)} appears twice (first in {first})"
        if fault:
            self.bad.add(table, record.place, fault)
            return
        self.first[record.id] = f"{table}, {record.place.partition(' (')[0]}"
        self.records.append(record)
        if self.columns.labels and not record.labels:
            self.unlabelled.setdefault(table, []).append(record.place)

    def catalogue(self, make: type[Catalogue]) -> Catalogue:
        """Build the catalogue of all usable rows."""
        if not self.records and self.bad.found:
            raise CatalogueError(f"no usable row; {self.bad.found[0].removesuffix('; skipped')}")
        unused = [name for name in dict.fromkeys(self.names) if name and name not in self.columns.wanted]
        found = Imported("table", unused=unused, bad_rows=self.bad.found)
        found.counts = {"rows": self.rows, "bad rows": len(self.bad.found)}
        labels = None
        if self.columns.labels_are_items:
            self._drop_unknown_labels(found)
        elif self.columns.labels:
            names = list(dict.fromkeys(label for record in self.records for label in record.labels))
            texts = pa.array([[name] for name in names], STRINGS)
            labels = Items.from_table(pa.table({"id": pa.array(names, STRING), "texts": texts}))
            place = f"column {', '.join(self.columns.labels)}"
            found.problems += odd_labels([record.labels for record in self.records], place)
        for table, places in self.unlabelled.items():
            add_warning(found.problems, "row without labels; an item, but in no split", table, places)
        catalogue = make(items_of(self.records), labels, self._split_parts() if self.columns.labels else [])
        found.statistics = statistics(catalogue)
        catalogue.imported = found
        return catalogue

    def _drop_unknown_labels(self, found: Imported) -> None:
        unknown = sorted({label for record in self.records for label in record.labels} - set(self.first))
        add_warning(found.problems, "label is not the id of a row; ignored", "labels", unknown)
        for record in self.records:
            record.labels = [label for label in record.labels if label in self.first]

    def _split_parts(self) -> list[Part]:
        """Return the labelled rows by split: the one they name, or `train` and `test` at random."""
        columns = self.columns
        rng = np.random.default_rng(columns.seed)
        drawn = rng.random(len(self.records)) < columns.test
        rows_of: dict[str, list[Record]] = {}
        for record, test in zip(self.records, drawn, strict=True):
            name = record.split or ("test" if test and columns.split is None else "train")
            if record.labels:
                rows_of.setdefault(name, []).append(record)
        for name in rows_of:
            if name in RESERVED_NAMES or not name.replace("-", "").replace("_", "").isalnum():
                reserved = ", ".join(RESERVED_NAMES)
                raise UsageError(f"split {name!r}: expected letters, digits, - or _, and not {reserved}")
        if not rows_of:
            raise CatalogueError(f"no row has a label in {', '.join(columns.labels)}; name another column")
        return [_split_part(name, records) for name, records in rows_of.items()]


def items_of(records: Sequence[Record]) -> Items:
    """Return records as items; if any image is in memory, all are read."""
    table = {
        "id": pa.array([record.id for record in records], STRING),
        "texts": pa.array([record.texts for record in records], STRINGS),
    }
    images = [record.images for record in records]
    if any(isinstance(image, bytes) for row in images for image in row):
        encoded = [[i if isinstance(i, bytes) else read_file(i) for i in row] for row in images]
        table["images"] = pa.array(encoded, PICTURES)
    elif any(images):
        table["images"] = pa.array([[str(image) for image in row] for row in images], STRINGS)
    if any(record.category for record in records):
        table["category"] = pa.array([record.category for record in records], STRING)
    if any(record.urls for record in records):
        table["image_urls"] = pa.array([record.urls for record in records], STRINGS)
    return Items.from_table(pa.table(table))


def _split_part(name: str, records: list[Record]) -> Part:
    ids = pa.array([record.id for record in records], STRING)
    labels = pa.array([record.labels for record in records], STRINGS)
    return Part(name, "split", pa.table({"id": ids, "labels": labels}))
