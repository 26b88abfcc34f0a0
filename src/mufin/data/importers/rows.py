"""Rows of a table, read one at a time: CSV, TSV, JSON lines or Parquet, from a file or standard input.

Each row carries its place as an editor shows it: in CSV the row of a spreadsheet, where the header is row 1
and a cell may span lines; in JSON lines the line. A row that cannot be read carries the reason, and reading
continues.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from mufin.data.formats import safe_json
from mufin.data.formats.parquet import batches, explained, open_parquet
from mufin.errors import CatalogueError, UsageError

SUFFIXES = (".csv", ".tsv", ".parquet", ".jsonl")
STDIN = Path("-")
ROWS_PER_BATCH = 1024  # of Arrow, turned into Python objects at a time
DELIMITERS = ",;\t"  # of CSV, recognised in the header
BYTE_ORDER_MARKS = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
ENCODING_HINT = "name the encoding of the file with --encoding, such as cp1252"


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a table."""

    place: str  # "row 21", "row 21 (line 23)" if they differ, or "line 21" in JSON lines
    cells: dict[str, Any]
    fault: str = ""  # why the row cannot be read


@dataclass
class BadRows:
    """The rows that were skipped, each with file, place and reason; more than `limit` are an error."""

    limit: int
    found: list[str] = field(default_factory=list)

    def add(self, source: str, place: str, reason: str) -> None:
        """Add a row."""
        row = f"{source}, {place}: {reason}"
        self.found.append(f"{row}; skipped")
        if not self.limit:
            raise CatalogueError(f"{row}; correct the row, or skip it by omitting --strict")
        if len(self.found) > self.limit:
            such = f"{self.limit:,} bad rows" if self.limit > 1 else "1 bad row"
            folder = (
                "name the folder of the images with --images-dir, " if reason.endswith("not found") else ""
            )
            remedy = f"correct them, {folder}or allow more with --max-bad-rows N"
            raise CatalogueError(f"more than {such}, the last: {row}; {remedy}")


@dataclass
class OpenTable:
    """The column names of a table (None if each row has its own) and its rows, which can be read once."""

    name: str
    names: list[str] | None
    rows: Iterator[Row]
    file: BinaryIO | io.TextIOWrapper | None = None  # closed at the end
    total: int = 0  # kB; 0 if unknown

    def done(self) -> int:
        """Return how many kB have been read."""
        if self.file is None or not self.total:
            return 0
        return os.lseek(self.file.fileno(), 0, os.SEEK_CUR) >> 10

    def close(self) -> None:
        """Close the file."""
        if self.file is not None:
            self.file.close()


def open_table(
    path: Path,
    wanted: Sequence[str] | None = None,
    encoding: str | None = None,
    rows: range | None = None,
) -> OpenTable:
    """Open a table; of Parquet, read only the `wanted` columns, and only these rows."""
    if path != STDIN and not path.is_file():
        raise CatalogueError(f"no such file; expected one of {', '.join(SUFFIXES)}", path)
    if path.suffix == ".parquet":
        return _open_parquet(path, wanted, rows)
    if path != STDIN and path.suffix not in SUFFIXES:
        raise CatalogueError(f"unknown format; expected one of {', '.join(SUFFIXES)}", path)
    # A copy of the descriptor: a thread that still reads sys.stdin when Python ends would stop it.
    file = os.fdopen(os.dup(0), "rb") if path == STDIN else path.open("rb")
    name = "standard input" if path == STDIN else str(path)
    try:
        if path.suffix == ".jsonl" or (path == STDIN and _begins_with_object(file)):
            table = OpenTable(name, None, _json_rows(file, encoding), file)
        else:
            table = _open_csv(file, name, path.suffix, encoding)
        table.total = 0 if path == STDIN else path.stat().st_size >> 10
        return table
    except BaseException:
        file.close()
        raise


def arrow_rows(
    batches: Iterable[pa.RecordBatch], wanted: Sequence[str] | None = None, before: int = 0
) -> Iterator[Row]:
    """Yield the rows of record batches; a row with text that is not UTF-8 has a fault."""
    number = before
    for batch in batches:
        batch = batch if wanted is None else batch.select(list(wanted))
        try:
            batch.validate(full=True)
            rows = batch.to_pylist()
        except (UnicodeDecodeError, pa.ArrowInvalid):
            rows = [_arrow_row(batch.slice(row, 1)) for row in range(batch.num_rows)]
        for row in rows:
            number += 1
            yield Row(f"row {number}", row or {}, "" if row is not None else "a text is not UTF-8")


def _arrow_row(batch: pa.RecordBatch) -> dict[str, Any] | None:
    try:
        row: dict[str, Any] = batch.to_pylist()[0]
    except UnicodeDecodeError:
        return None
    return row


def _open_parquet(path: Path, wanted: Sequence[str] | None, chosen: range | None) -> OpenTable:
    with explained(path):
        file = open_parquet(path)
        names = list(file.schema_arrow.names)

    def rows() -> Iterator[Row]:
        columns = names if wanted is None else [name for name in names if name in wanted]
        with explained(path):
            before = 0 if chosen is None else chosen.start
            yield from arrow_rows(batches(file, ROWS_PER_BATCH, columns, chosen), before=before)

    return OpenTable(str(path), names, rows())


# -- JSON lines ----------------------------------------------------------------------------------------------


def _begins_with_object(file: BinaryIO) -> bool:
    """Whether standard input holds JSON lines, by its first character."""
    peek = getattr(file, "peek", None)
    start = b"" if peek is None else peek(1)
    return bool(start.removeprefix(codecs.BOM_UTF8).lstrip()[:1] == b"{")


