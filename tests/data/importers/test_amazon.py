"""Amazon product metadata: the fields of each release, curation, bad lines."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from mufin.data.catalogue import Catalogue
from mufin.data.importers.amazon.curate import Curation
from mufin.errors import CatalogueError, UsageError

SAMPLES = Path(__file__).resolve().parents[2] / "samples"
AMAZON = SAMPLES / "amazon"


@pytest.mark.parametrize("name", ["meta-2014.json", "meta-2018.json.gz", "meta-2023.jsonl"])
def test_amazon_without_curation(name: str) -> None:
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


def test_amazon_2014_texts_and_images() -> None:
    catalogue = Catalogue.from_amazon(AMAZON / "meta-2014.json")
    assert catalogue.items[1].texts == ('the "kids\'" lamp, 5\\" wide, café',)
    urls = catalogue.items.table["image_urls"].to_pylist()
    assert urls[0] == ["https://pictures.example.com/I/B000000000.jpg"]
    assert urls[2] == []  # the placeholder image is dropped
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
    assert "B000000003" not in ids  # neither title nor image
    assert catalogue.items[ids.index("B000000002")].texts == ()  # a script is no title
    assert catalogue.items[ids.index("B000000004")].texts == ("1984",)
    assert "B000000001" not in ids  # it has no labels …
    assert "B000000001" in catalogue.labels.ids.to_pylist()  # … but is a label
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


def test_amazon_2023_prefers_large_images() -> None:
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
