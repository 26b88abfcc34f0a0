"""Unreadable input raises one sentence with file and line; harmless deviations are accepted."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mufin.data.catalogue import Catalogue
from mufin.data.check import check
from mufin.data.formats import jsonl
from mufin.data.item import Item
from mufin.errors import CatalogueError

Folder = Callable[..., Path]
ITEMS = [{"id": "a", "title": "A"}, {"id": "b", "title": "B"}]
GOOD = b'{"id": "a", "title": "A"}\n'


def test_missing_folder_and_missing_items(tmp_path: Path, folder: Folder) -> None:
    with pytest.raises(CatalogueError, match="nowhere: no such folder"):
        Catalogue.read(tmp_path / "nowhere")
    (tmp_path / "shop.csv").write_text("title\n")
    with pytest.raises(CatalogueError, match="a file, but .* mufin import table .*shop.csv -o DIR"):
        Catalogue.read(tmp_path / "shop.csv")
    told = (
        r"no items.jsonl or items.parquet \(found: shop.csv\); if it is no catalogue, .*table .*shop.csv -o"
    )
    with pytest.raises(CatalogueError, match=told):
        Catalogue.read(tmp_path)
    assert re.search(told, check(tmp_path).problems[0].message)
    with pytest.raises(CatalogueError, match=r"no items.jsonl or items.parquet \(found: train.jsonl\)"):
        Catalogue.read(folder(train=[{"id": "a", "labels": []}]))


def test_the_same_table_twice(folder: Folder) -> None:
    path = folder(items=ITEMS)
    pq.write_table(pa.table({"id": ["a"]}), path / "items.parquet")
    with pytest.raises(CatalogueError, match="exists, too; remove one"):
        Catalogue.read(path)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (b'{"id": "b", \n', "items.jsonl:3: not JSON: "),
        (b'["b"]\n', "items.jsonl:3: found list, expected an object"),
        (b'{"title": "B"}\n', "items.jsonl:3: missing id"),
        (b'{"id": null}\n', "items.jsonl:3: missing id"),
        (b'{"id": "b", "title": "\xff"}\n', "items.jsonl:3: byte 23 of the line is not UTF-8"),
        (b'{"id": "b", "\xff": 1}\n', "items.jsonl:3: byte 14 of the line is not UTF-8"),
        (b'{"id": "\\ud800"}\n', "items.jsonl:3: unpaired surrogate"),
        (b'{"id": ["b"]}\n', "items.jsonl:3: 'id' is \\[\"b\"\\], expected a string"),
        (b'{"id": "b", "texts": [{"x": 1}]}\n', "items.jsonl:3: 'texts' is"),
        (b'{"id": "a"}\n', "items.jsonl:3: id 'a' is not unique"),
        (b"\x00\x01\x02\n", "items.jsonl:3: not JSON"),
        (b"[" * 100_000 + b"\n", "items.jsonl:3: nested more than 64 levels deep"),
    ],
)
def test_a_bad_line_is_named(folder: Folder, second: bytes, message: str) -> None:
    with pytest.raises(CatalogueError, match=message):
        Catalogue.read(folder(items=GOOD + b"\n" + second))


def test_harmless_deviations_are_accepted(folder: Folder) -> None:
    lines = [
        b'\xef\xbb\xbf{"id": 1, "title": 7, "size": 3}',
        b'{"id": "b", "texts": "lone", "images": "p.png", "size": "large"}',
        b"",
        b'{"id": 2.5, "texts": [null, "x", 4], "size": [1]}',
    ]
    items = Catalogue.read(folder(items=b"\r\n".join(lines))).items
    assert [item.id for item in items] == ["1", "b", "2.5"]
    assert [item.texts for item in items] == [("7",), ("lone",), ("x", "4")]
    assert items[1].images[0] == items.pictures.folder / "p.png"
    assert items.table.column("size").to_pylist() == ["3", "large", "[1]"]


def test_deviations_in_different_chunks_are_accepted(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "ROWS_PER_CHUNK", 2)
    rows = [
        {"id": 1, "x": 1},
        {"id": 2, "x": 2},
        {"id": "c", "x": "three", "y": 1},
        {"id": "d"},
        {"id": "e", "x": [5]},
    ]
    table = Catalogue.read(folder(items=rows)).items.table
    assert table.column("x").to_pylist() == ["1", "2", "three", None, "[5]"]
    assert table.column("y").to_pylist() == [None, None, 1, None, None]


def test_a_line_of_twenty_megabytes(folder: Folder) -> None:
    path = folder(items=[{"id": "a", "title": "x" * 20_000_000}, {"id": "b", "title": "y" * 1_000_000}])
    items = Catalogue.read(path).items
    assert [len(item.texts[0]) for item in items] == [20_000_000, 1_000_000]


def test_empty_texts_and_empty_items_are_kept(folder: Folder) -> None:
    items = Catalogue.read(
        folder(items=[{"id": "a", "texts": [""]}, {"id": "b"}, {"id": "c", "title": None}])
    ).items
    assert [item.is_empty for item in items] == [True, True, True]
    assert items.flat_texts()[0].tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("raw", [b"", b"\n", b"\n\n", b" \r\n"])
def test_empty_files_are_empty_tables(folder: Folder, raw: bytes) -> None:
    catalogue = Catalogue.read(folder(items=raw, train=raw))
    assert len(catalogue.items) == 0
    assert len(catalogue.split("train")) == 0


def test_unknown_ids_are_named_with_their_line(folder: Folder) -> None:
    rows = [{"id": "a", "labels": ["b"]}, {"id": "b", "labels": ["a", "x1", "x2", "x3", "x4"]}]
    path = folder(
        items=ITEMS, train=rows, test=[{"id": "z", "labels": []}], filter=[{"id": "a", "label": "b"}]
    )
    catalogue = Catalogue.read(path)
    message = r"train.jsonl:2: unknown label id 'x1', 'x2', 'x3' and 1 more; run `mufin check .*` to list all"
    with pytest.raises(CatalogueError, match=message):
        catalogue.split("train")
    with pytest.raises(CatalogueError, match="test.jsonl:1: unknown item id 'z'"):
        catalogue.split("test")
    with pytest.raises(CatalogueError, match="no split 'valid'; this catalogue has: test, train"):
        catalogue.split("valid")


def test_an_unknown_id_in_the_filter(folder: Folder) -> None:
    path = folder(items=ITEMS, train=[{"id": "a", "labels": ["b"]}], filter=[{"id": "a", "label": "q"}])
    with pytest.raises(CatalogueError, match="filter.jsonl:1: unknown label id 'q'"):
        Catalogue.read(path).split("train")


def test_parquet_says_the_row(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": ["a", "b", "a"]}), tmp_path / "items.parquet")
    with pytest.raises(CatalogueError, match=r"items.parquet: row 3: id 'a' is not unique \(1 duplicates"):
        Catalogue.read(tmp_path)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (pa.table({"name": ["a"]}), r"no column 'id' \(found: name\)"),
        (pa.table({"id": [["a"]]}), "column 'id' is list"),
        (pa.table({"id": ["a"], "texts": [[{"x": 1}]]}), "column 'texts' is list"),
        (pa.table({"id": pa.array([None], pa.string())}), "row 1: missing id"),
    ],
)
def test_parquet_with_other_columns(tmp_path: Path, table: pa.Table, message: str) -> None:
    pq.write_table(table, tmp_path / "items.parquet")
    with pytest.raises(CatalogueError, match=message):
        Catalogue.read(tmp_path)


def test_parquet_of_other_types_is_converted(tmp_path: Path) -> None:
    table = pa.table(
        {
            "id": pa.array([1, 2]),
            "texts": pa.array([["x", None], None], pa.large_list(pa.large_string())),
            "category": pa.array(["k", "k"]).dictionary_encode(),
            "images": pa.array([b"png", None]),
        }
    )
    pq.write_table(table, tmp_path / "items.parquet")
    items = Catalogue.read(tmp_path).items
    assert list(items) == [Item("1", ["x"], [b"png"], "k"), Item("2", category="k")]


def test_texts_of_bytes_in_parquet_are_read_as_utf8(tmp_path: Path) -> None:
    """Only images may be bytes; texts of bytes were once kept as such and failed when they were used."""
    pq.write_table(pa.table({"id": ["a"], "texts": [[b"desk"]]}), tmp_path / "items.parquet")
    assert Catalogue.read(tmp_path).items[0].texts == ("desk",)
    pq.write_table(pa.table({"id": ["a"], "texts": [[b"\xff"]]}), tmp_path / "items.parquet")
    with pytest.raises(CatalogueError, match="column 'texts' is list.*, expected list<item: string>"):
        Catalogue.read(tmp_path)


@pytest.mark.parametrize("raw", [b"", b"PAR1", b"no parquet at all" * 100])
def test_a_file_that_is_not_parquet(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "items.parquet").write_bytes(raw)
    with pytest.raises(CatalogueError, match="items.parquet: not readable as Parquet"):
        Catalogue.read(tmp_path)


def test_parquet_with_text_that_is_not_utf8(tmp_path: Path) -> None:
    texts = pa.array([b"\xff"]).view(pa.string())
    pq.write_table(pa.table({"id": ["a"], "title": texts}), tmp_path / "items.parquet")
    with pytest.raises(CatalogueError, match="items.parquet: not readable as Parquet .*UTF8"):
        Catalogue.read(tmp_path)


def test_duplicates_in_code() -> None:
    with pytest.raises(CatalogueError, match="items: row 2: id 'a' is not unique"):
        Catalogue.build([Item("a", ["x"]), Item("a", ["y"])])
    with pytest.raises(CatalogueError, match="train: row 1: unknown label id 'q'"):
        Catalogue.build([Item("a", ["x"])], train={"a": ["q"]}).split("train")
