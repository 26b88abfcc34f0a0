"""Read CSV, TSV, Parquet or JSON-lines tables; `tabular.py` builds the catalogue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv

from mufin.data.catalogue import Catalogue
from mufin.data.formats import jsonl, parquet
from mufin.data.formats.schema import STRING
from mufin.data.importers.tabular import Columns, SourceTable, from_tables
from mufin.data.problems import BadLines
from mufin.errors import CatalogueError

SUFFIXES = (".csv", ".tsv", ".parquet", ".jsonl")
HEADER_BLOCK = 1 << 20  # bytes read to find the column names


def read_tables(paths: Sequence[Path], columns: Columns) -> Catalogue:
    """Read these files as a catalogue; each of several files is a split, named after the file."""
    bad_lines = BadLines()
    tables = [
        SourceTable(
            path.stem if len(paths) > 1 else None,
            _read_table(path, columns, bad_lines),
            path.parent,
            path=path,
        )
        for path in paths
    ]
    catalogue = from_tables(tables, columns)
    if catalogue.imported is not None:
        catalogue.imported.counts["bad lines"] = bad_lines.count
        catalogue.imported.problems = [*bad_lines.problems(), *catalogue.imported.problems]
    return catalogue


def _read_table(path: Path, columns: Columns, bad_lines: BadLines) -> pa.Table:
    """Read the wanted columns of a file."""
    if not path.is_file():
        raise CatalogueError(f"no such file; expected one of {', '.join(SUFFIXES)}", path)
    match path.suffix:
        case ".parquet":
            columns.check(parquet.columns(path), path)
            return parquet.read_columns(path, columns.wanted)
        case ".csv" | ".tsv":
            return _read_csv(path, columns, bad_lines)
        case ".jsonl":
            table = jsonl.read_any(path)
            columns.check(table.column_names, path)
            return table.select(columns.wanted)
        case _:
            raise CatalogueError(f"unknown format; expected one of {', '.join(SUFFIXES)}", path)


def _read_csv(path: Path, columns: Columns, bad_lines: BadLines) -> pa.Table:
    """Read a CSV or TSV file; count and skip rows with too many or too few cells."""

    def count_and_skip(row: Any) -> str:
        message = f"{row.actual_columns} cells, expected {row.expected_columns}; row skipped"
        bad_lines.add(path.name, message, row.number)
        return "skip"

    def parsing(bad_row: Callable[[Any], str]) -> pa_csv.ParseOptions:
        delimiter = "\t" if path.suffix == ".tsv" else ","
        return pa_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True, invalid_row_handler=bad_row)

    try:
        with path.open("rb") as file:
            options = pa_csv.ReadOptions(use_threads=False, block_size=HEADER_BLOCK)
            names = pa_csv.open_csv(file, options, parsing(lambda row: "skip")).schema.names
        columns.check(names, path)
        types = pa_csv.ConvertOptions(
            column_types=dict.fromkeys(columns.wanted, STRING),
            include_columns=columns.wanted,
            strings_can_be_null=True,
        )
        options = pa_csv.ReadOptions(use_threads=False)
        return pa_csv.read_csv(path, options, parsing(count_and_skip), types)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> CatalogueError:
    """Return the error for a CSV file that Arrow refuses; name the first line that is not UTF-8."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                line.decode()
            except UnicodeDecodeError as wrong:
                message = f"byte {wrong.start + 1} of the line is not UTF-8; save the file as UTF-8"
                return CatalogueError(message, path, number)
    return CatalogueError(f"not readable as a table ({error}); save it as UTF-8 CSV", path)
