"""Labels that titles name: found, and voted for where a catalogue leaves them out of its lists."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

from mufin import Catalogue, Config, Item, Mufin, fit, load, save
from mufin.data.items import Items
from mufin.encode.rows import SparseRows
from mufin.encode.words import TITLE_WIDTH, title_words
from mufin.signals.titles import Titles, contains_label, title_label_pairs, unlisted_title_labels

THINGS = ("arrow", "moon", "cat", "wheel")
WAYS = ("left", "right", "up", "down")


def items(*texts: list[str]) -> Items:
    return Items.of([Item(id=str(i), texts=list(some)) for i, some in enumerate(texts)])


def icons(says: bool, repeats: int = 12, others: Sequence[Item] = ()) -> Catalogue:
    """Arrows named "arrow left" or "glyph left", labelled "sharp" and, unless the name says it, "arrow"."""
    labels = [Item(name, [name]) for name in (*THINGS, "sharp", "left moon")]
    icons, train = [], {}
    for number in range(repeats):
        for thing in THINGS:
            for way in WAYS:
                name = thing if number % 2 else "glyph"
                icons.append(Item(f"{thing}-{way}-{number}", [f"{name} {way}"]))
                train[icons[-1].id] = ["sharp", *([thing] if says or name == "glyph" else [])]
    return Catalogue.build([*icons, *others], labels, train=train)


def titles_of(model: Mufin) -> Titles:
    return next(signal for signal in model.signals if isinstance(signal, Titles))


def words_of(named: Items) -> SparseRows:
    return SparseRows.of(title_words(named), "set")


def found_in(catalogue: Catalogue, hidden: np.ndarray | None = None) -> csr_matrix | None:
    """The title labels of the train split's points."""
    points = catalogue.split("train")
    exclude = points.exclude if hidden is None else csr_matrix(hidden)
    pairs = title_label_pairs(words_of(catalogue.items.take(points.members)), words_of(catalogue.labels))
    return unlisted_title_labels(pairs, points.relevance, exclude)


def test_titles_are_the_words_of_first_texts() -> None:
    found = title_words(items(["Oak desk, OAK"], ["oak", "desk"], [], ["?"]))
    assert found.shape == (4, TITLE_WIDTH)
    assert np.diff(found.indptr).tolist() == [2, 1, 0, 0]
    assert (found.data == 1).all()
    assert found[0].multiply(found[1]).nnz == 1
    assert title_words(items()).shape == (0, TITLE_WIDTH)


