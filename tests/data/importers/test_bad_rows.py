"""Tables as people have them: bad rows are skipped, counted and listed with the place an editor shows."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from mufin.cli import main
from mufin.data.catalogue import Catalogue
from mufin.data.importers.rows import open_table
from mufin.errors import CatalogueError, UsageError

Mufin = Callable[..., dict[str, Any]]
COLUMNS = {"id": "sku", "text": "title", "image": "photo", "labels": "tags"}
OPTIONS = ["--id", "sku", "--text", "title", "--image", "photo", "--labels", "tags"]

TABLE = b"""sku,title,photo,tags
A-1,"oak ""solid"" desk",a.png,desks
A-2,"lamp
of steel",,lamps|desks
A-3,chair,,

A-1,desk again,a.png,desks
,nameless,,desks
A-4,t\xe9l\xe9phone,,phones
A-5,no picture,gone.png,desks
A-6,broken picture,broken.png,desks
A-7,short
A-8,an "odd" cell,,desks
A-9,"never closed,,desks
A-10,stool,,stools
,,,
A-11,outside,../a.png,desks
"""
PLACES = {
    "row 6 (line 7)": 'id "A-1" appears twice (first in row 2); skipped',
    "row 7 (line 8)": "column 'sku' is empty; every row needs an id; skipped",
    "row 8 (line 9)": "column 'title' is not UTF-8; name the encoding of the file with --encoding, such as",
    "row 9 (line 10)": 'image "gone.png" not found; skipped',
    "row 10 (line 11)": 'image "broken.png": not an image in a supported format',
    "row 11 (line 12)": "2 cells, expected 4; skipped",
    "row 13 (line 14)": "a quoted cell has no closing quote; skipped",
    "row 16 (line 17)": 'image "../a.png" leads out of',
}


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    folder = tmp_path / "tables"
    folder.mkdir()
    Image.new("RGB", (8, 8), "red").save(folder / "a.png")
    (folder / "broken.png").write_text("not an image")
    (folder / "shop.csv").write_bytes(TABLE)
    return folder / "shop.csv"


def test_bad_rows_are_skipped_and_listed(shop: Path) -> None:
    catalogue = Catalogue.from_table(shop, **COLUMNS)
    found = catalogue.imported
    assert found is not None
    assert catalogue.items.ids.to_pylist() == ["A-1", "A-2", "A-3", "A-8", "A-10"]
    assert catalogue.items[0].texts == ('oak "solid" desk',)
    assert catalogue.items[1].texts == ("lamp\nof steel",)
    assert catalogue.items[3].texts == ('an "odd" cell',)
    assert found.counts == {"rows": 13, "bad rows": 8}
    for told, (place, reason) in zip(found.bad_rows, PLACES.items(), strict=True):
        assert told.startswith(f"{shop}, {place}: {reason}")
    [unlabelled] = found.problems
    assert (unlabelled.message, unlabelled.count) == ("row without labels; an item, but in no split", 1)
    assert unlabelled.examples == ("row 4 (line 5)",)


def test_the_command_lists_them(shop: Path, tmp_path: Path, mufin: Mufin, capsys: Any) -> None:
    assert main(["import", "table", str(shop), "-o", str(tmp_path / "a"), *OPTIONS]) == 0
    told = capsys.readouterr().out
    assert "8 bad rows\n" in told
    assert f"  {shop}, row 9 (line 10): " in told
    assert "row without labels; an item, but in no split" in told
    assert "row 4 (line 5)" in told
    assert "|" not in told
    assert len(mufin("import", "table", shop, "-o", tmp_path / "b", *OPTIONS)["bad_rows"]) == 8
    shop.write_text("sku,title,photo,tags\nA,desk,,x\nA,lamp,,x\n")
    assert main(["import", "table", str(shop), "-o", str(tmp_path / "c"), *OPTIONS]) == 0
    assert "1 bad row\n" in capsys.readouterr().out


def warnings_of(folder: Path, cells: list[str], **columns: str) -> dict[str, tuple[str, ...]]:
    """Return the warnings about these cells of labels, with their examples."""
    rows = [[f"r{number}", "a text", cell] for number, cell in enumerate(cells)]
    with (folder / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["sku", "title", "tags"], *rows])
    found = Catalogue.from_table(folder / "labels.csv", id="sku", text="title", labels="tags", **columns)
    assert found.imported is not None
    return {problem.message: problem.examples for problem in found.imported.problems}


def test_several_labels_in_one_cell_are_noticed(tmp_path: Path) -> None:
    lists = 'label looks like a list; write such a cell as "a|b", or import JSON lines or Parquet'
    semicolon = 'label contains ";"; if that separates labels, pass --separator ";"'
    comma = 'label contains ","; if that separates labels, pass --separator ","'
    assert warnings_of(tmp_path, ["desks; oak", "lamps; steel", "rugs"]) == {
        semicolon: ("desks; oak", "lamps; steel")
    }
    assert warnings_of(tmp_path, ["desks; oak", "lamps; steel", "rugs"], separator=";") == {}
    assert warnings_of(tmp_path, ["desks, oak", "desks, steel", "rugs"]) == {
        comma: ("desks, oak", "desks, steel")
    }
    listed = ['["desks", "oak"]', "['rugs']"]
    assert warnings_of(tmp_path, [*listed, "rugs"]) == {lists: tuple(listed)}
    # a comma in a few labels is not a separator, unless all of its parts are labels
    few = ["desks|Home, garden", "desks|rugs", "lamps, oak|rugs", "desks, rugs", "oak"]
    assert warnings_of(tmp_path, few) == {comma: ("desks, rugs",)}


def test_labels_in_other_letters_are_noticed(tmp_path: Path) -> None:
    message = "labels differ only in capital letters, and count as different labels"
    assert warnings_of(tmp_path, ["Desks|rugs", "desks", "RUGS"]) == {
        message: ("Desks", "desks", "rugs", "RUGS")
    }


def test_too_many_bad_rows_are_an_error(shop: Path, tmp_path: Path, capsys: Any) -> None:
    for options, expected in (
        (
            ["--strict"],
            'row 6 (line 7): id "A-1" appears twice (first in row 2); correct the row, or skip it',
        ),
        (["--max-bad-rows", "1"], "more than 1 bad row, the last: "),
        (["--max-bad-rows", "3"], "name the folder of the images with --images-dir, or allow more"),
        (["--max-bad-rows", "7"], "correct them, or allow more with --max-bad-rows N"),
        (["--max-bad-rows", "-1"], "expected 0 or more"),
        (["--encoding", "klingon"], "encoding 'klingon' is unknown"),
    ):
        command = ["import", "table", str(shop), "-o", str(tmp_path / "new"), *OPTIONS, *options]
        assert main(command) == 2
        assert expected in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
    shop.write_text("sku,title,photo,tags\n,desk,,x\n")
    with pytest.raises(CatalogueError, match=r"no usable row; .*shop.csv, row 2: column 'sku' is empty"):
        Catalogue.from_table(shop, **COLUMNS)


def test_a_catalogue_without_labels_says_what_it_is_good_for(shop: Path, tmp_path: Path, capsys: Any) -> None:
    command = ["import", "table", str(shop), "-o", str(tmp_path / "new"), "--text", "title"]
    assert main(command) == 0
    told = capsys.readouterr().out
    assert "The catalogue has no labels" in told
    assert "Unused columns: sku, photo, tags" in told
    assert f"mufin predict RUN {tmp_path / 'new'} -o predictions.csv" in told
    assert "mufin train" not in told
    assert main(["import", "table", str(shop), "-o", str(tmp_path / "other")]) == 2
    assert "(columns: sku, title, photo, tags)" in capsys.readouterr().err


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_encodings_and_delimiters(tmp_path: Path, encoding: str, delimiter: str) -> None:
    rows = [["id", "títle", "tags"], ["A", "café", "x|y"], ["B", "thé", "y"]]
    path = tmp_path / "t.csv"
    path.write_text("\r\n".join(delimiter.join(row) for row in rows), encoding)
    named = encoding if encoding == "cp1252" else None
    found = Catalogue.from_table(path, id="id", text="títle", labels="tags", encoding=named)
    assert [item.texts for item in found.items] == [("café",), ("thé",)]
    assert found.labels.ids.to_pylist() == ["x", "y"]


def test_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    good = {"id": 7, "title": "desk", "tags": ["a|b", "c"]}
    lines = [
        json.dumps(good).encode(),
        b"",
        b"[1]",
        b'{"id": "x", "title": ',
        b'{"title": "none"}',
        b'{"id": "\xff"}',
    ]
    path.write_bytes(b"\n".join([*lines, b'{"id": "8", "title": "lamp", "tags": "c"}']))
    found = Catalogue.from_table(path, id="id", text="title", labels="tags", test=0.0)
    assert found.items.ids.to_pylist() == ["7", "8"]
    assert found.labels.ids.to_pylist() == ["a|b", "c"]  # only a text is split
    assert found.imported is not None
    told = [row.removeprefix(f"{path}, ") for row in found.imported.bad_rows]
    assert told[0] == 'line 3: found list, expected an object {"id": …}; skipped'
    assert [row.split(":")[0] for row in told] == ["line 3", "line 4", "line 5", "line 6"]
    with pytest.raises(UsageError, match="no column 'name'; columns: id, tags, title"):
        Catalogue.from_table(path, text="name")


def test_parquet_with_a_text_that_is_not_utf8(tmp_path: Path) -> None:
    texts = pa.StringArray.from_buffers(
        2, pa.py_buffer(b"\0\0\0\0\4\0\0\0\5\0\0\0"), pa.py_buffer(b"desk\xff")
    )
    pq.write_table(pa.table({"title": texts}), tmp_path / "t.parquet")
    found = Catalogue.from_table(tmp_path / "t.parquet", text="title")
    assert found.items.ids.to_pylist() == ["row-1"]
    assert found.imported is not None
    assert "row 2: a text is not UTF-8; skipped" in found.imported.bad_rows[0]


def test_ids_that_repeat_in_another_file(tmp_path: Path) -> None:
    train, test = tmp_path / "train.csv", tmp_path / "test.csv"
    train.write_text("id,t,l\na,desk,x\n")
    test.write_text("id,t,l\na,lamp,x\nb,lamp,x\n")
    found = Catalogue.from_table(train, test, id="id", text="t", labels="l")
    assert found.imported is not None
    [told] = found.imported.bad_rows
    assert told == f'{test}, row 2: id "a" appears twice (first in {train}, row 2); skipped'


def test_headers_that_cannot_be_used(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    for text, expected in (("", "empty; expected a header"), ("a,b,a\n1,2,3\n", "names 'a' twice")):
        path.write_text(text)
        with pytest.raises(CatalogueError, match=expected):
            Catalogue.from_table(path, text="a")


def test_every_row_of_a_broken_table_is_read_or_told(tmp_path: Path) -> None:
    """An open quote costs one row, wherever it is."""
    for broken in range(5):
        buffer = io.StringIO("t\n")
        buffer.seek(0, io.SEEK_END)
        for row in range(5):
            buffer.write(f'"open {row}\n' if row == broken else f'"row {row}"\n')
        (tmp_path / "t.csv").write_text(buffer.getvalue())
        table = open_table(tmp_path / "t.csv")
        rows = list(table.rows)
        table.close()
        assert [bool(row.fault) for row in rows] == [row == broken for row in range(5)]
        assert [row.place for row in rows] == [f"row {row}" for row in range(2, 7)]
