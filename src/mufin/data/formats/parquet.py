"""Parquet: the format for large catalogues, with the images inside."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mufin.data.formats.schema import Kind, canonical
from mufin.errors import CatalogueError
from mufin.files.folder import temporary_path

LAZY_BYTES = 1 << 30  # larger files keep their images on disk


def open_parquet(source: Path | pa.NativeFile) -> pq.ParquetFile:
    """Open a file whose row groups together have as many rows as the file; else raise ArrowInvalid."""
    file = pq.ParquetFile(source)
    metadata = file.metadata
    rows = sum(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))
    if rows != metadata.num_rows:  # reading a row group that claims 10¹¹ rows would never end
        raise pa.ArrowInvalid(f"row groups have {rows:,} rows, but the file {metadata.num_rows:,}")
    return file


def batches(
    file: pq.ParquetFile, size: int, columns: list[str], rows: range | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield all rows of a file, or these, in batches; read only the row groups that hold them."""
    metadata = file.metadata
    rows = range(metadata.num_rows) if rows is None else rows
    ends = np.cumsum([metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)])
    if not rows:
        return
    first, last = np.searchsorted(ends, [rows.start, rows.stop - 1], side="right").tolist()
    place = int(ends[first - 1]) if first else 0  # the row number of the next batch
    for batch in file.iter_batches(size, row_groups=range(first, last + 1), columns=columns):
        skipped = max(rows.start - place, 0)
        wanted = batch.slice(skipped, max(rows.stop - place - skipped, 0))
        place += batch.num_rows
        if wanted.num_rows:
            yield wanted
        if place >= rows.stop:
            return


def columns(path: Path) -> list[str]:
    """Read the column names from the footer."""
    with explained(path):
        return list(open_parquet(path).schema_arrow.names)


def read(path: Path, kind: Kind) -> pa.Table:
    """Read a table, without its images if they are too large for memory."""
    names = columns(path)
    if kind == "items" and keeps_pictures(path):
        names.remove("images")
    with explained(path):
        table = open_parquet(path).read(columns=names)
        table.validate(full=True)  # reading does not check that strings are UTF-8
    return canonical(table, kind, path)


def keeps_pictures(path: Path, most: int | None = None) -> bool:
    """Return whether images stay in the file: it holds more than `most` bytes (default LAZY_BYTES)."""
    with explained(path):
        file = open_parquet(path)
        schema, metadata = file.schema_arrow, file.metadata
        if "images" not in schema.names or "binary" not in str(schema.field("images").type):
            return False
        # The size of whole row groups: pyarrow aborts the process on metadata of a damaged column chunk.
        groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
        size = sum(int(group.total_byte_size) for group in groups)
        return size > (LAZY_BYTES if most is None else most)


def write(tables: Iterable[pa.Table], path: Path, rows_per_group: int = 1 << 17) -> None:
    """Write tables of one schema one after another; the file appears only when it is complete."""
    temporary = temporary_path(path)
    writer: pq.ParquetWriter | None = None
    try:
        for table in tables:
            if writer is None:
                writer = pq.ParquetWriter(temporary, table.schema, compression="zstd")
            writer.write_table(table, row_group_size=rows_per_group)
        if writer is not None:
            writer.close()
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Raise any error of Arrow as a CatalogueError that names the file."""
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise CatalogueError(f"not readable as Parquet ({reason}); write it again", path) from None
