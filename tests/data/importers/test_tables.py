"""Tables of one's own and Hugging Face datasets."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from mufin.data.catalogue import Catalogue
from mufin.data.importers.records import Columns
from mufin.data.item import Item
from mufin.errors import CatalogueError, UsageError

SAMPLES = Path(__file__).resolve().parents[2] / "samples"
TABLE = SAMPLES / "table"
TAGS = {"id": "sku", "text": ["title", "description"], "image": ["photo", "photo2"], "labels": "tags"}

Mufin = Callable[..., dict[str, Any]]
CAPTIONS = {"text": "caption", "image": "image", "labels": "tags"}


def test_a_table() -> None:
    catalogue = Catalogue.from_table(TABLE / "products.csv", **TAGS)
    ids = catalogue.items.ids.to_pylist()
    item = catalogue.items[5]
    assert (len(ids), item.id, item.texts) == (
        32,
        "B000000007",
        ("red clock", "a red clock, solid, for the home"),
    )
    assert item.images[0] == TABLE / "photos" / "red-clock.png"
    assert catalogue.items.table["image_urls"][5].as_py() == ["https://pictures.example.com/I/B000000007.png"]
    assert "B000000000" not in ids  # its image is not there
    assert "red things" in catalogue.labels.ids.to_pylist()
    train, test = catalogue.split("train"), catalogue.split("test")
    assert len(train) + len(test) == 32
    assert set(np.diff(train.relevance.indptr)) == {2}
    assert catalogue.imported is not None
    assert catalogue.imported.counts == {"rows": 41, "bad rows": 9}
    assert catalogue.imported.bad_rows[4] == f"{TABLE / 'products.csv'}, row 22: 2 cells, expected 6; skipped"


def test_other_tables_give_the_same(tmp_path: Path) -> None:
    shutil.copytree(TABLE / "photos", tmp_path / "photos")
    text = (TABLE / "products.csv").read_text().replace("B1,too few cells\n", "")
    (tmp_path / "p.csv").write_text(text)
    catalogue = Catalogue.from_table(tmp_path / "p.csv", **TAGS)
    import pyarrow.csv as csv

    table = csv.read_csv(tmp_path / "p.csv")
    pq.write_table(table, tmp_path / "p.parquet")
    csv.write_csv(table, tmp_path / "p.tsv", csv.WriteOptions(delimiter="\t"))
    (tmp_path / "p.jsonl").write_text("\n".join(json.dumps(row) for row in table.to_pylist()))
    for suffix in ("parquet", "tsv", "jsonl"):
        other = Catalogue.from_table(tmp_path / f"p.{suffix}", **TAGS)
        assert other.items.table.equals(catalogue.items.table)
        assert other.parts["train"].table().equals(catalogue.parts["train"].table())


def test_splits_by_column_and_by_file(tmp_path: Path) -> None:
    (tmp_path / "all.csv").write_text("t,l,s\na,x,train\nb,y,test\nc,x;y,dev\nd,,train\n")
    catalogue = Catalogue.from_table(tmp_path / "all.csv", text="t", labels="l", split="s", separator=";")
    assert catalogue.splits == ["train", "test", "dev"]
    assert catalogue.split("dev").relevance.nnz == 2
    assert len(catalogue.split("train")) == 1  # a row without a label is an item, no point
    (tmp_path / "train.csv").write_text("t,l\na,x\n")
    (tmp_path / "test.csv").write_text("t,l\nb,x\n")
    catalogue = Catalogue.from_table(tmp_path / "train.csv", tmp_path / "test.csv", text="t", labels="l")
    assert catalogue.splits == ["train", "test"]
    assert catalogue.items.ids.to_pylist() == ["row-1", "row-2"]


def test_labels_that_are_rows(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("id,t,also\na,desk,b|nowhere\nb,lamp,a\n")
    catalogue = Catalogue.from_table(
        tmp_path / "x.csv", id="id", text="t", labels="also", labels_are_items=True, test=0.0
    )
    assert catalogue.labels is catalogue.items
    assert catalogue.split("train").relevance.toarray().tolist() == [[False, True], [True, False]]
    assert catalogue.imported is not None
    assert catalogue.imported.problems[0].examples == ("nowhere",)


def test_pictures_as_bytes_lists_and_paths_together(tmp_path: Path) -> None:
    encoded = (TABLE / "photos" / "red-lamp.png").read_bytes()
    (tmp_path / "b.png").write_bytes(encoded)
    table = pa.table(
        {
            "t": ["a", "b"],
            "one": pa.array([encoded, None]),
            "two": [["http://x/1.png"], ["b.png"]],
        }
    )
    pq.write_table(table, tmp_path / "x.parquet")
    catalogue = Catalogue.from_table(tmp_path / "x.parquet", text="t", image=["one", "two"])
    assert [item.images for item in catalogue.items] == [(encoded,), (encoded,)]
    assert catalogue.splits == []
    catalogue.write(tmp_path / "out")
    assert Catalogue.read(tmp_path / "out").items[1].images == (encoded,)


def test_tables_that_cannot_be_used(tmp_path: Path, mufin: Mufin) -> None:
    path = tmp_path / "x.csv"
    path.write_text("id,t,l\na,desk,x\na,lamp,y\n")
    with pytest.raises(CatalogueError, match="appears twice"):
        Catalogue.from_table(path, id="id", text="t", max_bad_rows=0)
    with pytest.raises(UsageError, match="no column 'title'; columns: id, t, l"):
        Catalogue.from_table(path, text="title")
    with pytest.raises(UsageError, match="name at least one"):
        Columns(labels="l")
    path.write_text("id,t,s\na,desk,items\n")
    with pytest.raises(UsageError, match="expected letters, digits"):
        Catalogue.from_table(path, text="t", labels="id", split="s")
    path.write_bytes(b"t,l\n\xff\xfe,x\n")
    with pytest.raises(CatalogueError, match="UTF-8"):
        Catalogue.from_table(path, text="t")
    path.write_text("t,l\na,\n")
    with pytest.raises(CatalogueError, match="no row has a label"):
        Catalogue.from_table(path, text="t", labels="l")
    with pytest.raises(CatalogueError, match="no such file"):
        Catalogue.from_table(tmp_path / "none.csv", text="t")
    (tmp_path / "x.xlsx").write_bytes(b"PK")
    with pytest.raises(CatalogueError, match="unknown format"):
        Catalogue.from_table(tmp_path / "x.xlsx", text="t")
    (tmp_path / "x.parquet").write_bytes(b"PK")
    with pytest.raises(CatalogueError, match="Parquet"):
        Catalogue.from_table(tmp_path / "x.parquet", text="t")
    for arguments in (
        ["import", "table", path, "-o", tmp_path / "o"],
        ["import", "amazon", path, "-o", tmp_path / "o", "--curate", "mine"],
        ["import", "polyvore", tmp_path, "-o", tmp_path / "o", "--variant", "x"],
    ):
        mufin(*arguments, code=2)
    assert not (tmp_path / "o").exists()


def test_a_saved_dataset() -> None:
    catalogue = Catalogue.from_dataset(TABLE / "saved", **CAPTIONS)
    assert catalogue.splits == ["train", "test"]
    assert (len(catalogue.split("train")), len(catalogue.split("test"))) == (30, 10)
    assert catalogue.labels.ids[0].as_py() == "red things"  # names of classes, not numbers
    assert catalogue.items[0].images[0][:4] == b"\x89PNG"
    one = Catalogue.from_dataset(TABLE / "saved" / "test", **CAPTIONS, test=0.0)
    assert len(one.split("train")) == 10


class Rows:
    """What a dataset of the library looks like from outside."""

    class _Names:
        def __init__(self) -> None:
            self.names = ["x", "y"]

    def __init__(self, table: pa.Table) -> None:
        self.table, self.features = table, {"tags": self._Names()}

    def with_format(self, name: str) -> Rows:
        assert name == "arrow"
        return self

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, rows: slice) -> pa.Table:
        return self.table.slice(*rows.indices(len(self.table))[:2])


def test_dataset_objects() -> None:
    table = pa.table({"caption": ["a", "b"], "tags": [0, 1]})
    catalogue = Catalogue.from_dataset({"train": Rows(table)}, text="caption", labels="tags")
    assert catalogue.parts["train"].table()["labels"].to_pylist() == [["x"], ["y"]]
    rows = [{"caption": "a", "image": Image.new("RGB", (4, 4)), "tags": ["u", "v"]}]
    catalogue = Catalogue.from_dataset(rows, **CAPTIONS, test=0.0)
    assert catalogue.items[0].images[0][:4] == b"\x89PNG"
    assert catalogue.labels.ids.to_pylist() == ["u", "v"]
    assert len(Catalogue.from_dataset(table, text="caption").items) == 2
    with pytest.raises(UsageError, match="has no rows"):
        Catalogue.from_dataset(7, text="caption")
    with pytest.raises(CatalogueError, match="save_to_disk"):
        Catalogue.from_dataset(SAMPLES, text="caption")


# -- data frames --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["pandas", "polars", "arrow"])
def test_a_data_frame_is_imported(kind: str) -> None:
    columns: dict[str, list[Any]] = {
        "sku": [3, 4, 5], "title": ["desk", None, "lamp"], "note": ["oak", "", None],
        "tags": [["red", "oak"], None, ["blue"]], "price": [1.5, None, 2.0],
    }  # fmt: skip
    frame = {"pandas": pd.DataFrame, "polars": pl.DataFrame, "arrow": pa.table}[kind](columns)
    made = Catalogue.from_table(frame, id="sku", text=["title", "note"], labels="tags", test=0)
    assert list(made.items) == [Item("3", ["desk", "oak"]), Item("4"), Item("5", ["lamp"])]
    assert made.labels.ids.to_pylist() == ["red", "oak", "blue"]
    assert made.split("train").relevance.sum() == 3
    both = Catalogue.from_dataset({"train": frame, "test": frame[:1]}, text="title", labels="tags")
    assert both.splits == ["train", "test"]
    assert len(both.items) == 4


def test_cells_of_pandas(tmp_path: Path) -> None:
    shown = Image.new("RGB", (8, 8), "red")
    shown.save(tmp_path / "a.png")
    frame = pd.DataFrame(
        {
            "id": [1, np.nan, 3],
            "title": [np.nan, "b", pd.NA],
            "when": [pd.NaT, pd.Timestamp("2026-01-02"), pd.NaT],
            "image": [shown, tmp_path / "a.png", str(tmp_path / "a.png")],
            "tags": pd.Categorical(["x|y", None, "y"]),
        },
        index=["p", "q", "r"],
    )
    made = Catalogue.from_table(frame, text=["title", "when"], image="image", labels="tags", test=0)
    assert made.items.texts.to_pylist() == [[], ["b", "2026-01-02 00:00:00"], []]
    assert [len(item.images) for item in made.items] == [1, 1, 1]
    assert made.labels.ids.to_pylist() == ["x", "y"]
    named = Catalogue.from_table(frame, id="id", text="title")
    assert named.items.ids.to_pylist() == ["1", "3"]
    assert named.imported is not None
    assert named.imported.bad_rows == [
        "data frame, row 2: column 'id' is empty; every row needs an id; skipped"
    ]


def test_what_is_not_a_table() -> None:
    frame = pd.DataFrame({"title": ["a"]})
    with pytest.raises(UsageError, match="no column 'name'; columns: title"):
        Catalogue.from_table(frame, text="name")
    with pytest.raises(TypeError, match="name their splits: Catalogue.from_dataset"):
        Catalogue.from_table(frame, frame, text="title")
    with pytest.raises(TypeError, match="int has no rows; expected a data frame"):
        Catalogue.from_table(3, text="title")  # type: ignore[arg-type]