def test_title_label_pairs_are_those_that_sets_of_words_give(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    words = [f"word{number}" for number in range(12)]
    some = [[" ".join(rng.choice(words, rng.integers(0, 5)))] for _ in range(60)]
    others = [[" ".join(rng.choice(words, rng.integers(0, 4)))] for _ in range(30)]
    monkeypatch.setattr("mufin.signals.titles.PAIRS_PER_CHUNK", 20)
    found = title_label_pairs(words_of(items(*some)), words_of(items(*others))).toarray()
    for i, (title,) in enumerate(some):
        for j, (label,) in enumerate(others):
            assert found[i, j] == (bool(label) and set(label.split()) <= set(title.split()))
    assert found.any()
    assert not title_label_pairs(words_of(items("?")), words_of(items("?"))).nnz


def test_title_labels_are_found_where_lists_leave_them_out() -> None:
    catalogue = icons(says=False)
    more = found_in(catalogue)
    assert more is not None
    rows = [set(more[i].indices) for i in range(more.shape[0])]
    names = catalogue.labels.ids.to_pylist()
    for item, row in zip(catalogue.items, rows, strict=True):
        words = set(item.texts[0].split())
        assert {names[l] for l in row} == {name for name in names if set(name.split()) <= words}
    assert not any("sharp" in {names[l] for l in row} for row in rows)


def test_there_are_none_where_they_are_listed_or_it_cannot_be_told() -> None:
    assert found_in(icons(says=True)) is None
    assert found_in(icons(says=False, repeats=2)) is None  # too few to tell


@pytest.mark.parametrize("sets", [False, True])
def test_no_item_says_another(tiny_config: Config, sets: bool) -> None:
    names = [f"{thing} {way}" for thing in THINGS for way in WAYS]
    things = [Item(name, [name]) for name in (*names, *THINGS)]
    if sets:
        outfits = [[names[i], names[i - 1], names[i - 5], thing] for i in range(16) for thing in THINGS]
        catalogue = Catalogue.build(things, sets={"outfits": outfits}).from_sets("outfits")
    else:
        catalogue = Catalogue.build(things, train={name: [names[i - 1]] for i, name in enumerate(names)})
    settings = ["text.words=true", "memory.neighbours=5", "memory.title_labels=true"]
    model = fit(catalogue, tiny_config.override(settings), quiet=True)
    assert len(model.points.labels) == catalogue.split("train").relevance.nnz
    assert not len(titles_of(model).title_labels.labels)


def test_items_behind_those_of_the_split_change_nothing(tiny_config: Config) -> None:
    """As where the items of a test split come last."""
    settings = ["text.words=true", "memory.neighbours=5", "memory.title_labels=true", "finetune.epochs=0"]
    config = tiny_config.override([*settings, "pretrain.epochs=0"])
    alone, behind = (
        titles_of(fit(icons(says=False, others=others), config, quiet=True)).title_labels
        for others in ([], [Item("later", ["moon"])])
    )
    assert len(alone.labels)
    assert torch.equal(alone.labels, behind.labels)
    assert torch.equal(alone.offsets, behind.offsets)


def test_labels_that_must_not_be_seen_are_no_title_labels() -> None:
    catalogue = icons(says=False)
    more = found_in(catalogue)
    assert more is not None
    assert more[:20].nnz
    hidden = np.zeros(more.shape, bool)
    hidden[:20] = True
    again = found_in(catalogue, hidden)
    assert again is not None
    assert not again[:20].nnz
    assert (again[20:] != more[20:]).nnz == 0


def test_remembered_points_vote_for_their_title_labels(tiny_config: Config, tmp_path: Path) -> None:
    settings = ["text.words=true", "memory.neighbours=5", "rank.beta=learnt", "run.validation=0.1"]
    config = tiny_config.override(settings)
    catalogue = icons(says=False)
    asked = Item("new", ["pointer arrow left"])
    with_it = fit(catalogue, config.override(["memory.title_labels=true"]), out=tmp_path, quiet=True)
    without = fit(catalogue, config, quiet=True)
    assert torch.equal(with_it.points.labels, without.points.labels)
    assert not len(titles_of(without).title_labels.labels)
    assert len(titles_of(with_it).title_labels.labels)
    moons = Item("m", ["moons at left"])
    moon = {hit.label: hit.evidence for hit in with_it.recommend(moons, k=6)}["moon"]
    assert moon["titles by words"] > 0
    assert moon["words"] == 0
    assert all(
        hit.evidence["titles by words"] == hit.evidence["words"] == 0
        for hit in without.recommend(moons, k=6)
        if hit.label == "moon"
    )
    found = {hit.label: hit.evidence for hit in with_it.recommend(asked, k=6)}
    assert found["arrow"]["in title"] == 1
    assert found["cat"]["in title"] == 0
    assert load(tmp_path, exact=True).recommend(asked, k=6) == with_it.recommend(asked, k=6)
    save(load(tmp_path), tmp_path / "again")
    assert load(tmp_path / "again", exact=True).recommend(asked, k=6) == with_it.recommend(asked, k=6)


def test_a_title_names_a_label_if_it_has_all_its_words() -> None:
    asked = items(["big red arrow"], ["moon", "red arrow"], [])
    labels = items(["red arrow"], ["arrow up"], ["?"])
    rows = [SparseRows.of(title_words(some), "set") for some in (asked, labels)]
    told = contains_label(*rows, torch.tensor([[0, 1, 2, -1]] * 3))
    assert told.tolist() == [[True, False, False, False], *[[False] * 4] * 2]


def test_labels_that_come_later_are_named_too(tiny_config: Config) -> None:
    model = fit(icons(says=False), tiny_config.override(["text.words=true"]), quiet=True)
    model.add_labels(Item("later", ["wheel left"]))
    found = {hit.label: hit.evidence["in title"] for hit in model.recommend(Item("w", ["left wheel"]), k=9)}
    assert found["later"] == 1
    model.remove_labels(["cat"])
    model.compact()
    assert len(titles_of(model).labels) == len(model.labels)


def test_points_that_come_later_have_no_title_labels(tiny_config: Config) -> None:
    settings = ["text.words=true", "memory.neighbours=5", "memory.title_labels=true", "finetune.epochs=0"]
    model = fit(icons(says=False), tiny_config.override([*settings, "pretrain.epochs=0"]), quiet=True)
    before = titles_of(model).title_labels
    model.add_examples([Item("x", ["moon up"])], [["sharp"]])
    after = titles_of(model).title_labels
    assert len(after) == len(model.points) == len(before) + 1
    assert torch.equal(after.labels, before.labels)
    model.remove_labels(["moon"])
    model.compact()
    assert len(titles_of(model).title_labels) == len(model.points)
    assert int(titles_of(model).title_labels.labels.max()) < len(model.labels)