def _json_rows(file: BinaryIO, encoding: str | None) -> Iterator[Row]:
    """Yield the rows of JSON lines; skip blank lines."""
    for number, raw in enumerate(file, start=1):
        place = f"line {number}"
        try:
            text = raw.decode(encoding or ("utf-8-sig" if number == 1 else "utf-8"))
            if text.strip():
                yield Row(place, _json_object(text))
        except UnicodeDecodeError as error:
            reason = f"byte {error.start + 1} of the line is not {encoding or 'UTF-8'}; {ENCODING_HINT}"
            yield Row(place, {}, reason)
        except LookupError:
            raise _unknown_encoding(encoding) from None
        except json.JSONDecodeError as error:
            yield Row(place, {}, f"not JSON: {error.msg} at column {error.colno}")
        except ValueError as error:
            yield Row(place, {}, str(error))


def _json_object(text: str) -> dict[str, Any]:
    row = safe_json.loads(text)
    if not isinstance(row, dict):
        raise ValueError(f'found {type(row).__name__}, expected an object {{"id": …}}')
    if "\\ud" in text.lower():
        try:
            json.dumps(row, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("unpaired surrogate (\\ud8…); remove it") from None
    return row


# -- CSV and TSV ---------------------------------------------------------------------------------------------


class _Lines:
    """The lines of a text file; after a row that cannot be parsed, reading continues at its second line."""

    def __init__(self, file: Iterable[str]) -> None:
        self.file = iter(file)
        self.number = 0  # of the last line read
        self.row: list[str] = []  # the lines of the row being read
        self.again: deque[str] = deque()

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self.again.popleft() if self.again else next(self.file)
        self.number += 1
        self.row.append(line)
        return line

    def go_back(self) -> None:
        """Make all lines of this row but the first unread."""
        self.again.extendleft(reversed(self.row[1:]))
        self.number -= len(self.row) - 1


def _open_csv(file: BinaryIO, name: str, suffix: str, encoding: str | None) -> OpenTable:
    """Read the header; the first row of a CSV or TSV file."""
    if encoding is None:
        start = getattr(file, "peek")(2)[:2]  # noqa: B009 - BinaryIO lacks it, and all our files have it
        encoding = BYTE_ORDER_MARKS.get(start, "utf-8-sig")
    try:
        text = io.TextIOWrapper(file, encoding, errors="surrogateescape", newline="")
    except LookupError:
        raise _unknown_encoding(encoding) from None
    lines = _Lines(text)
    try:
        first = next(lines, "")
        lines.again.append(first)
        lines.number = 0
        delimiter = "\t" if suffix == ".tsv" else max(DELIMITERS, key=first.count)
        reader = csv.reader(lines, delimiter=delimiter, strict=True)
        header = [cell.strip() for cell in next(reader, [])]
    except (UnicodeError, csv.Error) as error:
        raise CatalogueError(f"the header cannot be read ({error}); {ENCODING_HINT}", name, 1) from None
    if not _is_encodable("".join(header)):
        raise CatalogueError(f"the header is not {_shown(encoding)}; {ENCODING_HINT}", name, 1)
    if not any(header):
        raise CatalogueError("empty; expected a header with the names of the columns", name)
    if twice := [cell for cell in header if cell and header.count(cell) > 1]:
        raise CatalogueError(f"the header names {twice[0]!r} twice; rename one of the columns", name, 1)
    return OpenTable(name, header, _csv_rows(reader, lines, header, encoding, name), text)


def _csv_rows(
    reader: Iterator[list[str]], lines: _Lines, header: list[str], encoding: str, name: str
) -> Iterator[Row]:
    """Yield the rows after the header; skip rows of empty cells."""
    number = 1
    while True:
        lines.row.clear()
        number, line, fault, cells = number + 1, lines.number + 1, "", [""]
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            fault = _csv_fault(error)
            lines.go_back()
        except UnicodeError as error:
            raise CatalogueError(f"not {encoding} ({error}); {ENCODING_HINT}", name, line) from None
        place = f"row {number}" if number == line else f"row {number} (line {line})"
        if fault:
            yield Row(place, {}, fault)
        elif any(map(str.strip, cells)):
            fault = _cells_fault(cells, header, encoding)
            named = zip(header, cells, strict=False)
            yield Row(place, {name: cell for name, cell in named if not fault or _is_encodable(cell)}, fault)


def _csv_fault(error: csv.Error) -> str:
    """Explain why a row cannot be parsed."""
    if "expected after" in str(error):
        return 'text follows a closing quote; write a quote inside a quoted cell as ""'
    return "a quoted cell has no closing quote" if "unexpected end" in str(error) else str(error)


def _cells_fault(cells: list[str], header: list[str], encoding: str) -> str:
    """Return what is wrong with the cells of a row, or nothing."""
    while len(cells) > len(header) and not cells[-1].strip():
        cells.pop()
    if len(cells) != len(header):
        found = "1 cell" if len(cells) == 1 else f"{len(cells)} cells"
        return f"{found}, expected {len(header)}"
    if _is_encodable("".join(cells)):
        return ""
    spoilt = next(i for i, cell in enumerate(cells) if not _is_encodable(cell))
    return f"column {header[spoilt]!r} is not {_shown(encoding)}; {ENCODING_HINT}"


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shown(encoding: str) -> str:
    return "UTF-8" if encoding.startswith("utf-8") else encoding


def _unknown_encoding(encoding: str | None) -> UsageError:
    return UsageError(f"encoding {encoding!r} is unknown; use one such as utf-8, cp1252 or utf-16")
