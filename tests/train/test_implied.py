"""Labels that titles say: found, and remembered where a catalogue leaves them out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

from mufin import Catalogue, Config, Item, fit, load, save
from mufin.bag import PackedBags
from mufin.candidates import overlap, said, shared_words
from mufin.data.items import Items
from mufin.encode.embedder import Embedder
from mufin.encode.words import TITLES, Words, titles
from mufin.progress import Progress
from mufin.train.data import TrainingData
from mufin.train.fit import training_data
from mufin.train.implied import implied, said_pairs

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


def data_of(catalogue: Catalogue, config: Config) -> TrainingData:
    config = config.override(["text.words=true"])
    embedder = Embedder(config)
    return training_data(embedder, catalogue, catalogue.split("train"), config, Progress(quiet=True))


def test_titles_are_the_words_of_first_texts() -> None:
    found = titles(items(["Oak desk, OAK"], ["oak", "desk"], [], ["?"]))
    assert found.shape == (4, TITLES)
    assert np.diff(found.indptr).tolist() == [2, 1, 0, 0]
    assert (found.data == 1).all()
    assert found[0].multiply(found[1]).nnz == 1
    assert titles(items()).shape == (0, TITLES)


def test_said_pairs_are_those_that_sets_of_words_give() -> None:
    rng = np.random.default_rng(0)
    words = [f"word{number}" for number in range(12)]
    some = [[" ".join(rng.choice(words, rng.integers(0, 5)))] for _ in range(60)]
    others = [[" ".join(rng.choice(words, rng.integers(0, 3)))] for _ in range(30)]
    found = said_pairs(titles(items(*some)), titles(items(*others))).toarray()
    for i, (title,) in enumerate(some):
        for j, (label,) in enumerate(others):
            assert found[i, j] == (bool(label) and set(label.split()) <= set(title.split()))
    assert found.any()


def test_what_titles_say_is_implied_where_it_is_left_out(tiny_config: Config) -> None:
    catalogue = icons(says=False)
    more = implied(data_of(catalogue, tiny_config))
    assert more is not None
    rows = [set(more[i].indices) for i in range(more.shape[0])]
    names = catalogue.labels.ids.to_pylist()
    for item, row in zip(catalogue.items, rows, strict=True):
        words = set(item.texts[0].split())
        assert {names[l] for l in row} == {name for name in names if set(name.split()) <= words}
    assert not any("sharp" in {names[l] for l in row} for row in rows)


def test_nothing_is_implied_where_it_is_listed_or_cannot_be_told(tiny_config: Config) -> None:
    assert implied(data_of(icons(says=True), tiny_config)) is None
    assert implied(data_of(icons(says=False, repeats=2), tiny_config)) is None  # too few to tell
    data = data_of(icons(says=False), tiny_config)
    without = replace(data.points, titles=None)
    assert implied(replace(data, points=without)) is None


@pytest.mark.parametrize("sets", [False, True])
def test_no_item_says_another(tiny_config: Config, sets: bool) -> None:
    names = [f"{thing} {way}" for thing in THINGS for way in WAYS]
    things = [Item(name, [name]) for name in (*names, *THINGS)]
    if sets:
        outfits = [[names[i], names[i - 1], names[i - 5], thing] for i in range(16) for thing in THINGS]
        catalogue = Catalogue.build(things, sets={"outfits": outfits}).from_sets("outfits")
    else:
        catalogue = Catalogue.build(things, train={name: [names[i - 1]] for i, name in enumerate(names)})
    settings = ["text.words=true", "memory.neighbours=5", "memory.implied=true"]
    model = fit(catalogue, tiny_config.override(settings), quiet=True)
    assert len(model.memory.labels) == catalogue.split("train").relevance.nnz


def test_items_behind_those_of_the_split_change_nothing(tiny_config: Config) -> None:
    """As where the items of a test split come last."""
    alone, behind = (
        implied(data_of(icons(says=False, others=others), tiny_config))
        for others in ([], [Item("later", ["moon"])])
    )
    assert alone is not None
    assert behind is not None
    assert alone.shape == behind.shape
    assert (alone != behind).nnz == 0


def test_labels_that_must_not_be_seen_are_not_implied(tiny_config: Config) -> None:
    data = data_of(icons(says=False), tiny_config)
    more = implied(data)
    assert more is not None
    assert more[:20].nnz
    hidden = np.zeros(more.shape, bool)
    hidden[:20] = True
    again = implied(replace(data, exclude=csr_matrix(hidden)))
    assert again is not None
    assert not again[:20].nnz
    assert (again[20:] != more[20:]).nnz == 0


def test_remembered_points_vote_for_what_their_titles_say(tiny_config: Config, tmp_path) -> None:
    settings = ["text.words=true", "memory.neighbours=5", "rank.beta=learnt", "run.validation=0.1"]
    config = tiny_config.override(settings)
    catalogue = icons(says=False)
    asked = Item("new", ["pointer arrow left"])
    with_it = fit(catalogue, config.override(["memory.implied=true"]), out=tmp_path, quiet=True)
    without = fit(catalogue, config, quiet=True)
    assert torch.equal(with_it.memory.labels, without.memory.labels)
    assert without.memory.said is None
    assert with_it.memory.said is not None
    assert len(with_it.memory.said.labels) > 0
    moon = {hit.label: hit for hit in with_it.recommend(Item("m", ["moons at left"]), k=6)}["moon"]
    assert moon.titles_by_words > 0
    assert moon.words == 0
    assert all(
        hit.titles_by_words == hit.words == 0
        for hit in without.recommend(Item("m", ["moons at left"]), k=6)
        if hit.label == "moon"
    )
    found = {hit.label: hit for hit in with_it.recommend(asked, k=6)}
    assert found["arrow"].overlap == 1
    assert found["cat"].overlap < 1
    assert load(tmp_path).recommend(asked, k=6) == with_it.recommend(asked, k=6)
    save(load(tmp_path), tmp_path / "again")
    assert load(tmp_path / "again").recommend(asked, k=6) == with_it.recommend(asked, k=6)


def test_words_are_shared_in_full_where_a_title_says_a_label() -> None:
    words = Words()
    asked = items(["big red arrow"], ["moon", "red arrow"], [])
    labels = items(["red arrow"], ["arrow up"], ["?"])
    known = PackedBags(torch.zeros(3, 2), torch.arange(4), words.vectors(labels), titles(labels))
    candidates = torch.tensor([[0, 1, 2, -1]] * 3)
    told = said(titles(asked), titles(labels), candidates)
    assert told.tolist() == [[True, False, False, False], *[[False] * 4] * 2]
    plain = overlap(words.vectors(asked), words.vectors(labels), candidates)
    shared = shared_words(words.vectors(asked), titles(asked), known, candidates)
    assert torch.equal(shared, plain.masked_fill(told, 1.0))
    assert 0 < plain[0, 0] < 1
    older = replace(known, titles=None)  # of a folder that was saved without
    assert torch.equal(shared_words(words.vectors(asked), titles(asked), older, candidates), plain)
    assert not shared_words(None, None, known, candidates).any()


def test_labels_that_come_later_are_said_too(tiny_config: Config) -> None:
    model = fit(icons(says=False), tiny_config.override(["text.words=true"]), quiet=True)
    model.add_labels(Item("later", ["wheel left"]))
    found = {hit.label: hit.overlap for hit in model.recommend(Item("w", ["left wheel"]), k=9)}
    assert found["later"] == 1
    model.remove_labels(["cat"])
    model.compact()
    assert model.labels.bags.titles is not None
    assert model.labels.bags.titles.shape[0] == len(model.labels)
