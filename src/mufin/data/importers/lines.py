"""Files of one JSON object or Python literal a line, plain or `.gz`, read in blocks, the wanted fields alone.

A block goes through Arrow's parser at once. Where that gives up, the block is divided until the bad line
stands alone; it is mended if that is harmless, else counted and named, and the reading goes on.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Literal

import pyarrow as pa
import pyarrow.json as pj

from mufin.data import safe_json
from mufin.data.importers import literal
from mufin.data.problems import BadLines
from mufin.errors import CatalogueError
from mufin.progress import Progress

BLOCK = 8 << 20  # bytes read at a time
LONGEST = 64 << 20  # bytes; a longer line is no line
PARTS = 16  # a block that cannot be parsed falls into so many

Form = Literal["json", "literal"]


def read(
    path: Path,
    schema: pa.Schema,
    bad_lines: BadLines,
    progress: Progress,
    form: Form = "json",
) -> Iterator[pa.Table]:
    """The good lines of a file as tables of the columns of `schema`."""
    megabytes = max(1, path.stat().st_size >> 20)
    with progress.task(f"Reading {path.name} (MB)", megabytes) as task:
        shown = 0
        for first, block, position in _blocks(path):
            if block.strip():
                yield _Block(path.name, schema, bad_lines, form).table(block, first)
            task.advance((position >> 20) - shown)
            shown = position >> 20


def first_lines(path: Path) -> list[bytes]:
    """The first lines that are not blank, up to a hundred; an error when there are none."""
    for _, block, _ in _blocks(path):
        found = [line.strip() for line in block.splitlines() if line.strip()]
        if found:
            return found[:100]
    raise CatalogueError("empty; expected one object a line", path)


def _blocks(path: Path) -> Iterator[tuple[int, bytes, int]]:
    """(number of the first line, whole lines, bytes of the file read so far)."""
    line, rest = 1, b""
    try:
        with path.open("rb") as raw:
            file: BinaryIO = gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw  # type: ignore[assignment]  # a file too
            while chunk := file.read(BLOCK):
                cut = chunk.rfind(b"\n") + 1
                if not cut:
                    rest += chunk
                    if len(rest) > LONGEST:
                        raise CatalogueError(f"longer than {LONGEST >> 20} MB; is this the file?", path, line)
                    continue
                block, rest = rest + chunk[:cut], chunk[cut:]
                yield line, block, raw.tell()
                line += block.count(b"\n")
            yield line, rest, raw.tell()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        message = f"damaged or cut short after line {line:,} ({error}); download it again"
        raise CatalogueError(message, path) from None
    except OSError as error:
        raise CatalogueError(f"cannot be read: {error.strerror}", path) from None


class _Block:
    """Turns lines into a table, with a fault for each that cannot be used."""

    def __init__(self, file: str, schema: pa.Schema, bad_lines: BadLines, form: Form) -> None:
        self.file, self.schema, self.bad_lines, self.form = file, schema, bad_lines, form

    def table(self, block: bytes, first: int) -> pa.Table:
        """The good lines of a block whose first line has this number."""
        text = literal.to_json(block) if self.form == "literal" else block
        return pa.concat_tables([self.schema.empty_table(), *self._parsed(text, block, first)])

    def _parsed(self, text: bytes, raw: bytes, first: int) -> Iterator[pa.Table]:
        """`text` is `raw` as JSON, line for line."""
        if not text.strip():
            return
        try:
            yield _arrow(text, self.schema)
        except (pa.ArrowException, ValueError):
            lines, originals = text.rstrip(b"\n").split(b"\n"), raw.rstrip(b"\n").split(b"\n")
            if len(lines) == 1:
                yield from self._mended(originals[0], first)
                return
            size = -(-len(lines) // PARTS)
            for start in range(0, len(lines), size):
                part = slice(start, start + size)
                text, raw = b"\n".join(lines[part]), b"\n".join(originals[part])
                yield from self._parsed(text, raw, first + start)

    def _mended(self, line: bytes, number: int) -> Iterator[pa.Table]:
        try:
            row = _object(literal.evaluated(line) if self.form == "literal" else line)
            plain = {field.name: _as(row.get(field.name), field.type, field.name) for field in self.schema}
            yield pa.Table.from_pylist([plain], self.schema)
        except (ValueError, pa.ArrowException) as error:
            self.bad_lines.add(self.file, f"{error}; the line is left out", number)


def _arrow(text: bytes, schema: pa.Schema) -> pa.Table:
    count = safe_json.vet(text)
    table = pj.read_json(
        pa.BufferReader(text),
        read_options=pj.ReadOptions(use_threads=False, block_size=len(text) + 1),
        parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    )
    table.validate(full=True)  # the parser lets bytes that are not UTF-8 through
    if table.num_rows != count:
        raise ValueError("several objects on one line")
    return table.select(schema.names)


def _object(line: bytes) -> dict[str, Any]:
    try:
        row = safe_json.loads(line.decode("utf-8-sig"))
        json.dumps(row, ensure_ascii=False).encode()  # half a surrogate pair is no character
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error.msg})") from None
    except UnicodeError:
        raise ValueError("not UTF-8") from None
    if not isinstance(row, dict):
        raise ValueError("not an object such as {…}")
    return row


def _as(value: Any, wanted: pa.DataType, name: str) -> Any:
    """A value in the wanted type where nothing is lost: a number as text, a lone value as a list of one."""
    if value is None:
        return None
    if pa.types.is_list(wanted):
        values = value if isinstance(value, list) else [value] if value else []
        return [_as(entry, wanted.value_type, name) for entry in values]
    if pa.types.is_struct(wanted):
        if isinstance(value, dict):
            return {field.name: _as(value.get(field.name), field.type, name) for field in wanted}
    elif pa.types.is_integer(wanted):
        if isinstance(value, int) and abs(value) < 1 << 63:
            return value
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        return str(value)
    raise ValueError(f"{name!r} holds a {type(value).__name__}, expected {wanted}")
