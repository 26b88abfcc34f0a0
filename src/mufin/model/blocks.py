"""Items to predict or embed, block by block: from a catalogue folder, a table or standard input."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import TypeVar

import numpy as np
from scipy.sparse import csr_matrix

from mufin.data.catalogue import Catalogue
from mufin.data.importers.records import Columns, Record, Records, SourceTable
from mufin.data.importers.rows import STDIN, BadRows, OpenTable, open_table
from mufin.data.importers.tabular import items_of
from mufin.data.items import Items
from mufin.errors import UsageError
from mufin.model.mufin import Mufin

ITEMS_PER_BLOCK = 1024  # processed at a time
ITEM_COLUMNS = Columns(text=("title", "texts"), image=("images",), id="id", lenient=True)
T = TypeVar("T")


@dataclass(frozen=True)
class Span:
    """Some rows of a Parquet file, which may follow other files."""

    rows: range
    before: int = 0  # rows of earlier files


@dataclass(frozen=True)
class Block:
    """Items to process together."""

    items: Items
    hidden: csr_matrix | None  # (n, L of the model) bool: the labels never to return
    faults: list[str]  # why the row of an item cannot be used; empty for most
    done: int  # progress so far, in the unit of `Source.total`


@dataclass
class Source:
    """Items in blocks, one for each row, also for bad rows."""

    blocks: Iterator[Block]
    total: int  # items, or kB of a file; 0 if unknown
    cached: bool = False  # whether to use the feature cache for frozen outputs
    is_csv: bool = False
    bad_rows: list[str] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        path: Path,
        model: Mufin,
        split: str | None = None,
        columns: Columns = ITEM_COLUMNS,
        span: Span | None = None,
    ) -> Source:
        """Open a catalogue folder, one of its splits, a table, some of its rows, or standard input (`-`)."""
        if path.is_dir():
            return _from_catalogue(path, model, split)
        if split is not None:
            raise UsageError(f"{path} is not a catalogue folder, so it has no split {split!r}; omit --split")
        if model.config.modalities == "text":
            columns = replace(columns, image=())
        rows = None if span is None else span.rows
        table = open_table(path, columns.wanted, columns.encoding, rows)
        if table.names is not None:
            try:
                columns.check(table.names, table.name)
            except UsageError:
                table.close()
                raise
        bad = BadRows(columns.max_bad_rows)
        is_csv = table.names is not None and path.suffix != ".parquet"
        first = 1 if span is None else 1 + span.before + span.rows.start
        blocks = _table_blocks(table, path, model, columns, bad, first)
        return cls(blocks, table.total, is_csv=is_csv, bad_rows=bad.found)


def _from_catalogue(path: Path, model: Mufin, split: str | None) -> Source:
    catalogue = Catalogue.read(path)
    rows = np.arange(len(catalogue.items)) if split is None else catalogue.split(split).members

    def blocks() -> Iterator[Block]:
        for start in range(0, len(rows), ITEMS_PER_BLOCK):
            block = rows[start : start + ITEMS_PER_BLOCK]
            items = catalogue.items.take(block)
            hidden = model.labels.align(catalogue.filter[block], catalogue.labels)
            own = model.own_labels(items)
            hidden = hidden if own is None else csr_matrix(hidden + own)
            yield Block(items, hidden, [""] * len(items), start + len(block))

    # Features of a catalogue were probably computed and cached during training.
    return Source(blocks(), len(rows), cached=True)


def _table_blocks(
    table: OpenTable, path: Path, model: Mufin, columns: Columns, bad: BadRows, first: int
) -> Iterator[Block]:
    reader = Records(columns, SourceTable(None, table, None if path == STDIN else path.parent), first)
    chunks = (arriving if path == STDIN else chunked)(table.rows, ITEMS_PER_BLOCK)
    try:
        for number, rows in enumerate(chunks):
            records = reader.read(rows)
            for record in records:
                if record.urls and not record.fault:
                    record.fault = f'image "{record.urls[0]}" is a URL; download it first'
                if record.fault:
                    bad.add(table.name, record.place, record.fault)
            if not number and reader.seen:  # later rows may lack what the first have
                replace(columns, lenient=True).check(sorted(reader.seen), table.name)
            items = items_of([_emptied(record) for record in records])
            yield Block(items, model.own_labels(items), [one.fault for one in records], table.done())
        if reader.seen:
            columns.check(sorted(reader.seen), table.name)
    finally:
        table.close()


def _emptied(record: Record) -> Record:
    """Return the record, without content if it has a fault."""
    return replace(record, texts=[], images=[]) if record.fault else record


def chunked(values: Iterator[T], most: int) -> Iterator[list[T]]:
    """Yield the values in lists of `most`."""
    while chunk := list(islice(values, most)):
        yield chunk


def arriving(values: Iterator[T], most: int) -> Iterator[list[T]]:
    """Yield the values that have arrived, at most `most` at a time; wait only for the first of them.

    A pipe is thus answered line by line if its writer waits, and in full blocks if it does not.
    """
    arrived: Queue[T | BaseException | None] = Queue(2 * most)

    def read() -> None:
        try:
            for value in values:
                arrived.put(value)
            arrived.put(None)
        except BaseException as error:
            arrived.put(error)

    Thread(target=read, name="mufin-input", daemon=True).start()
    while True:
        chunk: list[T] = []
        while not chunk or (len(chunk) < most and not arrived.empty()):
            value = arrived.get()
            if value is None or isinstance(value, BaseException):
                if chunk:
                    yield chunk
                if value is not None:
                    raise value
                return
            chunk.append(value)
        yield chunk
