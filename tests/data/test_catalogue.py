"""Catalogues: reading, writing, splits, exclusion, sets and questions."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.sparse import csr_matrix

from mufin.data.catalogue import Catalogue
from mufin.data.check import check
from mufin.data.formats import jsonl, parquet
from mufin.data.item import Item
from mufin.data.write import Format
from mufin.errors import CatalogueError, PictureError, UsageError

Folder = Callable[..., Path]


def shop(picture: Callable[..., bytes]) -> Catalogue:
    items = [
        Item("a", ["oak desk", ""], [picture("red"), picture("blue", format="JPEG")], "office", ["b", "?"]),
        Item("b", ["lämp · 灯"], [picture("red")]),
        Item("c", [], [], "home"),
    ]
    labels = [Item("q1", ["desk"]), Item("q2", ['light "now"\n'])]
    return Catalogue.build(
        items,
        labels,
        filter=[("a", "q2")],
        sets={"outfits": [["a", "b"]]},
        train={"a": ["q1"]},
        test={"b": []},
    )


def contents(items: Any) -> list[Item]:
    """Return the items with their images as bytes, wherever they are stored."""

    def read(picture: Any) -> bytes:
        return picture.read_bytes() if isinstance(picture, Path) else picture

    return [Item(i.id, i.texts, [read(p) for p in i.images], i.category, i.related) for i in items]


def same(one: csr_matrix, other: csr_matrix) -> bool:
    return np.array_equal(one.toarray(), other.toarray())


@pytest.mark.parametrize("format", ["parquet", "jsonl"])
def test_round_trip(format: Any, picture: Callable[..., bytes], tmp_path: Path) -> None:
    first = shop(picture)
    first.write(tmp_path / "one", format)
    second = Catalogue.read(tmp_path / "one")
    second.write(tmp_path / "two", "parquet" if format == "jsonl" else "jsonl")
    third = Catalogue.read(tmp_path / "two")
    for catalogue in (second, third):
        assert contents(catalogue.items) == contents(first.items)
        assert list(catalogue.labels) == list(first.labels)
        assert sorted(catalogue.splits) == ["test", "train"]
        assert catalogue.sets == ["outfits"]
        for name in ("train", "test"):
            assert same(catalogue.split(name).relevance, first.split(name).relevance)
        assert same(catalogue.filter, first.filter)
        assert catalogue.filter.nnz == 1


def test_jsonl_pictures_are_files_named_by_their_content(
    picture: Callable[..., bytes], tmp_path: Path
) -> None:
    shop(picture).write(tmp_path / "one", "jsonl")
    assert sorted(path.suffix for path in (tmp_path / "one/images").iterdir()) == [".jpg", ".png"]


def test_further_columns_survive(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    extra = {"price": [1.5, None], "made": ["2020-01-01", "2021-05-01"], "tags": [{"x": [1]}, {"x": []}]}
    pq.write_table(pa.table({"id": ["a", "b"], "title": ["x", "y"]} | extra), tmp_path / "in/items.parquet")
    Catalogue.read(tmp_path / "in").write(tmp_path / "lines", "jsonl")
    Catalogue.read(tmp_path / "lines").write(tmp_path / "out", "parquet")
    table = pq.read_table(tmp_path / "out/items.parquet")
    for name, values in extra.items():
        assert table.column(name).to_pylist() == values
    assert table.column("texts").to_pylist() == [["x"], ["y"]]


def test_title_is_the_first_text(folder: Folder) -> None:
    rows = [
        {"id": "a", "title": "one", "texts": ["two", "three"]},
        {"id": "b", "texts": ["four"]},
        {"id": "c", "title": "five"},
        {"id": "d"},
    ]
    items = Catalogue.read(folder(items=rows)).items
    assert [item.texts for item in items] == [("one", "two", "three"), ("four",), ("five",), ()]


def test_paths_are_relative_to_the_folder(folder: Folder, picture: Callable[..., bytes]) -> None:
    path = folder(items=[{"id": "a", "images": ["p/a.png"]}])
    (path / "p").mkdir()
    (path / "p/a.png").write_bytes(picture("red"))
    assert Catalogue.read(path).items[0].images == (path / "p/a.png",)


def test_writing_never_replaces_or_leaves_half(picture: Callable[..., bytes], tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old/notes.txt").write_text("mine")
    with pytest.raises(CatalogueError, match="exists and is not empty"):
        shop(picture).write(tmp_path / "old")
    with pytest.raises(PictureError, match="none.png"):
        Catalogue.build([Item("a", images=["none.png"])]).write(tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old"]
    with pytest.raises(UsageError, match="use parquet or jsonl"):
        shop(picture).write(tmp_path / "new", "csv")


@pytest.mark.parametrize("format", ["parquet", "jsonl"])
def test_only_images_are_copied_into_a_catalogue(
    folder: Folder, picture: Callable[..., bytes], format: str
) -> None:
    where = folder(
        items=[{"id": "a", "images": ["a.png", "secret.png"]}, {"id": "b", "images": ["secret.png"]}]
    )
    (where / "a.png").write_bytes(picture())
    (where / "secret.png").write_text("secret")
    with pytest.warns(UserWarning, match=r"2 image files skipped, first: .*secret\.png: not an image in"):
        Catalogue.read(where).write(where / "new", format)
    assert [len(item.images) for item in Catalogue.read(where / "new").items] == [1, 0]
    assert not any(b"secret" in path.read_bytes() for path in (where / "new").rglob("*") if path.is_file())


def test_own_items_and_filter_pairs_are_excluded() -> None:
    rng = np.random.default_rng(0)
    ids = [f"i{n}" for n in range(12)]
    train = {i: [ids[j] for j in rng.choice(12, rng.integers(0, 8))] for i in rng.permutation(ids)[:9]}
    pairs = [(ids[i], ids[j]) for i, j in rng.integers(12, size=(20, 2))]
    catalogue = Catalogue.build([Item(i, [i]) for i in ids], filter=pairs, train=train)
    split = catalogue.split("train")
    assert catalogue.labels is catalogue.items
    assert catalogue.labels_are_items
    for point, (item, labels) in enumerate(train.items()):
        assert ids[split.members[point]] == item
        hidden = {item} | {label for i, label in pairs if i == item}
        for column, label in enumerate(ids):
            assert split.exclude[point, column] == (label in hidden)
            assert split.relevance[point, column] == (label in labels and label not in hidden)
    assert split.relevance.dtype == split.exclude.dtype == bool


def test_separate_labels_exclude_only_filter_pairs() -> None:
    items, labels = [Item("x", ["x"])], [Item("x", ["x"]), Item("y", ["y"]), Item("z", ["z"])]
    pairs = [("x", "y")]
    split = Catalogue.build(items, labels, filter=pairs, train=[("x", ["x", "y", "z"])]).split("train")
    assert split.relevance.toarray().tolist() == [[True, False, True]]
    assert split.exclude.toarray().tolist() == [[False, True, False]]


def test_sets_become_leave_one_out_points() -> None:
    ids = ["a", "b", "c", "d", "never", "alone"]
    sets = [["d", "a", "b"], ["b", "c"], ["alone"], ["a", "a"], []]
    catalogue = Catalogue.build([Item(i, [i]) for i in ids], sets={"outfits": sets}).from_sets("outfits")
    split = catalogue.split("train")
    assert catalogue.labels.ids.to_pylist() == ["a", "b", "c", "d"]
    assert catalogue.splits == ["train"]
    assert catalogue.labels_are_items
    found = []
    for point in range(len(split)):
        members = [ids[m] for m in split.members[split.offsets[point] : split.offsets[point + 1]]]
        label = [catalogue.labels[int(c)].id for c in split.relevance[point].indices]
        hidden = {catalogue.labels[int(c)].id for c in split.exclude[point].indices}
        assert hidden == set(members)
        found.append((members, label))
    expected = [(["a", "b"], ["d"]), (["d", "b"], ["a"]), (["d", "a"], ["b"]), (["c"], ["b"]), (["b"], ["c"])]
    assert found == expected
    taken = split.take(np.array([4, 0]))
    assert (taken.offsets.tolist(), [ids[m] for m in taken.members]) == ([0, 1, 3], ["b", "a", "b"])
    assert taken.relevance.toarray().tolist() == split.relevance[[4, 0]].toarray().tolist()
    with pytest.raises(UsageError, match="made from sets"):
        catalogue.write("anywhere")


def test_one_point_per_set_leaves_out_its_blank(tmp_path: Path) -> None:
    rows = [
        {"items": ["a", "b", "c"], "blank": "b"},
        {"items": ["a"], "blank": "a"},
        {"items": ["c", "d", "a"]},
    ]
    Catalogue.build([Item(i, [i]) for i in "abcd"]).write(tmp_path / "shop", "jsonl")
    sets = tmp_path / "shop" / "outfits.jsonl"
    sets.write_text("".join(json.dumps(row) + "\n" for row in rows))
    shop = Catalogue.read(tmp_path / "shop")
    made = [shop.from_sets("outfits", "one", seed).split("train") for seed in range(9)]
    assert [np.diff(split.offsets).tolist() for split in made] == [[2, 2]] * 9
    left = [split.relevance.indices.tolist() for split in made]
    assert {first for first, _ in left} == {1}
    assert {second for _, second in left} == {0, 2, 3}  # drawn, where a set names none
    assert left[3] == shop.from_sets("outfits", "one", 3).split("train").relevance.indices.tolist()
    sets.write_text(json.dumps(rows[0] | {"blank": "d"}))
    with pytest.raises(CatalogueError, match=r"outfits.jsonl.*1: blank 'd' is not an item of its set"):
        Catalogue.read(tmp_path / "shop").from_sets("outfits", "one")
    report = check(tmp_path / "shop")
    assert not report.usable
    assert any("blank is not an item of its set" in problem.message for problem in report.problems)


def test_sets_that_cannot_be_used() -> None:
    items = [Item("a", ["a"])]
    with pytest.raises(CatalogueError, match="no sets 'outfits'; this catalogue has: none"):
        Catalogue.build(items).from_sets("outfits")
    with pytest.raises(CatalogueError, match="nothing to leave out"):
        Catalogue.build(items, sets={"outfits": [["a"]]}).from_sets("outfits")


def test_questions(folder: Folder) -> None:
    rows = [
        {"query": ["a", "b"], "choices": ["c", "d"], "answer": 1},
        {"query": ["d"], "choices": ["a", "b"], "answer": 0},
    ]
    path = folder(items=[{"id": i, "title": i} for i in "abcd"], fitb=rows)
    for questions in (
        Catalogue.read(path).questions("fitb"),
        Catalogue.read(path).questions(path / "fitb.jsonl"),
    ):
        assert [query.tolist() for query in questions.query] == [[0, 1], [3]]
        assert questions.choices.tolist() == [[2, 3], [0, 1]]
        assert questions.answer.tolist() == [1, 0]
    with pytest.raises(CatalogueError, match="this catalogue has: fitb"):
        Catalogue.read(path).questions("other")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"query": ["a"], "choices": ["b"], "answer": 0}, "fitb.jsonl:2: 1 choices, but 2 in the first"),
        ({"query": ["a"], "choices": ["b", "c"], "answer": 2}, "fitb.jsonl:2: answer 2 is not an index of 2"),
        ({"query": ["z"], "choices": ["b", "c"], "answer": 1}, "fitb.jsonl:2: unknown item id 'z'"),
    ],
)
def test_odd_questions(folder: Folder, row: dict[str, Any], message: str) -> None:
    good = {"query": ["a", "b"], "choices": ["c", "d"], "answer": 1}
    path = folder(items=[{"id": i, "title": i} for i in "abcd"], fitb=[good, row])
    with pytest.raises(CatalogueError, match=message):
        Catalogue.read(path).questions("fitb")


def test_only_one_modality(picture: Callable[..., bytes]) -> None:
    catalogue = shop(picture)
    pictures = catalogue.only("image")
    assert [item.texts for item in pictures.items] == [(), (), ()]
    assert list(pictures.labels) == list(catalogue.labels)  # text-only labels would be nothing without it
    assert pictures.split("train").relevance.nnz == 1
    own = Catalogue.build([Item("a", ["a"], [picture("red")])]).only("text")
    assert own.labels is own.items
    assert own.items[0].images == ()


def test_the_demo_is_whole() -> None:
    catalogue = Catalogue.demo()
    train, test = catalogue.split("train"), catalogue.split("test")
    assert len(train) + len(test) == len(catalogue.items)
    assert np.asarray(train.relevance.sum(axis=0)).min() >= 2
    assert not set(train.members) & set(test.members)
    assert set(catalogue.items.table.column("category").to_pylist()) >= {"openclipart", "tabler"}


@pytest.mark.parametrize("format", ["parquet", "jsonl"])
def test_writing_leaves_everything_else_alone(
    tmp_path: Path, picture: Callable[..., bytes], format: Format
) -> None:
    mine = [tmp_path / "shop.tmp" / "notes.txt", tmp_path / ".shop.tmp", tmp_path / f"a.{format}.tmp"]
    for path in mine:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    shop(picture).write(tmp_path / "shop", format)
    rows = pa.table({"id": ["a"]})
    if format == "parquet":
        parquet.write([rows], tmp_path / "a.parquet")
    else:
        jsonl.write(jsonl.rows(rows), tmp_path / "a.jsonl")
    with pytest.raises(CatalogueError, match="cannot be read"):
        Catalogue.build([Item("a", images=["none.png"])]).write(tmp_path / "new")
    assert [path.read_text() for path in mine] == ["mine"] * 3
    assert {path.name for path in tmp_path.iterdir()} == {
        "shop", "shop.tmp", ".shop.tmp", f"a.{format}", f"a.{format}.tmp",
    }  # fmt: skip
