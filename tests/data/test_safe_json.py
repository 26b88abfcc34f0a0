"""JSON lines that would crash a parser are refused, with file and line; all others pass."""

from __future__ import annotations

import gzip
import io
import shutil
from pathlib import Path

import pytest

from apart import read_apart
from mufin.data.formats import safe_json

SAMPLES = Path(__file__).resolve().parents[1] / "samples"
GOOD = b'{"id": "a"}\n'
DEEP = b'{"id": "b", "x": ' + b"[" * 200_000 + b"]" * 200_000 + b"}\n"


def test_lines_that_crash_parsers(tmp_path: Path) -> None:
    cases = {
        "first": (b"null\n" + GOOD, "items.jsonl:1: found NoneType, expected an object"),
        "only": (b"null", "items.jsonl:1: found NoneType"),
        "deep": (GOOD + DEEP, "items.jsonl:2: nested more than 64 levels deep"),
        "spread": (b'{"a":\n' * 100_000, "items.jsonl:1: not JSON"),
        "short": (b'{"id": "a", "x": ' + b"[" * 100 + b"]" * 100 + b"}", "items.jsonl:1: nested"),
        "two": (GOOD.strip() + GOOD, "items.jsonl:1: not JSON: Extra data"),
        "digits": (b'{"id": ' + b"9" * 5000 + b"}", "items.jsonl:1: number of more than 4,300 digits"),
    }
    for name, (raw, _) in cases.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "items.jsonl").write_bytes(raw)
    said = read_apart("read", *(tmp_path / name for name in cases))
    for line, (_, message) in zip(said, cases.values(), strict=True):
        assert message in line


def test_imported_lines_that_crash_parsers(tmp_path: Path) -> None:
    products = (SAMPLES / "amazon" / "meta-2023.jsonl").read_bytes()
    points = gzip.decompress((SAMPLES / "xc" / "trn.json.gz").read_bytes())
    for number, line in enumerate((b"null\n", b"null}\n", DEEP)):
        (tmp_path / f"{number}.json").write_bytes(line + products + line)
        shutil.copytree(SAMPLES / "xc", tmp_path / f"xc-{number}")
        (tmp_path / f"xc-{number}" / "trn.json.gz").write_bytes(gzip.compress(line + points))
        (tmp_path / f"{number}.jsonl").write_bytes(line + GOOD)
    assert read_apart("from_amazon", *sorted(tmp_path.glob("?.json"))) == ["read"] * 3
    said = read_apart("from_xc", *sorted(tmp_path.glob("xc-?")))
    expected = ["expected an object", "not JSON", "nested more than 64 levels deep"]
    for line, message in zip(said, expected, strict=True):
        assert f"trn.json.gz:1: {message}" in line
    tables = sorted(tmp_path.glob("?.jsonl"))
    assert read_apart("from_table", *tables) == ["read"] * 3  # bad rows are skipped
    for number, line in enumerate(read_apart("from_table, strict", *tables)):
        assert f"{number}.jsonl" in line
        assert "line 1" in line


@pytest.mark.parametrize(
    ("block", "count"),
    [
        (b"", 0),
        (b"\n\r\n \t\n", 0),
        (b'{"a": 1}', 1),
        (b'{"a": 1}\r\n\r\n  {"a": 2} \n', 2),
        (b'{"a": "' + b"[" * 2000 + b'"}\n', 1),
        (b'{"a": "\\"' + b"[{" * 2000 + b'"}', 1),
        (b'{"a": [' + b"{}," * 2000 + b"{}]}\n", 1),
        (b'{"a": ' + b"[" * 63 + b"]" * 63 + b"}" + b" " * 2000, 1),
    ],
)
def test_safe_lines_are_counted(block: bytes, count: int) -> None:
    assert safe_json.count_lines(block) == count
    assert safe_json.count_lines(memoryview(block)) == count


@pytest.mark.parametrize(
    "block",
    [
        b"null",
        b"\rnull\n",
        b'{"a": 1}\nnull',
        b'{"a":\n1}',
        b"[1]\n",
        b'{"a": ' + b"[" * 64 + b"]" * 64 + b"}" + b" " * 2000,
        b'{"a": "\\\\", "b": ' + b"[" * 2000 + b"]" * 2000 + b"}",
    ],
)
def test_unsafe_lines_are_refused(block: bytes) -> None:
    with pytest.raises(ValueError, match="expected one object|nested more than 64 levels deep"):
        safe_json.count_lines(block)


@pytest.mark.parametrize("size", [20, 64, 1 << 20])
def test_safe_lines_are_whole_lines(size: int) -> None:
    raw = b"".join(b'{"id": "%d"}\r\n\n' % number for number in range(50)) + b'{"id": "last"}'
    lines = safe_json.SafeLines(io.BytesIO(raw))
    blocks = list(iter(lambda: bytes(lines.read(size)), b""))
    assert b"".join(blocks) == raw
    assert lines.count == 51
    assert all(len(block) <= size and block.endswith(b"\n") for block in blocks[:-1])
    with pytest.raises(ValueError, match="line of more than 5 bytes"):
        safe_json.SafeLines(io.BytesIO(raw)).read(5)
