"""Items: rows on demand, lookups, choices, flat descriptors."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image

from mufin.data.formats import parquet
from mufin.data.images import open_picture
from mufin.data.item import Item
from mufin.data.items import Items
from mufin.data.pictures import StoredPictures
from mufin.errors import PictureError, UsageError

SOME = [
    Item("a", ["oak desk", "brown"], [b"one", b"two"], "office", ["b"]),
    Item("b", ["lamp"], [], None),
    Item("c", [], [b"three"], "home"),
    Item("d", ["", "  ", "last"]),
    Item("e", [" \t"]),
]


def test_items_come_back_as_they_went_in() -> None:
    items = Items.of(SOME)
    assert list(items) == SOME
    assert items[-1] == SOME[-1]
    assert list(items[1:4]) == SOME[1:4]
    assert list(items[::-2]) == SOME[::-2]
    with pytest.raises(IndexError):
        items[5]


@pytest.mark.parametrize("count", [3, 300])  # few ids are looked up another way than many
def test_rows_of_ids(count: int) -> None:
    items = Items.of(Item(f"i{n}", ["x"]) for n in range(100))
    wanted = [f"i{(7 * n) % 130}" for n in range(count)]
    expected = [(7 * n) % 130 if (7 * n) % 130 < 100 else -1 for n in range(count)]
    assert items.rows(wanted).tolist() == expected
    assert items.rows(pa.chunked_array([wanted])).tolist() == expected
    assert items.rows(wanted).dtype == np.int64
    assert items.rows([]).tolist() == []


def test_take_and_concat() -> None:
    items = Items.of(SOME)
    taken = items.take([3, 0, 0])
    assert list(taken) == [SOME[3], SOME[0], SOME[0]]
    assert list(taken.take([1])) == [SOME[0]]
    plain = Items.of([Item("z", ["plain"])])
    joined = taken.concat(plain)
    assert list(joined) == [SOME[3], SOME[0], SOME[0], Item("z", ["plain"])]
    assert joined.flat_images()[0].tolist() == [0, 0, 2, 4, 4]
    assert list(joined.flat_images()[1]) == [b"one", b"two", b"one", b"two"]
    assert list(plain.concat(items))[1:] == SOME


def test_only_one_modality() -> None:
    items = Items.of(SOME)
    assert [item.images for item in items.only("text")] == [()] * 5
    assert items.only("text")[0].texts == SOME[0].texts
    assert [item.texts for item in items.only("image")] == [()] * 5
    assert items.only("image")[0].images == SOME[0].images
    assert items.only("both") is items
    with pytest.raises(UsageError, match="text, image, both"):
        items.only("sound")


def test_flat_texts_leave_blanks_out() -> None:
    offsets, texts = Items.of(SOME).flat_texts()
    assert offsets.tolist() == [0, 2, 3, 3, 4, 4]
    assert texts.to_pylist() == ["oak desk", "brown", "lamp", "last"]
    offsets, texts = Items.of([]).flat_texts()
    assert (offsets.tolist(), len(texts)) == ([0], 0)


def test_flat_texts_of_a_slice_and_of_a_huge_text() -> None:
    offsets, texts = Items.of([*SOME, Item("f", ["x" * 1_000_000])])[3:].flat_texts()
    assert offsets.tolist() == [0, 1, 1, 2]
    assert [len(text) for text in texts.to_pylist()] == [4, 1_000_000]


def test_images_in_memory_become_png(picture: Callable[..., bytes], tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(picture("blue"))
    image = Image.new("CMYK", (3, 3))
    items = Items.of([Item("a", images=[image, tmp_path / "a.png"]), Item("b", images=[picture("red")])])
    assert open_picture(items[0].images[0]).size == (3, 3)
    assert items[0].images[1] == picture("blue")
    with pytest.raises(PictureError, match="none.png"):
        Items.of([Item("a", images=[b"x", "none.png"])])


STRIPES = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)


@pytest.mark.parametrize(
    "pixels", [STRIPES, torch.from_numpy(STRIPES), np.asfortranarray(STRIPES), np.flip(STRIPES[::-1], 0)]
)
def test_pixels_are_an_image(pixels: Any) -> None:
    item = Item("a", images=pixels)
    assert item == Item("a", images=[Image.fromarray(STRIPES)])
    asked, stored = Items.of([item], stored=False), Items.of([item])
    assert asked[0].images == item.images
    assert isinstance(stored[0].images[0], bytes)
    for items in (asked, stored):
        assert np.array_equal(np.asarray(open_picture(items[0].images[0])), STRIPES)
    assert asked.take([0, 0]).concat(stored).flat_images()[0].tolist() == [0, 1, 2, 3]


def test_pixels_are_copied() -> None:
    pixels = STRIPES.copy()
    item = Item(images=[pixels])
    pixels[:] = 0
    assert np.array_equal(np.asarray(item.images[0]), STRIPES)


@pytest.mark.parametrize(
    ("pixels", "found"),
    [
        (STRIPES / 255, r"pixels of shape \(4, 6, 3\), float64"),
        (torch.zeros(4, 6, 3), r"pixels of shape \(4, 6, 3\), torch.float32"),
        (STRIPES.transpose(2, 0, 1), r"pixels of shape \(3, 4, 6\), uint8"),
        (STRIPES[None], r"pixels of shape \(1, 4, 6, 3\), uint8"),
        (STRIPES[:, :, 0], r"pixels of shape \(4, 6\), uint8"),
        (STRIPES[:0], r"pixels of shape \(0, 6, 3\), uint8"),
    ],
)
def test_pixels_of_another_form_are_refused(pixels: Any, found: str) -> None:
    with pytest.raises(UsageError, match=found + r"; an image is \(H, W, 3\), uint8, such as numpy\.zeros"):
        Item(images=[pixels])


def test_what_is_no_image_is_refused() -> None:
    with pytest.raises(UsageError, match='or an array, not int; write Item\\(images=\\["desk.jpg"\\]\\)'):
        Item(images=[7])  # type: ignore[list-item]


@pytest.mark.parametrize("stored", [True, False])
def test_an_opened_image_is_read_like_its_bytes(stored: bool) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # lies on its side
    buffer = io.BytesIO()
    Image.fromarray(STRIPES).resize((60, 40)).save(buffer, "JPEG", exif=exif)
    image = Image.open(io.BytesIO(buffer.getvalue()))
    found = Items.of([Item("a", images=[image, image])], stored=stored)[0].images
    for one in found:
        assert np.array_equal(np.asarray(open_picture(one)), np.asarray(open_picture(buffer.getvalue())))
    cut = Item("a", images=[Image.open(io.BytesIO(buffer.getvalue()[:-40]))])
    with pytest.raises(PictureError, match="cut short"):
        Items.of([cut], stored=stored)


def test_queries_mix_what_is_decoded_with_paths_and_bytes(picture: Callable[..., bytes]) -> None:
    items = Items.of([Item("a", images=[STRIPES, "a.png"]), Item("b", images=[picture()])], stored=False)
    assert items[0].images == (Image.fromarray(STRIPES), Path("a.png"))
    assert items[1].images == (picture(),)


def test_paths_stay_paths(tmp_path: Path) -> None:
    items = Items.of([Item("a", images=["x/a.png", tmp_path / "b.png"])])
    assert items[0].images == (Path("x/a.png"), tmp_path / "b.png")


def test_big_pictures_stay_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = [[bytes([n]) * n for n in range(row % 4)] for row in range(50)]
    table = pa.table({"id": [f"i{n}" for n in range(50)], "title": ["t"] * 50, "images": images})
    path = tmp_path / "items.parquet"
    parquet.write([table], path, rows_per_group=8)
    held = Items.from_file(parquet.read(path, "items"), path)
    monkeypatch.setattr(parquet, "LAZY_BYTES", 10)
    stored = Items.from_file(parquet.read(path, "items"), path)
    assert isinstance(stored.pictures, StoredPictures)
    assert list(stored) == list(held)
    rows = np.random.default_rng(0).permutation(50)
    assert list(stored.take(rows)) == list(held.take(rows))
    assert list(stored.flat_images()[1]) == list(held.flat_images()[1])
    assert len(stored.pictures.groups) <= 3
