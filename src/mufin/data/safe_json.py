"""JSON that is safe to parse: one object per line, nested less deeply than parsers can bear.

Arrow's parser crashes on a block that begins with `null`, and where it infers types, on values nested some
ten thousand deep. So a cheap look at the bytes comes first: every line is blank or begins with `{` and ends
with `}`, and none nests deeper than `DEPTH`. In JSON `}` is followed by `{` only between two objects, so
nothing that Arrow can parse spans several such lines and is deeper than each of them.
"""

from __future__ import annotations

import io
import json
import re
from typing import Any

import numpy as np
import pyarrow as pa

DEPTH = 64
SHORT = 1024  # bytes; a line of no more cannot nest so deeply that a parser crashes
PIECE = 1 << 20  # bytes
STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
NEWLINE, RETURN, OPEN, CLOSE = b"\n\r{}"
FOLD, BRACKET, CLOSING = 0xDF, ord("["), ord("]")  # without the bit of FOLD, { is [ and } is ]


def vet(block: bytes | memoryview) -> int:
    """Count the lines of a block that are not blank; ValueError if one is not safe to hand to Arrow."""
    data = np.frombuffer(block, np.uint8)
    if not len(data):
        return 0
    ends = _where(data, 0xFF, NEWLINE)
    if data[-1] != NEWLINE:
        ends = np.append(ends, len(data))
    starts = np.concatenate([[0], ends[:-1] + 1])
    last = data[ends - 1]  # of an empty line something else; it is judged below
    last = np.where(last == RETURN, data[ends - 2], last)
    plain = (data[starts] == OPEN) & (last == CLOSE)
    odd = np.flatnonzero(~plain)
    blank = sum(_is_blank(bytes(block[starts[line] : ends[line]])) for line in odd)
    if (ends - starts).max() > SHORT:
        opens = np.searchsorted(_where(data, FOLD, BRACKET), ends)
        for line in np.flatnonzero(np.diff(opens, prepend=0) > DEPTH):
            check_depth(bytes(block[starts[line] : ends[line]]))
    return len(ends) - blank


def check_types(schema: pa.Schema) -> None:
    """ValueError if types nest deeper than DEPTH: what a short line can bring about."""
    kinds = [(field.type, 1) for field in schema]
    while kinds:
        kind, depth = kinds.pop()
        if depth > DEPTH:
            raise ValueError(f"nested more than {DEPTH} deep")
        kinds += [(kind.field(i).type, depth + 1) for i in range(kind.num_fields)]


def _where(data: np.ndarray, mask: int, value: int) -> np.ndarray:
    """Where the bytes, masked, have a value; piece by piece, which stay in a CPU's cache."""
    pieces = (data[start : start + PIECE] for start in range(0, len(data), PIECE))
    found = [np.flatnonzero((piece if mask == 0xFF else piece & mask) == value) for piece in pieces]
    return np.concatenate([places + i * PIECE for i, places in enumerate(found)])


def _is_blank(line: bytes) -> bool:
    """True for a blank line, False for an object between blanks."""
    line = line.strip(b" \t\r")
    if line and not (line.startswith(b"{") and line.endswith(b"}")):
        raise ValueError("not an object such as {…} on one line")
    return not line


def check_depth(text: bytes) -> None:
    """ValueError if brackets outside of strings nest deeper than DEPTH."""
    if text.count(b"[") + text.count(b"{") <= DEPTH:
        return
    folded = np.frombuffer(STRING.sub(b"", text), np.uint8) & FOLD
    steps = (folded == BRACKET).astype(np.int8) - (folded == CLOSING)
    if np.cumsum(steps, dtype=np.int64).max(initial=0) > DEPTH:
        raise ValueError(f"not usable: nested more than {DEPTH} deep")


def loads(text: bytes | str) -> Any:
    """Parse JSON under the depth limit; ValueError says what is wrong."""
    raw = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    check_depth(raw)
    try:
        return json.loads(text)
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise
    except ValueError:  # Python refuses to convert more digits than this
        raise ValueError("a number of more than 4,300 digits") from None


class VettedLines(io.RawIOBase):
    """A file of JSON lines for Arrow to read: whole lines only, each block vetted before it is handed out."""

    def __init__(self, file: io.BufferedIOBase) -> None:
        self.file = file
        self.rest = memoryview(b"")  # the beginning of a line whose end is still to be read
        self.count = 0  # lines so far that are not blank

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> memoryview:
        """The next whole lines, `size` bytes at most; ValueError if they are not safe or a line is longer."""
        block = memoryview(np.empty(max(size, 1), np.uint8).data)
        held = len(self.rest)
        block[:held] = self.rest
        block = block[: held + self.file.readinto(block[held:])]
        end = len(block) if len(block) < size else _after_last_line(block)
        block, self.rest = block[:end], block[end:]
        self.count += vet(block)
        return block


def _after_last_line(block: memoryview) -> int:
    """Where the last whole line of a block ends."""
    for size in (PIECE, len(block)):
        tail = bytes(block[-size:])
        if end := tail.rfind(b"\n") + 1:
            return len(block) - len(tail) + end
    raise ValueError(f"a line of more than {len(block):,} bytes")
