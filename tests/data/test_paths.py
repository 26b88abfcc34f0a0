"""Image paths of a catalogue stay inside its folder, and only images are copied."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mufin import Catalogue, Item
from mufin.cli import main
from mufin.data.check import check
from mufin.data.items import Items
from mufin.errors import CatalogueError, PictureError

Folder = Callable[..., Path]
Picture = Callable[..., bytes]
LEAVING = [
    "/etc/hostname",
    "../a.png",
    "p/../../a.png",
    "..",
    "C:\\a.png",
    "c:a.png",
    "\\\\host\\a.png",
    "p\\..\\a.png",
]
STAYING = ["a.png", "./a.png", "a..b.png", "p/..a.png", "...", "p/a../b.png", "~/a.png"]
LINKS = pytest.mark.skipif(os.name == "nt", reason="symbolic links need privileges on Windows")


@pytest.mark.parametrize("path", LEAVING)
def test_a_path_out_of_the_folder_is_refused_with_its_line(folder: Folder, path: str) -> None:
    where = folder(items=[{"id": "a", "images": STAYING}, {"id": "b", "images": ["x.png", path]}])
    message = r"items\.jsonl:2: image path .* leads out of the folder .*copy the image .*--images-dir"
    with pytest.raises(CatalogueError, match=message):
        Catalogue.read(where)
    found = [one for one in check(where).problems if "leads out of the folder" in one.message]
    assert [(one.severity, one.line) for one in found] == [("error", 2)]
    assert repr(path) in found[0].message


def test_paths_inside_the_folder_are_read(folder: Folder) -> None:
    where = folder(items=[{"id": "a", "images": STAYING}])
    assert Catalogue.read(where).items[0].images == tuple(where / path for path in STAYING)


def test_parquet_with_paths_is_refused_with_its_row(tmp_path: Path) -> None:
    table = pa.table({"id": ["a", "b"], "images": [["a.png"], ["/etc/hostname"]]})
    pq.write_table(table, tmp_path / "labels.parquet")
    pq.write_table(pa.table({"id": ["c"]}), tmp_path / "items.parquet")
    with pytest.raises(CatalogueError, match=r"labels\.parquet: row 2: image path '/etc/hostname' leads out"):
        Catalogue.read(tmp_path)
    found = next(one for one in check(tmp_path).problems if "leads out" in one.message)
    assert (found.severity, found.row) == ("error", 2)


def test_check_names_the_line_after_a_bad_one(folder: Folder) -> None:
    where = folder(items=b'{"id": "a"}\nnonsense\n\n{"id": "b", "images": ["../b.png"]}\n')
    found = next(one for one in check(where).problems if "leads out" in one.message)
    assert found.line == 4


@LINKS
@pytest.mark.parametrize("link", ["file", "folder"])
def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path, picture: Picture, link: str) -> None:
    outside, shop = tmp_path / "outside", tmp_path / "shop"
    outside.mkdir()
    (outside / "a.png").write_bytes(picture())
    shop.mkdir()
    if link == "folder":
        (shop / "p").symlink_to(outside)
    else:
        (shop / "p").mkdir()
        (shop / "p" / "a.png").symlink_to(outside / "a.png")
    (shop / "items.jsonl").write_text('{"id": "a", "images": ["p/a.png"]}\n')
    items = Catalogue.read(shop).items
    with pytest.raises(PictureError, match="p/a.png: leads out of .*shop; copy the image into the folder"):
        items.flat_images()[1][0]
    with pytest.raises(PictureError, match="leads out of"):
        Catalogue.read(shop).write(tmp_path / "copy")
    found = next(one for one in check(shop).problems if "symbolic link out of the folder" in one.message)
    assert (found.severity, found.line) == ("error", 1)


@LINKS
def test_links_inside_the_folder_are_followed(tmp_path: Path, picture: Picture) -> None:
    shop = tmp_path / "shop"
    (shop / "real").mkdir(parents=True)
    (shop / "real" / "a.png").write_bytes(picture())
    (shop / "p").symlink_to("real")
    (shop / "items.jsonl").write_text('{"id": "a", "images": ["p/a.png"]}\n')
    (tmp_path / "alias").symlink_to(shop)  # the folder itself may be a link
    for folder in (shop, tmp_path / "alias"):
        assert Catalogue.read(folder).items[0].images == (folder / "p" / "a.png",)
        assert check(folder).usable


def test_paths_of_a_caller_may_lead_anywhere(tmp_path: Path, picture: Picture) -> None:
    (tmp_path / "a.png").write_bytes(picture())
    path = tmp_path / "x" / ".." / "a.png"
    (tmp_path / "x").mkdir()
    catalogue = Catalogue.build([Item("a", images=[path])])
    catalogue.write(tmp_path / "new")
    assert Catalogue.read(tmp_path / "new").items[0].images == (picture(),)


def test_a_table_in_memory_stays_in_its_folder(tmp_path: Path) -> None:
    items = Items.from_table(pa.table({"id": ["a"], "images": [["/etc/hostname"]]}), tmp_path)
    with pytest.raises(PictureError, match="leads out of"):
        items.pictures.row(0)


def test_a_table_takes_images_from_the_folder_that_is_named(
    tmp_path: Path, picture: Picture, capsys: pytest.CaptureFixture[str]
) -> None:
    photos, table = tmp_path / "photos", tmp_path / "tables" / "x.csv"
    photos.mkdir()
    (photos / "a.png").write_bytes(picture())
    (photos / "b.png").write_text("broken")
    table.parent.mkdir()
    table.write_text(f"t,image\ndesk,\nlamp,{photos}/a.png\nsofa,b.png\n")
    command = ["import", "table", str(table), "-o", str(tmp_path / "shop"), "--text", "t", "--image", "image"]
    assert main([*command, "--strict"]) == 2
    assert f'{table}, row 3: image "{photos}/a.png" leads out of {table.parent}' in capsys.readouterr().err
    assert main([*command, "--images-dir", str(tmp_path / "none")]) == 2
    assert main([*command, "--images-dir", str(photos)]) == 0
    assert f'{table}, row 4: image "b.png": not an image' in capsys.readouterr().out
    items = Catalogue.read(tmp_path / "shop").items
    assert [item.images for item in items] == [(), (picture(),)]
