"""Lines of JSON and of Python literals, read in blocks."""

from __future__ import annotations

import ast
import gzip
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Literal

import pyarrow as pa
import pyarrow.json as pj

from mufin.data.check_report import BadLines
from mufin.data.formats import safe_json
from mufin.errors import CatalogueError
from mufin.progress import Progress

BLOCK_BYTES = 8 << 20  # read at a time
MAX_LINE_BYTES = 64 << 20  # a longer line is an error
PARTS_PER_RETRY = 16  # a block that cannot be parsed is divided into this many
FIRST_LINES = 100  # first lines, one of which must reveal the format

Syntax = Literal["json", "literal"]


def read(
    path: Path,
    schema: pa.Schema,
    bad_lines: BadLines,
    progress: Progress,
    syntax: Syntax = "json",
) -> Iterator[pa.Table]:
    """Yield the good lines of a file as tables with the columns of `schema`; count the bad lines."""
    parser = _BlockParser(path.name, schema, bad_lines, syntax)
    megabytes = max(1, path.stat().st_size >> 20)
    with progress.task(f"Reading {path.name} (MB)", megabytes) as task:
        shown = 0
        for first, block, position in _blocks(path):
            if block.strip():
                yield parser.parse(block, first)
            task.advance((position >> 20) - shown)
            shown = position >> 20


def first_lines(path: Path) -> list[bytes]:
    """Return the first lines that are not blank; raise an error if there are none."""
    for _, block, _ in _blocks(path):
        found = [line.strip() for line in block.splitlines() if line.strip()]
        if found:
            return found[:FIRST_LINES]
    raise CatalogueError("empty; expected one object per line", path)


def _blocks(path: Path) -> Iterator[tuple[int, bytes, int]]:
    """Yield (number of the first line, whole lines, bytes of the file read so far)."""
    line, rest = 1, b""
    try:
        with path.open("rb") as raw:
            file: BinaryIO = gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw  # type: ignore[assignment]  # GzipFile is file-like
            while chunk := file.read(BLOCK_BYTES):
                cut = chunk.rfind(b"\n") + 1
                if not cut:
                    rest += chunk
                    if len(rest) > MAX_LINE_BYTES:
                        message = f"longer than {MAX_LINE_BYTES >> 20} MB; expected one object per line"
                        raise CatalogueError(message, path, line)
                    continue
                block, rest = rest + chunk[:cut], chunk[cut:]
                yield line, block, raw.tell()
                line += block.count(b"\n")
            yield line, rest, raw.tell()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        message = f"damaged or truncated after line {line:,} ({error}); download it again"
        raise CatalogueError(message, path) from None
    except OSError as error:
        raise CatalogueError(f"cannot be read: {error.strerror}", path) from None


class _BlockParser:
    """Parse blocks of lines as tables; count the lines that cannot be used."""

    def __init__(self, file: str, schema: pa.Schema, bad_lines: BadLines, syntax: Syntax) -> None:
        self.file, self.schema, self.bad_lines, self.syntax = file, schema, bad_lines, syntax

    def parse(self, block: bytes, first: int) -> pa.Table:
        """Return the good lines of a block whose first line has the number `first`."""
        text = to_json(block) if self.syntax == "literal" else block
        return pa.concat_tables([self.schema.empty_table(), *self._tables(text, block, first)])

    def _tables(self, text: bytes, raw: bytes, first: int) -> Iterator[pa.Table]:
        """Parse `text`, which is `raw` as JSON, line for line; divide it if Arrow refuses it."""
        if not text.strip():
            return
        try:
            yield _parse_json(text, self.schema)
        except (pa.ArrowException, ValueError):
            lines, originals = text.rstrip(b"\n").split(b"\n"), raw.rstrip(b"\n").split(b"\n")
            if len(lines) == 1:
                yield from self._convert_line(originals[0], first)
                return
            size = -(-len(lines) // PARTS_PER_RETRY)
            for start in range(0, len(lines), size):
                part = slice(start, start + size)
                text, raw = b"\n".join(lines[part]), b"\n".join(originals[part])
                yield from self._tables(text, raw, first + start)

    def _convert_line(self, line: bytes, number: int) -> Iterator[pa.Table]:
        """Yield one line as a table, its values converted; count it if that fails."""
        try:
            row = _load_object(evaluate(line) if self.syntax == "literal" else line)
            values = {f.name: _convert(row.get(f.name), f.type, f.name) for f in self.schema}
            yield pa.Table.from_pylist([values], self.schema)
        except (ValueError, pa.ArrowException) as error:
            self.bad_lines.add(self.file, f"{error}; line skipped", number)


def _parse_json(text: bytes, schema: pa.Schema) -> pa.Table:
    count = safe_json.count_lines(text)
    table = pj.read_json(
        pa.BufferReader(text),
        read_options=pj.ReadOptions(use_threads=False, block_size=len(text) + 1),
        parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    )
    table.validate(full=True)  # the parser accepts bytes that are not UTF-8
    if table.num_rows != count:
        raise ValueError("expected one object {…} per line")
    return table.select(schema.names)


def _load_object(line: bytes) -> dict[str, Any]:
    try:
        row = safe_json.loads(line.decode("utf-8-sig"))
        json.dumps(row, ensure_ascii=False).encode()  # fails on half a surrogate pair
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error.msg})") from None
    except UnicodeError:
        raise ValueError("not UTF-8") from None
    if not isinstance(row, dict):
        raise ValueError("expected an object {…}")
    return row


