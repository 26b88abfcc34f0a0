"""JSONL: one object a line; the format for writing a catalogue by hand or by a script.

Reading takes Arrow's parser and, where that gives up, a line-by-line pass that forgives what is harmless
(numbers as ids, a lone string for a list) and names the line of everything else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.json as pj

from mufin.data import safe_json
from mufin.data.formats.schema import COLUMNS, REQUIRED, Kind, canonical
from mufin.errors import CatalogueError
from mufin.temporary import beside

BLOCK = 16 << 20  # bytes; a line longer than this goes the slow way
ROWS = 50_000  # rows turned into Arrow at a time in the slow way
REFUSED = (pa.ArrowException, OSError, ValueError)  # what Arrow and the look before it raise

Report = Callable[[str, int], None]


def columns(path: Path) -> list[str]:
    """The keys of the first object; a file without one counts as a split, whose reader says what is wrong."""
    for _, text in _lines(path, lambda message, line: None):
        try:
            row = safe_json.loads(text)
        except ValueError:
            break
        return list(row) if isinstance(row, dict) else ["id", "labels"]
    return ["id", "labels"]


def read(path: Path, kind: Kind) -> pa.Table:
    """The table of a file; a bad line is a CatalogueError that names it."""

    def stop(message: str, line: int) -> None:
        raise CatalogueError(message, path, line)

    return canonical(scan(path, kind, stop), kind, path)


def read_any(path: Path) -> pa.Table:
    """The table of a file with columns of any names and types, each of one type; a bad line is named."""

    def stop(message: str, line: int) -> None:
        raise CatalogueError(message, path, line)

    try:
        return _fast(path, {})
    except REFUSED as error:
        for line, text in _lines(path, stop):
            try:
                _row(text, {}, ())
            except ValueError as trouble:
                stop(str(trouble), line)
        reason = str(error).strip().partition("\n")[0]
        raise CatalogueError(
            f"not readable as JSON lines ({reason}); give each column one type", path
        ) from None


def scan(path: Path, kind: Kind, report: Report) -> pa.Table:
    """The table of the good lines of a file; `report(message, line)` hears of the others."""
    try:
        table = _fast(path, COLUMNS[kind])
    except REFUSED:
        table = _slow(path, kind, report)
    optional = [name for name in table.column_names if name not in REQUIRED[kind]]
    return table.drop_columns([n for n in optional if table.column(n).null_count == table.num_rows])


def lines_of(path: Path, rows: Sequence[int], bad: Container[int] = ()) -> list[int]:
    """The lines, counted from 1, of rows counted from 0: blank lines and `bad` ones hold no row."""
    wanted, found = set(rows), {}
    good = (line for line, _ in _lines(path, lambda message, line: None) if line not in bad)
    for row, line in enumerate(good):
        if row in wanted:
            found[row] = line
            if len(found) == len(wanted):
                break
    return [found[row] for row in rows]


def write(rows: Iterable[dict[str, Any]], path: Path) -> None:
    """Write one object a line, without its empty fields; the file appears only when it is whole."""
    temporary = beside(path)
    try:
        with temporary.open("w", encoding="utf-8", newline="\n") as file:
            for row in rows:
                kept = {name: value for name, value in row.items() if value is not None}
                file.write(json.dumps(kept, ensure_ascii=False, default=str) + "\n")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    """The rows of a table as dictionaries, a few thousand of them in memory at a time."""
    for batch in table.to_batches(max_chunksize=8192):
        yield from batch.to_pylist()


def _fast(path: Path, columns: dict[str, pa.DataType]) -> pa.Table:
    """Arrow's own parser, with our columns in their types and the rest as found."""
    known = pa.schema(list(columns.items()))
    table = _arrow(path, known)
    others = [field for field in table.schema if field.name not in known.names]
    dates = [field.with_type(_as_text(field.type)) for field in others if _as_text(field.type) != field.type]
    # Arrow takes strings that look like dates for dates; read those columns again as what they are.
    return _arrow(path, pa.schema([*known, *dates])) if dates else table


def _arrow(path: Path, schema: pa.Schema) -> pa.Table:
    with path.open("rb") as file:
        lines = safe_json.VettedLines(file)
        table = pj.read_json(
            lines,
            read_options=pj.ReadOptions(block_size=BLOCK),
            parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="infer"),
        )
    safe_json.check_types(table.schema)
    table.validate(full=True)  # the parser lets bytes that are not UTF-8 through
    if table.num_rows != lines.count:
        raise ValueError("several objects on one line")
    return table


