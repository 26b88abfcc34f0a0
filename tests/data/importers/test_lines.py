"""Lines of JSON and of Python literals, good and bad; keys; curation against plain loops."""

from __future__ import annotations

import ast
import gzip
import json
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from mufin.data.check_report import BadLines
from mufin.data.importers import lines
from mufin.data.importers import lines as literal
from mufin.data.importers.amazon.curate import Curation, KeyIndex, Relation, curate, id_keys
from mufin.errors import CatalogueError, UsageError
from mufin.progress import Progress

SCHEMA = pa.schema({"id": pa.string(), "tags": pa.list_(pa.string()), "box": pa.struct({"n": pa.int64()})})


def read(path: Path, syntax: lines.Syntax = "json") -> tuple[list[dict[str, object]], BadLines]:
    bad_lines = BadLines()
    tables = list(lines.read(path, SCHEMA, bad_lines, Progress(quiet=True), syntax))
    return pa.concat_tables([SCHEMA.empty_table(), *tables]).to_pylist(), bad_lines


@pytest.mark.parametrize("block", [16, 50, 8 << 20])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_good_and_bad_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, suffix: str) -> None:
    monkeypatch.setattr(lines, "BLOCK_BYTES", block)
    raw = [
        b'{"id": "a", "tags": ["x", "y"], "other": {"deep": [1, {}]}}',
        b"",
        b'{"id": 7, "tags": "lone", "box": {"n": 3}}',
        b'{"id": "cut sho',
        b'{"id": "b", "tags": {"no": "list"}}',
        b'{"id": "\xff"}',
        b'{"id": "\\ud800"}',
        b"[1]",
        b'{"id": "c", "tags": [], "box": null}',
        b"[" * 5000,
        b'{"id": "d"}',
    ]
    path = tmp_path / f"x.json{suffix}"
    data = b"\n".join(raw)  # no newline at the end
    path.write_bytes(gzip.compress(data) if suffix else data)
    rows, bad_lines = read(path)
    assert [row["id"] for row in rows] == ["a", "7", "c", "d"]
    assert rows[1] == {"id": "7", "tags": ["lone"], "box": {"n": 3}}
    assert bad_lines.count == 6
    assert sorted(problem.line for problem in bad_lines.problems() for _ in range(problem.count)) == [
        4,
        5,
        6,
        6,
        8,
        10,
    ]
    wrong = next(problem for problem in bad_lines.problems() if problem.line == 5)
    assert "'tags' is a dict" in wrong.message


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.json.gz"
    path.write_bytes(gzip.compress(b'{"id": "a"}\n' * 100_000)[:-200])
    with pytest.raises(CatalogueError, match="download it again"):
        read(path)
    path.write_bytes(b"no gzip at all")
    with pytest.raises(CatalogueError, match="download it again"):
        read(path)
    (tmp_path / "empty").write_bytes(b"\n\n")
    with pytest.raises(CatalogueError, match="empty"):
        lines.first_lines(tmp_path / "empty")
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 100)
    monkeypatch.setattr(lines, "BLOCK_BYTES", 64)
    (tmp_path / "long").write_bytes(b"x" * 1000)
    with pytest.raises(CatalogueError, match="expected one object per line"):
        read(tmp_path / "long")


def test_literals_are_parsed_as_python_does() -> None:
    rng = random.Random(0)
    pieces = [
        "a",
        "'",
        '"',
        "\\",
        "\n",
        "\t",
        "é",
        "\x00",
        "\x7f",
        "😀",
        "None",
        "True",
        "}",
        "{",
        "#",
        " ",
        "\u2028",
        "\xad",
    ]

    def text() -> str:
        return "".join(rng.choices(pieces, k=rng.randrange(6)))

    values = [
        {
            text(): [text(), None, True, -1.5e-7, rng.randrange(99)],
            "n": {"x": text()},
            "None": False,
            text(): text(),
        }
        for _ in range(2000)
    ]
    block = "\n".join(map(repr, values)).encode()
    for value, line in zip(values, literal.to_json(block).split(b"\n"), strict=True):
        try:
            found = json.loads(line)
        except ValueError:  # only escapes that JSON lacks may fall back
            found = json.loads(literal.evaluate(repr(value).encode()))
        assert found == value
    odd = [b"('a', 'b')", b"{'a': 'b' 'c'}", b"{'a': u'x', 'b': [1,]}", b"{'a': '\\101\\N{BULLET}'}"]
    for line in odd:
        assert json.loads(literal.evaluate(line)) == json.loads(json.dumps(ast.literal_eval(line.decode())))


