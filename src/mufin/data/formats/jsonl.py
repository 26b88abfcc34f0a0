"""JSONL: one object per line; the format for catalogues written by hand or by a script.

Arrow parses the file. If it fails, a line-by-line reader accepts harmless deviations (numbers as ids, a
single string for a list) and reports the line of any other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.json as pj

from mufin.data.formats import safe_json
from mufin.data.formats.schema import COLUMNS, REQUIRED, Kind, canonical
from mufin.errors import CatalogueError
from mufin.files.folder import temporary_path

BLOCK_BYTES = 16 << 20  # Arrow's limit; files with longer lines are read line by line
ROWS_PER_CHUNK = 50_000  # converted to Arrow at a time when reading line by line
FAST_READ_ERRORS = (pa.ArrowException, OSError, ValueError)  # raised by Arrow and `safe_json`

OnBadLine = Callable[[str, int], None]


def columns(path: Path) -> list[str]:
    """Return the keys of the first object; without one, those of a split, whose reader reports the error."""
    for _, text in _lines(path, lambda message, line: None):
        try:
            row = safe_json.loads(text)
        except ValueError:
            break
        return list(row) if isinstance(row, dict) else ["id", "labels"]
    return ["id", "labels"]


def read(path: Path, kind: Kind) -> pa.Table:
    """Read a table; a bad line raises a CatalogueError that names it."""
    return canonical(scan(path, kind, _raise_at(path)), kind, path)


def _raise_at(path: Path) -> OnBadLine:
    def on_bad_line(message: str, line: int) -> None:
        raise CatalogueError(message, path, line)

    return on_bad_line


def scan(path: Path, kind: Kind, on_bad_line: OnBadLine) -> pa.Table:
    """Read the good lines of a file; call `on_bad_line(message, line)` for each of the others."""
    try:
        table = _read_fast(path, COLUMNS[kind])
    except FAST_READ_ERRORS:
        table = _read_tolerant(path, kind, on_bad_line)
    optional = [name for name in table.column_names if name not in REQUIRED[kind]]
    return table.drop_columns([n for n in optional if table.column(n).null_count == table.num_rows])


def lines_of(path: Path, rows: Sequence[int], bad: Container[int] = ()) -> list[int]:
    """Return the line numbers (from 1) of rows (from 0); blank lines and `bad` lines hold no row."""
    wanted, found = set(rows), {}
    good = (line for line, _ in _lines(path, lambda message, line: None) if line not in bad)
    for row, line in enumerate(good):
        if row in wanted:
            found[row] = line
            if len(found) == len(wanted):
                break
    return [found[row] for row in rows]


def write(rows: Iterable[dict[str, Any]], path: Path) -> None:
    """Write one object per line, without null fields; the file appears only when it is complete."""
    temporary = temporary_path(path)
    try:
        with temporary.open("w", encoding="utf-8", newline="\n") as file:
            for row in rows:
                kept = {name: value for name, value in row.items() if value is not None}
                file.write(json.dumps(kept, ensure_ascii=False, default=str) + "\n")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table as dictionaries, converting a few thousand at a time."""
    for batch in table.to_batches(max_chunksize=8192):
        yield from batch.to_pylist()


def _read_fast(path: Path, columns: dict[str, pa.DataType]) -> pa.Table:
    """Read with Arrow: `columns` in their types, others as inferred."""
    known = pa.schema(list(columns.items()))
    table = _parse(path, known)
    others = [field for field in table.schema if field.name not in known.names]
    texts = [field.with_type(_dates_as_text(field.type)) for field in others]
    dates = [text for text, field in zip(texts, others, strict=True) if text.type != field.type]
    # Arrow infers dates from strings that look like dates; read those columns again as strings.
    return _parse(path, pa.schema([*known, *dates])) if dates else table


def _parse(path: Path, schema: pa.Schema) -> pa.Table:
    with path.open("rb") as file:
        lines = safe_json.SafeLines(file)
        table = pj.read_json(
            lines,
            read_options=pj.ReadOptions(block_size=BLOCK_BYTES),
            parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="infer"),
        )
    safe_json.check_types(table.schema)
    table.validate(full=True)  # the parser accepts bytes that are not UTF-8
    if table.num_rows != lines.count:
        raise ValueError("expected one object {…} per line")
    return table


def _dates_as_text(kind: pa.DataType) -> pa.DataType:
    """Replace every timestamp in a type with a string."""
    if pa.types.is_timestamp(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_dates_as_text(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_dates_as_text(field.type)) for field in kind])
    return kind


