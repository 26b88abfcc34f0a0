"""What callers may pass as items, and what they are told about anything else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from PIL import Image

from made import picture
from mufin import Item
from mufin.data.convert import as_items
from mufin.data.items import Items
from mufin.errors import InputTypeError, PictureError, UsageError

PIXELS = np.zeros((8, 9, 3), np.uint8)


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    picture("red", "bar").save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


def one(value: Any) -> Item:
    items, single = as_items(value)
    assert single
    (item,) = items
    return item


def test_one_item(photo: Path) -> None:
    assert one("oak desk") == Item(texts=["oak desk"])
    assert one("photo.png") == Item(texts=["photo.png"])  # a str is a text
    assert one(photo) == Item(images=[photo])  # a Path is an image
    assert one(photo.read_bytes()) == Item(images=[photo.read_bytes()])
    for image in (Image.new("RGB", (9, 8)), PIXELS, torch.from_numpy(PIXELS)):
        (read,) = one(image).images
        assert isinstance(read, Image.Image)
        assert read.size == (9, 8)
    item = Item("a", ["x"], [str(photo)], "c", ["b"])
    assert one(item) == Item("a", ["x"], [photo], "c", ["b"])
    fields = {"id": 7, "text": "y", "title": "x", "image": photo, "category": None, "related": ["b"]}
    assert one(fields) == Item("7", ["x", "y"], [photo], None, ["b"])
    assert one({"texts": ["x", float("nan"), 3], "images": [str(photo), None]}) == Item(
        "", ["x", "3"], [photo]
    )
    assert one({}).is_empty
    assert one(pd.DataFrame({"title": ["x"], "price": [3.5]})[["title"]].iloc[0]) == Item(texts=["x"])


def many(value: Any) -> list[Item]:
    items, single = as_items(value)
    assert not single
    return list(items)


@pytest.mark.parametrize("kind", [list, tuple, iter, np.array, pd.Series, pl.Series, pa.array])
def test_many_texts(kind: Any) -> None:
    assert many(kind(["a", "b"])) == [Item(texts=["a"]), Item(texts=["b"])]


def test_many_items_of_all_kinds(photo: Path) -> None:
    found = many(["a", photo, {"title": "b"}, None, float("nan"), pd.NaT, pd.NA])
    assert [item.texts for item in found[:3]] == [("a",), (), ("b",)]
    assert len(found[1].images) == 1
    assert all(item.is_empty for item in found[3:])
    assert many([]) == []
    assert len(many(np.zeros((5, 8, 9, 3), np.uint8))) == 5
    items = Items.of([Item("a")])
    assert as_items(items)[0] is items


COLUMNS = {"id": ["a", "b"], "title": ["oak desk", None], "price": [1.5, 2.0], "texts": [["x", "y"], []]}


@pytest.mark.parametrize("kind", [pd.DataFrame, pl.DataFrame, pa.table])
def test_data_frames(kind: Any) -> None:
    assert many(kind(COLUMNS)) == [Item("a", ["oak desk", "x", "y"]), Item("b")]
    with pytest.raises(InputTypeError, match="no column .* \\(columns: name, price\\); rename one"):
        as_items(kind({"name": ["desk"], "price": [1.5]}))
    assert many(kind({"title": ["a"]}))[0].texts == ("a",)


def test_pandas_cells(photo: Path) -> None:
    frame = pd.DataFrame({"id": [1, None], "title": ["a", np.nan], "image": [str(photo), pd.NA]}, [9, 4])
    assert many(frame) == [Item("1", ["a"], [photo]), Item()]
    images = pd.DataFrame({"image": [picture("red", "bar"), None], "title": pd.Categorical(["a", None])})
    first, second = many(images)
    assert (len(first.images), second.is_empty) == (1, True)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (5, "int 5 is not an item; an item is a text"),
        (["a", 5], "item 1: int 5 is not an item"),
        ([["a", "b"]], "item 0: list"),
        (np.zeros((3, 2)), "item 0: ndarray"),
        ({"titel": "a"}, "unknown key 'titel'; known keys: id, title"),
        ([{"title": {"a": 1}}], "item 0: dict .* is not a text"),
        (pl.LazyFrame({"title": ["a"]}), "frame.collect()"),
        (None, None),
    ],
)
def test_what_is_not_an_item(value: Any, said: str | None) -> None:
    if said is None:
        with pytest.raises(InputTypeError, match="NoneType None is not an item"):
            as_items(value)
        return
    with pytest.raises(TypeError, match=said) as raised:
        as_items(value)
    assert isinstance(raised.value, UsageError)


def test_what_an_item_is_not_made_of() -> None:
    with pytest.raises(TypeError, match="texts are strings, not int; write Item\\(texts="):
        Item(texts=[1])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="texts are strings, not float"):
        Item(texts=1.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="an image is a path"):
        Item(images=[5])  # type: ignore[list-item]


def test_missing_files(tmp_path: Path) -> None:
    for image in ("gone.png", tmp_path, "\0"):
        with pytest.raises(PictureError, match="no such image file"):
            as_items(Item(images=[image]))
    with pytest.raises(PictureError, match="URLs are not fetched"):
        as_items({"image": "https://example.org/a.png"})