def _convert(value: Any, wanted: pa.DataType, name: str) -> Any:
    """Convert a value without loss: a number to text, a single value to a list of one."""
    if value is None:
        return None
    if pa.types.is_list(wanted):
        values = value if isinstance(value, list) else [value] if value else []
        return [_convert(entry, wanted.value_type, name) for entry in values]
    if pa.types.is_struct(wanted):
        if isinstance(value, dict):
            return {field.name: _convert(value.get(field.name), field.type, name) for field in wanted}
    elif pa.types.is_integer(wanted):
        if isinstance(value, int) and abs(value) < 1 << 63:
            return value
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        return str(value)
    raise ValueError(f"{name!r} is a {type(value).__name__}, expected {wanted}")


PIECE = re.compile(
    rb"""(?P<run>(?:[^'"\\]++|'[^'"\\\n]*+')++)"""  # text with plain strings only
    rb"""|'(?P<single>(?:[^'\\\n]|\\.)*+)'|"(?P<double>(?:[^"\\\n]|\\.)*+)\""""
)
ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)|\"")
SIMPLE_ESCAPES = {
    b"'": b"'", b'"': b'\\"', b"\\": b"\\\\",
    b"n": b"\\n", b"t": b"\\t", b"r": b"\\r", b"b": b"\\b", b"f": b"\\f",
}  # fmt: skip
CONSTANTS = ((b"True", b"true"), (b"False", b"false"), (b"None", b"null"))


def to_json(block: bytes) -> bytes:
    """Convert lines of literals to lines of JSON; a line with rare escapes becomes invalid JSON.

    >>> to_json(b"{'asin': 'B01', 'title': \\"Kids' desk\\", 'price': None}")
    b'{"asin": "B01", "title": "Kids\\' desk", "price": null}'
    """
    return PIECE.sub(_convert_piece, block)


def evaluate(line: bytes) -> bytes:
    """Convert one line to JSON with `ast.literal_eval`; ValueError if it is not a literal."""
    try:
        value: Any = ast.literal_eval(line.decode("utf-8-sig").strip())
        return json.dumps(value).encode()
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise ValueError("not a Python literal") from None


def _convert_piece(match: re.Match[bytes]) -> bytes:
    if match.lastgroup != "run":
        return b'"' + ESCAPE.sub(_convert_escape, match.group(match.lastgroup or 0)) + b'"'
    run = match.group()
    if b"None" in run or b"True" in run or b"False" in run:
        outside = run.split(b"'")
        for python, name in CONSTANTS:
            outside[::2] = [piece.replace(python, name) for piece in outside[::2]]
        run = b"'".join(outside)
    return run.replace(b"'", b'"')


def _convert_escape(match: re.Match[bytes]) -> bytes:
    code = match.group(1) or b'"'
    if code in SIMPLE_ESCAPES:
        return SIMPLE_ESCAPES[code]
    if len(code) > 1:
        return b"\\u" + code[1:].rjust(4, b"0")
    return b"\\" + code + b"\0"  # octal, \N{…}, \U…: make the line invalid, so that it is evaluated
