"""Polyvore Outfits: sets, blanks, questions."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mufin.data.catalogue import Catalogue
from mufin.errors import CatalogueError

SAMPLES = Path(__file__).resolve().parents[2] / "samples"

Mufin = Callable[..., dict[str, Any]]


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
