"""Convert lines of Python literals (Amazon 2014) to JSON, without running them.

Most strings have single quotes and no escapes: replacing the quotes makes them JSON, a whole run of strings
at a time. Other strings are rewritten one by one. A line that is still not JSON goes through `literal_eval`.
"""

from __future__ import annotations

import ast
import json
import re
from typing import Any

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