@pytest.mark.parametrize(
    "line", [b"__import__('os')", b"{'a': open('x')}", b"{'a': ", b"'" * 9, b"(" * 3000, b"\xff"]
)
def test_other_expressions_are_never_run(line: bytes) -> None:
    with pytest.raises(ValueError, match="not a Python literal"):
        literal.evaluate(line)


def test_different_ids_have_different_keys() -> None:
    rng = random.Random(1)
    alphabet = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_é "
    ids = list(
        {"".join(rng.choices(alphabet, k=rng.randrange(14))) for _ in range(20_000)}
        | {"", "0", "00", "0000000000"}
    )
    column = pa.array(["skipped", *ids])[1:]
    found = id_keys(column)
    assert len(set(found.tolist())) == len(ids)
    assert np.array_equal(found[::-1], id_keys(pa.array(ids[::-1])))
    index = KeyIndex(np.concatenate([found, found[:5]]))
    asked = id_keys(pa.array([ids[3], "nowhere", ids[0]]))
    assert index.rows(asked).tolist() == [3, -1, 0]
    assert KeyIndex(np.zeros(0, np.uint64)).rows(asked).tolist() == [-1, -1, -1]


def curate_with_loops(
    pairs: dict[int, list[int]], usable: set[int], in_test: list[bool], settings: Curation
) -> tuple[object, ...]:
    """Apply the same rules with dictionaries."""
    kept = {
        a: list(dict.fromkeys(b for b in others if b in usable and b != a))
        for a, others in pairs.items()
        if a in usable
    }
    while True:
        seen: dict[int, int] = {}
        for a, others in kept.items():
            for b in others:
                seen[b] = seen.get(b, 0) + (not in_test[a])
        less = {a: [b for b in others if seen[b] >= settings.min_points] for a, others in kept.items()}
        less = {a: others for a, others in less.items() if len(others) >= settings.min_labels}
        if less == kept:
            break
        kept = less
    labels = {b for others in kept.values() for b in others}
    hidden = {(a, a) for a in kept if a in labels}
    hidden |= {
        (a, b)
        for a, others in kept.items()
        for b in others
        if in_test[a] and not in_test[b] and a in kept.get(b, [])
    }
    train, test = (sorted(a for a in kept if in_test[a] == side) for side in (False, True))
    return train, test, sorted(labels), hidden, kept


@pytest.mark.parametrize("seed", range(6))
def test_curation_equals_plain_loops(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mufin.data.importers.amazon.curate.PAIRS_PER_BLOCK", 7)
    rng = np.random.default_rng(seed)
    n = 30
    pairs = {a: rng.integers(-1, n, rng.integers(0, 6)).tolist() for a in range(n)}
    pairs[3] = []
    offsets = np.concatenate([[0], np.cumsum([len(pairs[a]) for a in range(n)])])
    columns = np.array([b for a in range(n) for b in pairs[a]], np.int32)
    usable = rng.random(n) < 0.85
    settings = Curation(test=0.4, min_labels=1 + seed % 2, min_points=1 + seed % 3, seed=seed)
    relation = Relation(offsets, columns)
    found = curate(relation, usable.copy(), settings)
    in_test = (np.random.default_rng(seed).random(n) < 0.4).tolist()
    existing = {a: [b for b in others if b >= 0] for a, others in pairs.items()}
    train, test, labels, hidden, kept = curate_with_loops(
        existing, set(np.flatnonzero(usable)), in_test, settings
    )
    assert (found.train.tolist(), found.test.tolist(), found.labels.tolist()) == (train, test, labels)
    assert {tuple(pair) for pair in found.filter_pairs.tolist()} == hidden
    left = [columns[offsets[a] : offsets[a + 1]] for a in range(n)]
    assert {a: [b for b in row.tolist() if b >= 0] for a, row in enumerate(left) if (row >= 0).any()} == kept


def test_invalid_settings() -> None:
    for wrong in ({"test": 1.0}, {"pictures": 0}, {"min_labels": 0}):
        with pytest.raises(UsageError):
            Curation(**wrong)
