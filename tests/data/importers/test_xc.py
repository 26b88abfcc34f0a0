"""The Extreme Classification repository and the files of the released MUFIN."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mufin.data.catalogue import Catalogue
from mufin.errors import CatalogueError

SAMPLES = Path(__file__).resolve().parents[2] / "samples"
TABLE = SAMPLES / "table"


def test_xc_and_the_released_files_say_the_same() -> None:
    ours, theirs = Catalogue.from_xc(SAMPLES / "xc"), Catalogue.from_xc(SAMPLES / "released")
    assert ours.items.table.equals(theirs.items.table)
    assert ours.labels.table.equals(theirs.labels.table)
    for name in ("train", "test"):
        table, other = (one.parts[name].table() for one in (ours, theirs))
        assert table.to_pylist() == other.to_pylist()
    assert ours.filter.nnz == 40


def test_img_bin() -> None:
    items = Catalogue.from_xc(SAMPLES / "released").items
    names = items.ids.to_pylist()
    assert items.pictures.counts().sum() == 39
    assert items[names.index("B000000004")].images == ()
    expected = (TABLE / "photos" / "green-chair.png").read_bytes()
    assert items[names.index("B000000012")].images == (expected,)
    assert Catalogue.from_xc(SAMPLES / "released").labels[12].images == (expected,)


def test_img_bin_without_its_index(tmp_path: Path) -> None:
    shutil.copytree(SAMPLES / "released", tmp_path / "x")
    for path in (tmp_path / "x" / "images").glob("*.npz"):
        path.unlink()
    found, whole = Catalogue.from_xc(tmp_path / "x"), Catalogue.from_xc(SAMPLES / "released")
    assert [item.images for item in found.items] == [item.images for item in whole.items]


def test_xc_that_cannot_be_used(tmp_path: Path) -> None:
    def broken(name: str, text: str) -> str:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        shutil.copytree(SAMPLES / "released", folder)
        (folder / name).write_text(text)
        with pytest.raises(CatalogueError) as error:
            Catalogue.from_xc(folder)
        return str(error.value)

    assert "trn_X_Y.txt:3: expected `label" in broken("trn_X_Y.txt", "26 40\n1:1.0\nx\n")
    assert "the file has 1 points" in broken("trn_X_Y.txt", "26 40\n1:1.0\n")
    assert "1 points, but train.raw.txt has 26" in broken("trn_X_Y.txt", "1 40\n1:1.0\n")
    assert "label 40, but there are 40" in broken("trn_X_Y.txt", "26 40\n40:1.0\n" + "1:1\n" * 25)
    assert "expected rows of" in broken("filter_labels_test.txt", "99 0\n")
    assert "expected two row numbers" in broken("filter_labels_test.txt", "a b\n")
    assert "not a scipy sparse matrix" in broken("images/train.img.bin.npz", "x")
    assert "beyond the end of the file" in broken("images/img.bin", "x")
    assert "lbl.json:2: not JSON" in broken("lbl.json", '{"uid": "a"}\n{"uid"\n')
    assert "no 'uid'" in broken("lbl.json", '{"title": "a"}\n')
    with pytest.raises(CatalogueError, match="no lbl.json"):
        Catalogue.from_xc(tmp_path)
