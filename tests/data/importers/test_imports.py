"""The samples of every form: what is read, what is told of, and import → check → train → evaluate."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from mufin.cli import main
from mufin.data.catalogue import Catalogue
from mufin.data.check import check
from mufin.data.importers.amazon.curate import Curation
from mufin.data.importers.tabular import Columns
from mufin.errors import CatalogueError, UsageError

if TYPE_CHECKING:
    from mufin.config import Config

SAMPLES = Path(__file__).resolve().parents[2] / "samples"
AMAZON = SAMPLES / "amazon"
TABLE = SAMPLES / "table"
TAGS = {"id": "sku", "text": ["title", "description"], "image": ["photo", "photo2"], "labels": "tags"}

Mufin = Callable[..., dict[str, Any]]


@pytest.fixture
def mufin(capsys: pytest.CaptureFixture[str]) -> Mufin:
    def run(*arguments: object, code: int = 0) -> dict[str, Any]:
        capsys.readouterr()
        assert main([*map(str, arguments), "--json"]) == code
        found: dict[str, Any] = json.loads(capsys.readouterr().out or "{}")
        return found

    return run


# -- import → check → train → evaluate -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["amazon", AMAZON / "meta-2014.json", "--curate", "mm-amazontitles"], {"bad lines": 2}),
        (["amazon", AMAZON / "meta-2018.json.gz", "--curate", "mm-amazontitles"], {"bad lines": 3}),
        (
            ["amazon", AMAZON / "meta-2023.jsonl", "--curate", "mm-amazontitles", "--test", "0.2"],
            {"bad lines": 0},
        ),
        (["xc", SAMPLES / "xc"], {"filter pairs": 40}),
        (["xc", SAMPLES / "released"], {"filter pairs": 0}),
        (["polyvore", SAMPLES / "polyvore"], {"items in train and test": 0}),
        (
            ["table", TABLE / "products.csv", "--text", "title", "--image", "photo", "--labels", "tags"],
            {"bad lines": 1},
        ),
        (["dataset", TABLE / "saved", "--text", "caption", "--image", "image", "--labels", "tags"], {}),
    ],
    ids=["amazon-2014", "amazon-2018", "amazon-2023", "xc", "released-mufin", "polyvore", "csv", "dataset"],
)
def test_round_trip(
    mufin: Mufin, tmp_path: Path, tiny_config: Config, arguments: list[object], expected: dict[str, int]
) -> None:
    settings = tmp_path / "tiny.toml"
    settings.write_text(tiny_config.to_toml(), "utf-8")
    folder, run = tmp_path / "shop", tmp_path / "run"
    imported = mufin("import", *arguments, "-o", folder)
    assert {name: imported["counts"][name] for name in expected} == expected
    report = check(folder)
    assert report.usable, report.problems
    outfits = ["--sets", "train_outfits"] if arguments[0] == "polyvore" else []
    assert mufin("train", folder, "-o", run, "--config", settings, *outfits)["labels"] > 10
    if outfits:
        answers = mufin("evaluate", run, folder, "--fitb", "fitb_test")
        assert set(answers) == {"accuracy", "questions"}
        assert answers["questions"] == imported["statistics"]["test"] == 3
    else:
        scores = mufin("evaluate", run, folder)
        assert 0 < scores["R@100"] <= 100
        assert report.splits["test"].points == imported["statistics"]["test"]
        assert report.splits["train"].points == imported["statistics"]["N"]
        assert report.labels == imported["statistics"]["L"]


# -- Amazon --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["meta-2014.json", "meta-2018.json.gz", "meta-2023.jsonl"])
def test_amazon_as_it_is(name: str) -> None:
    catalogue = Catalogue.from_amazon(AMAZON / name)
    assert catalogue.labels is catalogue.items
    assert catalogue.splits == ["train"]
    assert len(catalogue.items) == len(catalogue.split("train")) == 40
    names = catalogue.items.ids.to_pylist()
    row = names.index("B000000010")
    relevant = catalogue.split("train").relevance[row].indices
    assert catalogue.items[row].texts == ("green desk",)
    assert {names[label] for label in relevant} == {"B000000011", "B000000012", "B000000015"}
    assert catalogue.imported is not None
    assert catalogue.imported.statistics.L == 40


def test_amazon_2014_texts_and_pictures() -> None:
    catalogue = Catalogue.from_amazon(AMAZON / "meta-2014.json")
    assert catalogue.items[1].texts == ('the "kids\'" lamp, 5\\" wide, café',)
    urls = catalogue.items.table["image_urls"].to_pylist()
    assert urls[0] == ["https://pictures.example.com/I/B000000000.jpg"]
    assert urls[2] == []  # the drawing that stands for no picture
    assert catalogue.items[0].category == "Home"
    assert catalogue.imported is not None
    told = [str(problem) for problem in catalogue.imported.problems]
    assert told[0] == "meta-2014.json:6: not a Python literal; line skipped (2)"
    assert "duplicate asin" in told[1]


def test_amazon_2018_curated() -> None:
    catalogue = Catalogue.from_amazon(AMAZON / "meta-2018.json.gz", curate=Curation(seed=3))
    table, ids = catalogue.items.table, catalogue.items.ids.to_pylist()
    urls = dict(zip(ids, table["image_urls"].to_pylist(), strict=True))
    assert len(urls["B000000000"]) == 15
    assert "B000000003" not in ids  # neither title nor picture
    assert catalogue.items[ids.index("B000000002")].texts == ()  # a script is no title
    assert catalogue.items[ids.index("B000000004")].texts == ("1984",)
    assert "B000000001" not in ids  # it names nobody …
    assert "B000000001" in catalogue.labels.ids.to_pylist()  # … but is named
    train, test = catalogue.split("train"), catalogue.split("test")
    hidden = catalogue.filter
    labels = catalogue.labels.ids.to_pylist()
    for row, name in enumerate(ids):
        if name in labels:
            assert hidden[row, labels.index(name)]
    of = {ids[m]: {labels[c] for c in train.relevance[i].indices} for i, m in enumerate(train.members)}
    for i, member in enumerate(test.members):
        for column in test.relevance[i].indices:
            assert ids[member] not in of.get(labels[column], set())
    assert (np.asarray(train.relevance.sum(axis=0)) > 0).all()
    assert not set(train.members) & set(test.members)


def test_a_bad_first_line_is_one_bad_line(tmp_path: Path) -> None:
    good = (AMAZON / "meta-2023.jsonl").read_text()
    (tmp_path / "x.jsonl").write_text('{"cut\n[1]\n' + good)
    catalogue = Catalogue.from_amazon(tmp_path / "x.jsonl")
    assert len(catalogue.items) == 40
    assert catalogue.imported is not None
    assert catalogue.imported.counts["bad lines"] == 2


def test_amazon_2023_prefers_large_pictures() -> None:
    catalogue = Catalogue.from_amazon(AMAZON / "meta-2023.jsonl")
    host = "https://pictures.example.com/I/B000000005"
    assert catalogue.items.table["image_urls"][5].as_py() == [f"{host}.jpg", f"{host}-hi.jpg"]
    assert catalogue.split("train").relevance[4].nnz == 0  # bought_together is null


def test_mm_amazontitles_own_files(tmp_path: Path) -> None:
    rows = [
        {"ASIN": f"B{i}", "title": f"thing {i}", "images": [f"http://x/{i}.jpg"], "also_buy": ["B1", "B2"]}
        for i in range(4)
    ]
    (tmp_path / "mm.json").write_text("\n".join(map(json.dumps, rows)))
    catalogue = Catalogue.from_amazon(tmp_path / "mm.json")
    assert catalogue.split("train").relevance.nnz == 6


def test_several_files_make_one_catalogue(tmp_path: Path) -> None:
    lines = (AMAZON / "meta-2023.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "a.jsonl").write_text("".join(lines[:15]))
    (tmp_path / "b.jsonl").write_text("".join(lines[15:]))
    parts = Catalogue.from_amazon(tmp_path / "a.jsonl", tmp_path / "b.jsonl")
    whole = Catalogue.from_amazon(AMAZON / "meta-2023.jsonl")
    assert parts.items.table.equals(whole.items.table)
    assert (parts.split("train").relevance != whole.split("train").relevance).nnz == 0


def test_amazon_that_cannot_be_used(tmp_path: Path) -> None:
    for text, expected in (
        ("", "empty"),
        ("hello", "neither JSON objects nor Python literals"),
        ('{"name": "x"}', "no asin"),
        ("[1]", "neither JSON objects"),
        ('{"asin": "B1", "title": "alone"}', "no product to train on"),
    ):
        (tmp_path / "x.json").write_text(text)
        with pytest.raises(CatalogueError, match=expected):
            Catalogue.from_amazon(tmp_path / "x.json", curate=Curation())
    with pytest.raises(CatalogueError, match="no such file"):
        Catalogue.from_amazon(tmp_path / "none.json")
    with pytest.raises(UsageError, match="no file"):
        Catalogue.from_amazon()


# -- Extreme Classification ----------------------------------------------------------------------------------


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


# -- Polyvore ------------------------------------------------------------------------------------------------


def test_polyvore() -> None:
    catalogue = Catalogue.from_polyvore(SAMPLES / "polyvore")
    assert catalogue.sets == ["train_outfits", "valid_outfits", "test_outfits"]
    questions = catalogue.questions("fitb_test")
    ids = catalogue.items.ids.to_pylist()
    assert [ids[questions.choices[i, questions.answer[i]]] for i in range(3)] == ["1006", "1016", "1026"]
    assert questions.answer.tolist() == [0, 1, 2]
    assert [len(query) for query in questions.query] == [4, 4, 4]
    first = catalogue.items[ids.index("1000")]
    assert first.texts == ("red desk",)  # the name in the address, where there is no title
    assert first.category == "desk"
    assert len(first.images) == 1
    trained = catalogue.from_sets("train_outfits")
    assert not {"1006"} & set(trained.labels.ids.to_pylist())
    assert catalogue.imported is not None
    told = [str(problem) for problem in catalogue.imported.problems]
    assert any("invalid question" in text for text in told)
    assert not any("disjoint" in text for text in told)


def test_polyvore_has_the_form_of_the_paper() -> None:
    """Short captions; one point per outfit, which is the outfit without its blank."""
    catalogue = Catalogue.from_polyvore(SAMPLES / "polyvore")
    train = catalogue.from_sets("train_outfits", "one").split("train")
    asked = catalogue.questions("fitb_train")
    assert len(train) == len(asked) == 3
    for point, (query, choices, answer) in enumerate(
        zip(asked.query, asked.choices, asked.answer, strict=True)
    ):
        members = train.members[train.offsets[point] : train.offsets[point + 1]]
        assert members.tolist() == query.tolist()
        label = catalogue.from_sets("train_outfits").labels.ids[int(train.relevance[point].indices[0])]
        assert label.as_py() == catalogue.items.ids[int(choices[answer])].as_py()
    assert catalogue.imported is not None
    row = catalogue.imported.statistics
    assert (row.N, row.test, row.labels_per_point) == (3, 3, 1)
    assert (row.tokens, row.images) == (
        8,
        pytest.approx(11 / 3),
    )  # four items of two words; one lacks its image


def test_polyvore_in_a_richer_form(mufin: Mufin, tmp_path: Path) -> None:
    mufin("import", "polyvore", SAMPLES / "polyvore", "-o", tmp_path / "o", "--descriptions")
    catalogue = Catalogue.read(tmp_path / "o")
    assert catalogue.items[0].texts == ("red desk", "a nice one")
    assert len(catalogue.from_sets("train_outfits", "each").split("train")) == 15  # 3 outfits of 5 items
    assert (
        len(catalogue.from_sets("train_outfits", "one").split("train")) == 3
    )  # its blanks were written, too


def test_polyvore_audits_its_splits(tmp_path: Path) -> None:
    shared = Catalogue.from_polyvore(SAMPLES / "polyvore", "nondisjoint").imported
    assert shared is not None
    assert shared.counts["items in train and test"] == 8
    shutil.copytree(SAMPLES / "polyvore", tmp_path / "p")
    shutil.copy(tmp_path / "p" / "nondisjoint" / "train.json", tmp_path / "p" / "disjoint" / "train.json")
    leaking = Catalogue.from_polyvore(tmp_path / "p").imported
    assert leaking is not None
    assert any("should be disjoint" in problem.message for problem in leaking.problems)


def test_polyvore_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(CatalogueError, match="no folder disjoint"):
        Catalogue.from_polyvore(tmp_path)
    shutil.copytree(SAMPLES / "polyvore", tmp_path / "p")
    path = tmp_path / "p" / "disjoint" / "train.json"
    for text, expected in (
        ("{", "not JSON"),
        ("{}", "expected a list"),
        ("[]", "no outfits"),
        ('[{"set_id": 1}]', "has no"),
    ):
        path.write_text(text)
        with pytest.raises(CatalogueError, match=expected):
            Catalogue.from_polyvore(tmp_path / "p")
    path.unlink()
    with pytest.raises(CatalogueError, match="training outfits"):
        Catalogue.from_polyvore(tmp_path / "p")


# -- tables --------------------------------------------------------------------------------------------------


def test_a_table() -> None:
    catalogue = Catalogue.from_table(TABLE / "products.csv", **TAGS)
    ids = catalogue.items.ids.to_pylist()
    item = catalogue.items[7]
    assert (len(ids), item.id, item.texts) == (
        40,
        "B000000007",
        ("red clock", "a red clock, solid, for the home"),
    )
    assert item.images[0] == TABLE / "photos" / "red-clock.png"
    assert catalogue.items.table["image_urls"][7].as_py() == ["https://pictures.example.com/I/B000000007.png"]
    assert catalogue.items[0].images == ()  # its file is not there
    assert "red things" in catalogue.labels.ids.to_pylist()
    train, test = catalogue.split("train"), catalogue.split("test")
    assert len(train) + len(test) == 40
    assert set(np.diff(train.relevance.indptr)) == {2}
    assert catalogue.imported is not None
    assert [problem.line for problem in catalogue.imported.problems] == [22, None]


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
            "two": [["http://x/1.png"], ["b.png", "none.png"]],
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
    with pytest.raises(CatalogueError, match="is not unique"):
        Catalogue.from_table(path, id="id", text="t")
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


# -- datasets ------------------------------------------------------------------------------------------------

CAPTIONS = {"text": "caption", "image": "image", "labels": "tags"}


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
