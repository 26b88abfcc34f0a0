"""Check JSON before it is parsed: one object per line, limited nesting.

Arrow's parser crashes on a block that begins with `null` and, where it infers types, on values nested about
ten thousand levels deep. A cheap look at the bytes comes first: every line must be blank, or begin with `{`
and end with `}`, and nest at most `MAX_DEPTH` deep. In JSON, `}` is followed by `{` only between two objects,
so nothing that Arrow can parse spans several such lines and is deeper than each of them.
"""

from __future__ import annotations

import io
import json
import re
from typing import Any

import numpy as np
import pyarrow as pa

MAX_DEPTH = 64
SHORT_LINE_BYTES = 1024  # a line of this length cannot nest deeply enough to crash a parser
CHUNK_BYTES = 1 << 20  # searched at a time, to stay in the CPU cache
JSON_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
NEWLINE, RETURN, OPEN, CLOSE = b"\n\r{}"
BRACKET_MASK, BRACKET, CLOSING = 0xDF, ord("["), ord("]")  # masked, { equals [ and } equals ]
NO_MASK = 0xFF


def count_lines(block: bytes | memoryview) -> int:
    """Count the lines that are not blank; ValueError if one is not safe for Arrow to parse."""
    data = np.frombuffer(block, np.uint8)
    if not len(data):
        return 0
    ends = _find(data, NO_MASK, NEWLINE)
    if data[-1] != NEWLINE:
        ends = np.append(ends, len(data))
    starts = np.concatenate([[0], ends[:-1] + 1])
    last = data[ends - 1]  # for an empty line, that of another line; such lines are odd below
    last = np.where(last == RETURN, data[np.maximum(ends - 2, 0)], last)
    plain = (data[starts] == OPEN) & (last == CLOSE)
    odd = np.flatnonzero(~plain)
    blank = sum(_is_blank(bytes(block[starts[line] : ends[line]])) for line in odd)
    if (ends - starts).max() > SHORT_LINE_BYTES:
        opens = np.searchsorted(_find(data, BRACKET_MASK, BRACKET), ends)
        for line in np.flatnonzero(np.diff(opens, prepend=0) > MAX_DEPTH):
            check_depth(bytes(block[starts[line] : ends[line]]))
    return len(ends) - blank


def check_types(schema: pa.Schema) -> None:
    """Raise a ValueError if types nest deeper than MAX_DEPTH, which a short line can cause."""
    kinds = [(field.type, 1) for field in schema]
    while kinds:
        kind, depth = kinds.pop()
        if depth > MAX_DEPTH:
            raise ValueError(f"nested more than {MAX_DEPTH} levels deep")
        kinds += [(kind.field(i).type, depth + 1) for i in range(kind.num_fields)]


def _find(data: np.ndarray, mask: int, value: int) -> np.ndarray:
    """Return the positions of the bytes that, masked, equal a value."""
    chunks = (data[start : start + CHUNK_BYTES] for start in range(0, len(data), CHUNK_BYTES))
    found = [np.flatnonzero((chunk if mask == NO_MASK else chunk & mask) == value) for chunk in chunks]
    return np.concatenate([positions + i * CHUNK_BYTES for i, positions in enumerate(found)])


def _is_blank(line: bytes) -> bool:
    """Return whether a line is blank; ValueError if it is neither blank nor an object."""
    line = line.strip(b" \t\r")
    if line and not (line.startswith(b"{") and line.endswith(b"}")):
        raise ValueError("expected one object {…} per line")
    return not line


def check_depth(text: bytes) -> None:
    """Raise a ValueError if brackets outside strings nest deeper than MAX_DEPTH."""
    if text.count(b"[") + text.count(b"{") <= MAX_DEPTH:
        return
    folded = np.frombuffer(JSON_STRING.sub(b"", text), np.uint8) & BRACKET_MASK
    steps = (folded == BRACKET).astype(np.int8) - (folded == CLOSING)
    if np.cumsum(steps, dtype=np.int64).max(initial=0) > MAX_DEPTH:
        raise ValueError(f"nested more than {MAX_DEPTH} levels deep")


def loads(text: bytes | str) -> Any:
    """Parse JSON of limited depth; raise a ValueError that says what is wrong."""
    raw = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    check_depth(raw)
    try:
        return json.loads(text)
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise
    except ValueError:  # Python converts at most 4,300 digits
        raise ValueError("number of more than 4,300 digits") from None


class SafeLines(io.RawIOBase):
    """A file of JSON lines for Arrow to read: whole lines only, checked block by block."""

    def __init__(self, file: io.BufferedIOBase) -> None:
        self.file = file
        self.rest = memoryview(b"")  # the start of a line whose end has not been read yet
        self.count = 0  # lines read that are not blank

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> memoryview:
        """Read the next whole lines, at most `size` bytes; ValueError if one is unsafe or longer."""
        block = memoryview(np.empty(max(size, 1), np.uint8).data)
        held = len(self.rest)
        block[:held] = self.rest
        block = block[: held + self.file.readinto(block[held:])]
        end = len(block) if len(block) < size else _end_of_last_line(block)
        block, self.rest = block[:end], block[end:]
        self.count += count_lines(block)
        return block


def _end_of_last_line(block: memoryview) -> int:
    """Return the position after the last whole line of a block."""
    for size in (CHUNK_BYTES, len(block)):
        tail = bytes(block[-size:])
        if end := tail.rfind(b"\n") + 1:
            return len(block) - len(tail) + end
    raise ValueError(f"line of more than {len(block):,} bytes")
