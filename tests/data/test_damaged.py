"""Damaged data files raise a CatalogueError that names the place; they never crash the process."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from apart import read_apart
from mufin.data.catalogue import Catalogue
from mufin.data.check import check
from mufin.data.pictures import StoredPictures
from mufin.errors import CatalogueError, MufinError
from mufin.model.parts import _read_items

Folder = Callable[..., Path]
SAMPLES = Path(__file__).resolve().parents[1] / "samples"


def test_a_column_chunk_that_aborts_pyarrow(tmp_path: Path) -> None:
    path = tmp_path / "items.parquet"
    pq.write_table(pa.table({"id": ["a"], "images": [[b"x", b"y"]]}), path)
    raw = path.read_bytes()
    place = (
        raw.index(b"\x25\x02\x18\x07element") + 1
    )  # optional becomes required, which changes the number of levels
    path.write_bytes(raw[:place] + b"\0" + raw[place + 1 :])
    assert "items.parquet: not readable as Parquet" in read_apart("read", tmp_path)[0]


@pytest.mark.parametrize(
    "read",
    [
        lambda path: Catalogue.read(path.parent),
        lambda path: Catalogue.from_table(path, text="texts", labels="category"),
        StoredPictures,
        lambda path: _read_items(path, 2),
    ],
    ids=["catalogue", "table", "images", "labels of a model"],
)
def test_rows_of_parquet_that_do_not_exist(read: Callable[[Path], object], tmp_path: Path) -> None:
    """A row group that claims 10¹¹ rows: reading it would not end."""
    path = tmp_path / "items.parquet"
    path.write_bytes((SAMPLES / "found" / "parquet" / "rows-that-do-not-exist").read_bytes()[1:])
    with pytest.raises(MufinError, match="row groups have 102,915,569,278 rows, but the file 2"):
        read(path)


@pytest.mark.parametrize("suffix", ["csv", "tsv"])
def test_a_table_that_is_not_utf8(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"t.{suffix}"
    between = "\t" if suffix == "tsv" else ","
    path.write_bytes(f"title{between}tägs\na{between}b\n".encode("latin-1"))
    with pytest.raises(CatalogueError, match=rf"t.{suffix}:1: the header is not UTF-8; .* --encoding"):
        Catalogue.from_table(path, text="title", labels="tägs")
    path.write_bytes(f"title{between}tags\na{between}b\nä{between}c\n".encode("latin-1"))
    found = Catalogue.from_table(path, text="title", labels="tags", test=0.0)
    assert found.items.ids.to_pylist() == ["row-1"]
    assert found.imported is not None
    assert "row 3: column 'title' is not UTF-8" in found.imported.bad_rows[0]
    found = Catalogue.from_table(path, text="title", labels="tags", encoding="latin-1")
    assert found.items[1].texts == ("ä",)


def test_an_image_index_with_invalid_arrays(tmp_path: Path) -> None:
    folder = tmp_path / "xc"
    shutil.copytree(SAMPLES / "released", folder)
    path = folder / "images" / "train.img.bin.npz"
    arrays = dict(np.load(path))
    wrapped = arrays["indptr"].astype(np.int32)
    wrapped[2:4] = -(2**31), 2**31 - 1  # differences that overflow to positive numbers
    wrong = {
        "indptr": [arrays["indptr"][::-1], arrays["indptr"] * 1000, np.roll(arrays["indptr"], 1), wrapped],
        "indices": [arrays["indices"].reshape(1, -1), arrays["indices"][1:]],
        "data": [
            arrays["data"] * -1,
            arrays["data"] * np.nan,
            arrays["data"].astype(str),
            arrays["data"][1:],
        ],
        "shape": [np.array([3]), np.array(7), arrays["shape"] * 10**12],
        "format": [np.array(b"csc"), np.array(5)],
    }
    for name, values in wrong.items():
        for value in values:
            np.savez(path, **arrays | {name: value})
            with pytest.raises(CatalogueError, match=r"train.img.bin.npz: |img.bin: offset"):
                Catalogue.from_xc(folder)


@pytest.mark.parametrize("header", [b"", b"x 3", b"9" * 5000 + b" 3", b"-1 3", b"14", b"\xff 3"])
def test_an_invalid_header_of_points(tmp_path: Path, header: bytes) -> None:
    folder = tmp_path / "xc"
    shutil.copytree(SAMPLES / "released", folder)
    path = folder / "tst_X_Y.txt"
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([header, *lines[1:]]))
    with pytest.raises(CatalogueError, match="tst_X_Y.txt:1: first line is"):
        Catalogue.from_xc(folder)
    path.write_bytes(b"\n".join([lines[0], b"9" * 400 + b":1.0", *lines[2:]]))
    with pytest.raises(CatalogueError, match="tst_X_Y.txt:2: expected `label"):
        Catalogue.from_xc(folder)


def test_polyvore_without_questions(tmp_path: Path) -> None:
    folder = tmp_path / "outfits"
    shutil.copytree(SAMPLES / "polyvore", folder)
    (folder / "disjoint" / "fill_in_blank_test.json").write_text("[]")
    catalogue = Catalogue.from_polyvore(folder)
    assert len(catalogue.questions("fitb_test")) == 0
    catalogue.write(tmp_path / "shop")
    assert [p for p in check(tmp_path / "shop", decode=False).problems if p.severity == "error"] == []


@pytest.mark.parametrize(
    ("file", "raw"),
    [
        ("dataset_dict.json", b"[]"),
        ("dataset_dict.json", b'{"splits": 3}'),
        ("dataset_dict.json", b'{"splits": ["../train"]}'),
        ("dataset_dict.json", b'{"splits": [".."]}'),
        ("train/state.json", b'{"_data_files": [{"filename": ".."}]}'),
        ("train/state.json", b"[" * 100_000),
        ("train/state.json", b"\xff"),
    ],
)
def test_a_saved_dataset_with_damaged_json(tmp_path: Path, file: str, raw: bytes) -> None:
    folder = tmp_path / "saved"
    shutil.copytree(SAMPLES / "table" / "saved", folder)
    (folder / file).write_bytes(raw)
    with pytest.raises(CatalogueError, match=rf"{file}: not usable"):
        Catalogue.from_dataset(folder, text="caption")


def test_names_too_long_for_a_file(tmp_path: Path, folder: Folder) -> None:
    long = "9" * 400 + ".png"
    report = check(folder(items=[{"id": "a", "title": "A", "images": [long]}]))
    assert any("not found" in problem.message for problem in report.problems)
    (tmp_path / "t.csv").write_text(f"title,photo\na,{long}\nb,\n")
    assert len(Catalogue.from_table(tmp_path / "t.csv", text="title", image="photo").items) == 1