def _as_text(kind: pa.DataType) -> pa.DataType:
    """The type with every time stamp in it replaced by a string."""
    if pa.types.is_timestamp(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_as_text(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_as_text(field.type)) for field in kind])
    return kind


def _slow(path: Path, kind: Kind, report: Report) -> pa.Table:
    known = COLUMNS[kind]
    chunks: list[pa.Table] = []
    batch: list[dict[str, Any]] = []
    for line, text in _lines(path, report):
        try:
            batch.append(_row(text, known, REQUIRED[kind]))
        except ValueError as error:
            report(str(error), line)
        if len(batch) == ROWS:
            chunks.append(_table(batch, known))
            batch = []
    chunks.append(_table(batch, known))
    return _join(chunks)


def _lines(path: Path, report: Report) -> Iterator[tuple[int, str]]:
    """(line number, text) of every line that is not blank and is UTF-8."""
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                try:
                    text = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
                except UnicodeDecodeError as error:
                    report(f"byte {error.start + 1} of the line is not UTF-8; save the file as UTF-8", number)
                    continue
                if text:
                    yield number, text
    except OSError as error:
        raise CatalogueError(f"cannot be read: {error.strerror}", path) from None


def _row(text: str, known: dict[str, pa.DataType], required: tuple[str, ...]) -> dict[str, Any]:
    """One line as a dictionary with our columns in their types; ValueError says what is wrong with it."""
    try:
        row = safe_json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from None
    if not isinstance(row, dict):
        raise ValueError(f'found {type(row).__name__}, expected an object such as {{"id": …}}')
    if "\\ud" in text.lower() and not _encodes(row):
        raise ValueError("half of a surrogate pair (\\ud8…) is no character; remove it")
    for name in required:
        if row.get(name) is None:
            raise ValueError(f"no {name!r} here; every line needs one")
    for name, wanted in known.items():
        if row.get(name) is not None:
            row[name] = _value(name, row[name], wanted)
    return row


def _encodes(row: dict[str, Any]) -> bool:
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _value(name: str, value: Any, wanted: pa.DataType) -> Any:
    if pa.types.is_integer(wanted):
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63:
            return value
        raise ValueError(f"{name!r} is {_short(value)}, expected a whole number")
    if not pa.types.is_list(wanted):
        return _string(name, value)
    values = value if isinstance(value, list) else [value]
    return [_string(name, entry) for entry in values if entry is not None]


def _string(name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    raise ValueError(f"{name!r} holds {_short(value)}, expected a string")


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else text[:39] + "…"


def _table(batch: list[dict[str, Any]], known: dict[str, pa.DataType]) -> pa.Table:
    names = list(known) + sorted({name for row in batch for name in row} - set(known))
    arrays = [_array([row.get(name) for row in batch], known.get(name)) for name in names]
    return pa.table(dict(zip(names, arrays, strict=True)))


def _array(values: list[Any], kind: pa.DataType | None) -> pa.Array:
    """An Arrow array; values of several types in one extra column become their JSON text."""
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, OverflowError):
        return _texts(values)


def _texts(values: list[Any]) -> pa.Array:
    plain = [v if v is None or isinstance(v, str) else json.dumps(v, ensure_ascii=False) for v in values]
    return pa.array(plain, pa.string())


def _join(chunks: list[pa.Table]) -> pa.Table:
    try:
        return pa.concat_tables(chunks, promote_options="permissive")
    except pa.ArrowException:  # an extra column changes its type between chunks
        names = dict.fromkeys(name for chunk in chunks for name in chunk.column_names)
        pieces = {name: [_piece(chunk, name) for chunk in chunks] for name in names}
        return pa.table({name: _joined(arrays) for name, arrays in pieces.items()})


def _piece(chunk: pa.Table, name: str) -> pa.Array:
    if name not in chunk.column_names:
        return pa.nulls(chunk.num_rows)
    return chunk.column(name).combine_chunks()


def _joined(arrays: list[pa.Array]) -> pa.ChunkedArray:
    kinds = {array.type for array in arrays if not pa.types.is_null(array.type)}
    if len(kinds) <= 1:
        kind = kinds.pop() if kinds else pa.null()
        return pa.chunked_array([array.cast(kind) for array in arrays], kind)
    return pa.chunked_array([_texts(array.to_pylist()) for array in arrays])