def _read_tolerant(path: Path, kind: Kind, on_bad_line: OnBadLine) -> pa.Table:
    known = COLUMNS[kind]
    chunks: list[pa.Table] = []
    batch: list[dict[str, Any]] = []
    for line, text in _lines(path, on_bad_line):
        try:
            batch.append(_parse_line(text, known, REQUIRED[kind]))
        except ValueError as error:
            on_bad_line(str(error), line)
        if len(batch) == ROWS_PER_CHUNK:
            chunks.append(_to_table(batch, known))
            batch = []
    chunks.append(_to_table(batch, known))
    return _concatenate(chunks)


def _lines(path: Path, on_bad_line: OnBadLine) -> Iterator[tuple[int, str]]:
    """Yield (line number, text) of every line that is UTF-8 and not blank."""
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                try:
                    text = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
                except UnicodeDecodeError as error:
                    message = f"byte {error.start + 1} of the line is not UTF-8; save the file as UTF-8"
                    on_bad_line(message, number)
                    continue
                if text:
                    yield number, text
    except OSError as error:
        raise CatalogueError(f"cannot be read: {error.strerror}", path) from None


def _parse_line(text: str, known: dict[str, pa.DataType], required: tuple[str, ...]) -> dict[str, Any]:
    """Parse one line, with known columns in their types; raise a ValueError that says what is wrong."""
    try:
        row = safe_json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from None
    if not isinstance(row, dict):
        raise ValueError(f'found {type(row).__name__}, expected an object {{"id": …}}')
    if "\\ud" in text.lower() and not _is_encodable(row):
        raise ValueError("unpaired surrogate (\\ud8…); remove it")
    for name in required:
        if row.get(name) is None:
            raise ValueError(f"no {name!r}; every line needs one")
    for name, wanted in known.items():
        if row.get(name) is not None:
            row[name] = _convert(name, row[name], wanted)
    return row


def _is_encodable(row: dict[str, Any]) -> bool:
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _convert(name: str, value: Any, wanted: pa.DataType) -> Any:
    if pa.types.is_integer(wanted):
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63:
            return value
        raise ValueError(f"{name!r} is {_abbreviate(value)}, expected an integer")
    if not pa.types.is_list(wanted):
        return _to_string(name, value)
    values = value if isinstance(value, list) else [value]
    return [_to_string(name, entry) for entry in values if entry is not None]


def _to_string(name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    raise ValueError(f"{name!r} is {_abbreviate(value)}, expected a string")


def _abbreviate(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else text[:39] + "…"


def _to_table(batch: list[dict[str, Any]], known: dict[str, pa.DataType]) -> pa.Table:
    names = list(known) + sorted({name for row in batch for name in row} - set(known))
    arrays = [_to_array([row.get(name) for row in batch], known.get(name)) for name in names]
    return pa.table(dict(zip(names, arrays, strict=True)))


def _to_array(values: list[Any], kind: pa.DataType | None) -> pa.Array:
    """Convert values to Arrow; mixed types in an unknown column become JSON text."""
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, OverflowError):
        return _to_json_texts(values)


def _to_json_texts(values: list[Any]) -> pa.Array:
    plain = [v if v is None or isinstance(v, str) else json.dumps(v, ensure_ascii=False) for v in values]
    return pa.array(plain, pa.string())


def _concatenate(chunks: list[pa.Table]) -> pa.Table:
    try:
        return pa.concat_tables(chunks, promote_options="permissive")
    except pa.ArrowException:  # the type of an unknown column differs between chunks
        names = dict.fromkeys(name for chunk in chunks for name in chunk.column_names)
        arrays = {name: [_column(chunk, name) for chunk in chunks] for name in names}
        return pa.table({name: _unify(chunks) for name, chunks in arrays.items()})


def _column(chunk: pa.Table, name: str) -> pa.Array:
    if name not in chunk.column_names:
        return pa.nulls(chunk.num_rows)
    return chunk.column(name).combine_chunks()


def _unify(arrays: list[pa.Array]) -> pa.ChunkedArray:
    kinds = {array.type for array in arrays if not pa.types.is_null(array.type)}
    if len(kinds) <= 1:
        kind = kinds.pop() if kinds else pa.null()
        return pa.chunked_array([array.cast(kind) for array in arrays], kind)
    return pa.chunked_array([_to_json_texts(array.to_pylist()) for array in arrays])
