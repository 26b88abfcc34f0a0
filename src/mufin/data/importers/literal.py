"""Lines that are Python literals (Amazon 2014) made JSON, without running them.

Most strings have single quotes and nothing odd inside: they become JSON by doubling their quotes, a whole run
of them at a time. The others are rewritten on their own. Where that is no JSON, `ast.literal_eval` decides.
"""

from __future__ import annotations

import ast
import json
import re
from typing import Any

PIECE = re.compile(
    rb"""(?P<run>(?:[^'"\\]++|'[^'"\\\n]*+')++)"""  # no strings but plain ones
    rb"""|'(?P<single>(?:[^'\\\n]|\\.)*+)'|"(?P<double>(?:[^"\\\n]|\\.)*+)\""""
)
ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)|\"")
SIMPLE = {
    b"'": b"'", b'"': b'\\"', b"\\": b"\\\\",
    b"n": b"\\n", b"t": b"\\t", b"r": b"\\r", b"b": b"\\b", b"f": b"\\f",
}  # fmt: skip
CONSTANTS = ((b"True", b"true"), (b"False", b"false"), (b"None", b"null"))


def to_json(block: bytes) -> bytes:
    """Lines of literals as lines of JSON; a line that JSON cannot say so is left as something that is none.

    >>> to_json(b"{'asin': 'B01', 'title': \\"Kids' desk\\", 'price': None}")
    b'{"asin": "B01", "title": "Kids\\' desk", "price": null}'
    """
    return PIECE.sub(_piece, block)


def evaluated(line: bytes) -> bytes:
    """One line as JSON by Python's own reading of literals; ValueError when it is none."""
    try:
        value: Any = ast.literal_eval(line.decode("utf-8-sig").strip())
        return json.dumps(value).encode()
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise ValueError("not a Python literal") from None


def _piece(match: re.Match[bytes]) -> bytes:
    if match.lastgroup != "run":
        return b'"' + ESCAPE.sub(_escape, match.group(match.lastgroup or 0)) + b'"'
    run = match.group()
    if b"None" in run or b"True" in run or b"False" in run:
        outside = run.split(b"'")
        for python, name in CONSTANTS:
            outside[::2] = [piece.replace(python, name) for piece in outside[::2]]
        run = b"'".join(outside)
    return run.replace(b"'", b'"')


def _escape(match: re.Match[bytes]) -> bytes:
    code = match.group(1) or b'"'
    if code in SIMPLE:
        return SIMPLE[code]
    if len(code) > 1:
        return b"\\u" + code[1:].rjust(4, b"0")
    return b"\\" + code + b"\0"  # octal, \N{…}, \U…: not said in JSON, so that Python is asked
