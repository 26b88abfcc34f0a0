"""A trained model: asking it, and labels that come and go."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from made import picture
from mufin import Catalogue, Config, Hit, Item, Mufin, fit, load, save
from mufin.data import images
from mufin.data.images import load_pixels, open_picture, read_bytes, suffix_of
from mufin.errors import PictureError, UsageError
from mufin.retrieve.lists import Lists


@pytest.fixture(scope="module")
def folder(tiny_model: Mufin, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "run"
    save(tiny_model, path)
    return path


@pytest.fixture
def model(folder: Path) -> Mufin:
    """A copy that may be changed."""
    return load(folder)


@pytest.fixture(scope="module")
def own_model(tiny_config: Config) -> Mufin:
    """Datapoints and labels are the same things."""
    items = [Item(f"i{n}", [f"thing {n % 5} number {n}"]) for n in range(20)]
    train = {f"i{n}": [f"i{(n + 5) % 20}", f"i{(n + 10) % 20}"] for n in range(20)}
    return fit(Catalogue.build(items, train=train), tiny_config, quiet=True)


ASKED = Item("q", ["red circle"], [picture("red", "circle")])


def ids(hits: list[Hit]) -> list[str]:
    return [hit.label for hit in hits]


def most_similar(hits: list[Hit]) -> str:
    """What an added label is when it is asked by its own words; its rank depends on the trained labels."""
    return max(hits, key=lambda hit: hit.similarity).label


# -- asking -------------------------------------------------------------------------------------------------


def test_pixels_are_asked_without_encoding_them(model: Mufin, monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = load_pixels(picture("red", "circle"), 48)
    encoded = read_bytes(Image.fromarray(pixels))
    wanted = model.recommend(Item("q", ["red circle"], [encoded]))

    def refuse(*_: object) -> bytes:
        raise AssertionError("an image of a query was encoded")

    monkeypatch.setattr(images, "_png", refuse)
    for image in (pixels, torch.from_numpy(pixels), Image.fromarray(pixels)):
        asked = Item("q", ["red circle"], [image])
        assert model.recommend(asked) == wanted
        assert model.recommend([asked, asked]) == model.recommend([Item("q", ["red circle"], [encoded])] * 2)


def test_a_label_of_pixels_keeps_a_thumbnail(model: Mufin, tmp_path: Path) -> None:
    pixels = np.full((200, 300, 3), 128, np.uint8)
    model.add_labels(Item("grey", ["a grey thing"], [pixels]))
    save(model, tmp_path / "run")
    again = load(tmp_path / "run").labels.items
    (kept,) = again[int(again.rows(["grey"])[0])].images
    assert open_picture(kept).size == (96, 64)


def test_a_catalogue_of_pixels_is_written_as_png(tmp_path: Path) -> None:
    pixels = load_pixels(picture("red", "circle"), 48)
    made = Catalogue.build([Item("a", images=[pixels])], [Item("l", ["a label"])], train={"a": ["l"]})
    for format in ("jsonl", "parquet"):
        made.write(tmp_path / format, format=format)
        (kept,) = Catalogue.read(tmp_path / format).items[0].images
        assert suffix_of(read_bytes(kept)) == ".png"
        assert np.array_equal(load_pixels(kept, 48), pixels)


def test_batch_is_single(tiny_model: Mufin, shop: Catalogue) -> None:
    items = [*shop.items[:20], ASKED, Item(texts=["a long title of a red thing that is cut somewhere"])]
    together = tiny_model.recommend(items, k=7)
    assert len(together) == len(items)
    for item, hits in zip(items, together, strict=True):
        alone = tiny_model.recommend(item, k=7)
        assert ids(alone) == ids(hits)
        for one, other in zip(alone, hits, strict=True):
            for part in ("score", "similarity", "classifier"):
                assert getattr(one, part) == pytest.approx(getattr(other, part), abs=2e-6)
    vectors = tiny_model.embed(items).vector()
    for item, vector in zip(items, vectors, strict=True):
        torch.testing.assert_close(tiny_model.embed(item).vector()[0], vector, atol=2e-6, rtol=0)


def test_asking_again_gives_the_same_numbers(tiny_model: Mufin) -> None:
    assert tiny_model.recommend(ASKED) == tiny_model.recommend(ASKED) == tiny_model.recommend([ASKED])[0]


def test_no_items(tiny_model: Mufin) -> None:
    assert tiny_model.recommend([]) == []
    assert len(tiny_model.embed([])) == 0


def test_k(tiny_model: Mufin) -> None:
    assert [len(tiny_model.recommend(ASKED, k=k)) for k in (1, 3, 7, 8, 1000)] == [1, 3, 7, 7, 7]
    every = ids(tiny_model.recommend(ASKED, k=1000))
    assert sorted(every) == sorted(tiny_model.labels.items.ids.to_pylist())
    assert ids(tiny_model.recommend(ASKED, k=3)) == every[:3]
    for k in (0, -1):
        with pytest.raises(UsageError, match=f"k is {k}"):
            tiny_model.recommend(ASKED, k=k)


def test_a_short_shortlist_still_gives_k(shop: Catalogue, tiny_config: Config) -> None:
    model = fit(shop, tiny_config.override(["retrieve.shortlist=2", "pretrain.epochs=1"]), quiet=True)
    assert len(model.recommend(ASKED, k=5)) == 5
    assert len(model.recommend(ASKED, k=2, deny=ids(model.recommend(ASKED, k=2)))) == 2


def test_allow_and_deny(tiny_model: Mufin) -> None:
    every = ids(tiny_model.recommend(ASKED, k=7))
    assert ids(tiny_model.recommend(ASKED, k=3, deny=every[:4])) == every[4:]
    assert ids(tiny_model.recommend(ASKED, k=3, deny=every[:2])) == every[2:5]
    assert ids(tiny_model.recommend(ASKED, k=3, allow=every[3:])) == every[3:6]
    assert ids(tiny_model.recommend(ASKED, k=5, allow=[every[-1]])) == every[-1:]
    assert ids(tiny_model.recommend(ASKED, k=5, allow=every[:4], deny=every[:2])) == every[2:4]
    assert tiny_model.recommend(ASKED, k=5, deny=every) == []
    assert tiny_model.recommend(ASKED, k=5, allow=[]) == []
    assert tiny_model.recommend([ASKED, ASKED], k=5, allow=every[:1], deny=every[:1]) == [[], []]
    plain = {hit.label: hit for hit in tiny_model.recommend(ASKED, k=7)}
    for hit in tiny_model.recommend(ASKED, k=2, allow=every[4:]):  # a filter changes no score
        assert hit.score == pytest.approx(plain[hit.label].score, abs=1e-6)
    for filters in ({"allow": ["nobody"]}, {"deny": [every[0], "nobody"]}):
        with pytest.raises(UsageError, match="no label 'nobody'"):
            tiny_model.recommend(ASKED, **filters)


def test_scores_are_numbers(tiny_model: Mufin, shop: Catalogue) -> None:
    odd = [
        Item(texts=["\0\x01\x02"]),
        Item(texts=["🦆" * 50]),
        Item(texts=["x" * 1_000_000]),
        Item(texts=["word " * 200_000]),
        Item(texts=["same"] * 300),
        Item(images=[picture("blue", "bar", size=16), picture("blue", "bar", size=700)] * 4),
    ]
    for hits in tiny_model.recommend([*shop.items, *odd], k=7):
        assert len(hits) == 7
        for hit in hits:
            assert all(math.isfinite(v) for v in (hit.score, hit.similarity, hit.classifier))
            assert -1.0001 <= hit.similarity <= 1.0001


def test_an_empty_item_gets_no_labels_and_a_warning(tiny_model: Mufin) -> None:
    for item in (Item("e"), Item("e", [" ", ""]), Item("e", [], [b"no picture"])):
        with pytest.warns(UserWarning, match="item 'e' has no text or readable image"):
            assert tiny_model.recommend(item) == []
    with pytest.warns(UserWarning, match="item 1 has no text"):
        first, second, third = tiny_model.recommend([ASKED, Item(), ASKED])
    wanted = tiny_model.recommend(ASKED)
    assert ids(first) == ids(third) == ids(wanted)
    assert first[0].score == pytest.approx(wanted[0].score, abs=2e-6)
    assert second == []
    broken = Item(texts=["red circle"], images=[b"broken"])
    assert tiny_model.recommend(broken) == tiny_model.recommend(Item(texts=["red circle"]))


def test_a_missing_image_is_an_error(model: Mufin, tmp_path: Path) -> None:
    for image, said in (
        ("gone.png", "gone.png: no such image"),
        (tmp_path, "no such image"),
        ("https://x", "URL"),
    ):
        item = Item("e", ["red"], [image])
        for call in (model.recommend, model.embed, model.add_labels, lambda i: model.explain(i, "q-red")):
            with pytest.raises(PictureError, match=said):
                call(item)
    with pytest.raises(PictureError, match="no such image"):
        model.recommend([ASKED, tmp_path / "gone.png"])


@pytest.mark.parametrize("modality", ["text", "image"])
def test_one_modality(modality: str, shop: Catalogue, tiny_config: Config) -> None:
    model = fit(shop, tiny_config.override([f"modalities={modality}", "pretrain.epochs=1"]), quiet=True)
    seen, unseen = Item("e", ["red"]), Item("e", [], [picture("red", "bar")])
    if modality == "image":
        seen, unseen = unseen, seen
    both = Item("e", ["red"], [picture("red", "bar")])
    assert model.recommend(both) == model.recommend(seen)
    with pytest.warns(UserWarning, match=f"reads: {modality}"):
        assert model.recommend(unseen) == []


def test_own_items_never_get_themselves(own_model: Mufin) -> None:
    items = list(own_model.labels.items)
    for item, hits in zip(items, own_model.recommend(items, k=50), strict=True):
        assert len(hits) == 19
        assert item.id not in ids(hits)
        assert ids(own_model.recommend(item, k=50)) == ids(hits)
    stranger = Item("new", items[3].texts)
    assert len(own_model.recommend(stranger, k=50)) == 20
    assert len(own_model.recommend(items[0], k=50, allow=["i0", "i1"])) == 1


def test_shortlist_and_hits_agree(tiny_model: Mufin) -> None:
    found = tiny_model.shortlist(ASKED, 7)
    similarity = dict(zip(found.labels[0].tolist(), found.similarity[0].tolist(), strict=True))
    for hit in tiny_model.recommend(ASKED, k=7):
        row = int(tiny_model.labels.rows([hit.label])[0])
        assert hit.similarity == pytest.approx(similarity[row], abs=1e-6)


# -- labels come and go -------------------------------------------------------------------------------------


NEW = Item("new", ["zebra crossing sign"])


def test_an_added_label_is_found_at_once(model: Mufin) -> None:
    before = model.recommend(ASKED, k=7)
    model.add_labels(NEW)
    assert len(model.labels) == 8
    hits = model.recommend(Item(texts=NEW.texts), k=8)
    best = next(hit for hit in hits if hit.label == most_similar(hits))
    assert (best.label, best.text) == ("new", "zebra crossing sign")
    assert best.similarity == pytest.approx(1, abs=1e-5)
    row = int(model.labels.rows(["new"])[0])
    assert float(model.labels.alpha[row]) == 1
    assert not bool(model.labels.has_centroid[row])
    kept = model.labels.weights[row]
    expected = model.labels.untrained * model.embed(NEW).vector()[0]
    torch.testing.assert_close(kept, expected.half(), atol=1e-3, rtol=0)
    old = {hit.label: hit.score for hit in model.recommend(ASKED, k=8)}
    for hit in before:
        assert old[hit.label] == pytest.approx(hit.score, abs=1e-6)


def test_labels_added_together_or_one_by_one(folder: Path) -> None:
    labels = [
        NEW,
        Item("pic", [], [picture("green", "bar")]),
        Item("two", ["a", "b"], [picture("red", "bar")]),
    ]
    together, single = load(folder), load(folder)
    together.add_labels(labels)
    for label in labels:
        single.add_labels(label)
    for one, other in zip(
        together.recommend([ASKED, NEW], k=10), single.recommend([ASKED, NEW], k=10), strict=True
    ):
        assert ids(one) == ids(other)
        assert [h.score for h in one] == pytest.approx([h.score for h in other], abs=2e-6)


def test_labels_added_to_a_picture_model_keep_what_they_have(shop: Catalogue, tiny_config: Config) -> None:
    """Each for itself: a label without pictures does not change what is read of the others."""
    config = tiny_config.override(["modalities=image", "pretrain.epochs=1", "finetune.epochs=1"])
    one, two = fit(shop, config, quiet=True), fit(shop, config, quiet=True)
    texts, both = Item("t", ["only words"]), Item("b", ["words"], [picture("green", "bar")])
    one.add_labels([texts, both])
    two.add_labels(both)
    two.add_labels(texts)
    for name in ("t", "b"):
        weights = [m.labels.weights[int(m.labels.rows([name])[0])] for m in (one, two)]
        torch.testing.assert_close(*weights, atol=1e-6, rtol=0)


def test_a_removed_label_is_never_seen_again(model: Mufin, tmp_path: Path) -> None:
    every = ids(model.recommend(ASKED, k=7))
    model.remove_labels(every[0])
    model.remove_labels(every[3:5])
    left = [every[1], every[2], *every[5:]]
    assert ids(model.recommend(ASKED, k=7)) == left
    assert ids(model.recommend(ASKED, k=2)) == left[:2]
    assert len(model.labels) == 4
    for call in (model.remove_labels, lambda names: model.recommend(ASKED, allow=names)):
        with pytest.raises(UsageError, match="no label"):
            call([every[0]])
    save(model, tmp_path)
    assert ids(load(tmp_path).recommend(ASKED, k=7)) == left
    assert model.recommend(ASKED, k=7) == load(tmp_path).recommend(ASKED, k=7)


def test_a_removed_id_can_come_back(model: Mufin) -> None:
    every = ids(model.recommend(ASKED, k=7))
    model.remove_labels(every[:2])
    model.add_labels(Item(every[0], ["zebra crossing"]))
    hits = model.recommend(Item(texts=["zebra crossing"]), k=10)
    assert most_similar(hits) == every[0]
    assert sorted(ids(hits)) == sorted([every[0], *every[2:]])
    model.remove_labels(every[0])
    model.add_labels([Item(every[0], ["once more"]), Item(every[1], ["again"])])
    assert sorted(ids(model.recommend(ASKED, k=10))) == sorted(every)
    assert most_similar(model.recommend(Item(texts=["once more"]), k=10)) == every[0]


def test_all_labels_removed(model: Mufin, tmp_path: Path) -> None:
    model.remove_labels(model.labels.items.ids.to_pylist())
    assert len(model.labels) == 0
    assert model.recommend(ASKED) == []
    assert model.recommend([ASKED, ASKED]) == [[], []]
    save(model, tmp_path)
    again = load(tmp_path)
    assert again.recommend(ASKED) == []
    again.add_labels(NEW)
    assert ids(again.recommend(ASKED)) == ["new"]
    model.add_labels(NEW)
    assert ids(model.recommend(ASKED)) == ["new"]


def test_labels_that_cannot_be_added(model: Mufin) -> None:
    taken = model.labels.items.ids[0].as_py()
    for items, said in (
        ([Item(taken, ["x"])], "is taken"),
        ([Item("a", ["x"]), Item("a", ["y"])], "is taken"),
        ([Item("", ["x"])], "has no id"),
        ([Item("a", ["x"]), Item("nothing")], "'nothing' has no text or readable image"),
        ([Item("blank", [" "])], "'blank' has no text"),
        ([Item("broken", [], [b"no picture"])], "'broken' has no text"),
    ):
        with pytest.raises(UsageError, match=said):
            model.add_labels(items)
    assert len(model.labels) == 7
    assert len(model.recommend(ASKED, k=20)) == 7


def test_adding_nothing(model: Mufin) -> None:
    before = model.recommend(ASKED, k=7)
    model.add_labels([])
    model.remove_labels([])
    assert model.recommend(ASKED, k=7) == before


def test_adding_to_an_index_of_centroids_alone(shop: Catalogue, tiny_config: Config) -> None:
    """A new label has no centroid, so it cannot be found; the others still are."""
    model = fit(shop, tiny_config.override(['retrieve.entries=["centroid"]']), quiet=True)
    before = model.recommend(ASKED, k=10)
    model.add_labels(NEW)
    after = model.recommend(ASKED, k=10)
    assert ids(after) == ids(before)
    assert [hit.score for hit in after] == pytest.approx([hit.score for hit in before], abs=1e-6)


def test_add_and_remove_then_save_and_load(model: Mufin, tmp_path: Path) -> None:
    model.add_labels([NEW, Item("pic", ["bar"], [picture("green", "bar", size=300)])])
    model.remove_labels("q-red")
    save(model, tmp_path / "run")
    again = load(tmp_path / "run")
    assert again.recommend([ASKED, NEW], k=10) == model.recommend([ASKED, NEW], k=10)
    kept = again.labels.items[int(again.labels.rows(["pic"])[0])]
    assert len(kept.images[0]) < 20_000  # a small picture, not a path of somewhere
    again.add_labels(Item("q-red", ["red again"]))
    assert len(again.labels) == 9


def test_a_label_added_to_an_own_items_model_is_no_label_of_itself(own_model: Mufin, tmp_path: Path) -> None:
    save(own_model, tmp_path)
    model = load(tmp_path)
    model.add_labels(NEW)
    assert "new" not in ids(model.recommend(NEW, k=50))
    assert most_similar(model.recommend(Item(texts=NEW.texts), k=50)) == "new"


def test_an_approximate_model_takes_labels_too(shop: Catalogue, tiny_config: Config, tmp_path: Path) -> None:
    config = tiny_config.override(["retrieve.search=approximate", "pretrain.epochs=1", "finetune.epochs=1"])
    model = fit(shop, config, quiet=True)
    save(model, tmp_path)
    assert list(tmp_path.glob("index-*.faiss"))
    for one in (model, load(tmp_path)):
        one.add_labels(NEW)
        one.remove_labels("q-blue")
        assert most_similar(one.recommend(Item(texts=NEW.texts), k=20)) == "new"
        assert len(one.recommend(ASKED, k=20)) == 7
        save(one, tmp_path / "again")
        again = load(tmp_path / "again", exact=one.exact)
        assert again.recommend(ASKED, k=20) == one.recommend(ASKED, k=20)


def test_scoring_candidates(tiny_model: Mufin, shop: Catalogue) -> None:
    from mufin.encode.features import Groups

    features = tiny_model.features(shop.items)
    bags = tiny_model.embedder.embed(features, Groups.singles(np.arange(3)))
    scores = tiny_model.score(bags, bags)
    assert scores.shape == (3, 3)
    assert torch.isfinite(scores).all()
    # batch is single here too
    for i in range(3):
        torch.testing.assert_close(tiny_model.score(bags.select(torch.tensor([i])), bags)[0], scores[i])


# -- memory --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def remembering(shop: Catalogue, tiny_config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose training points vote, with a learnt mixture."""
    path = tmp_path_factory.mktemp("memory") / "run"
    fit(shop, tiny_config.override(["memory.neighbours=5", "rank.beta=learnt"]), out=path, quiet=True)
    return path


def test_batch_is_single_with_memory(remembering: Path, shop: Catalogue) -> None:
    model, items = load(remembering), [*shop.items[:10], ASKED]
    for item, hits in zip(items, model.recommend(items, k=7), strict=True):
        alone = model.recommend(item, k=7)
        for part in ("score", "similarity", "classifier", "memory", "probability"):
            wanted = {hit.label: getattr(hit, part) for hit in hits}
            assert {hit.label: getattr(hit, part) for hit in alone} == pytest.approx(wanted, abs=1e-4)
        assert all(math.isfinite(hit.score) and 0 <= hit.probability <= 1 for hit in hits)
        assert len({hit.label for hit in hits}) == 7


def test_filters_and_removal_with_memory(remembering: Path, tmp_path: Path) -> None:
    model = load(remembering)
    every = ids(model.recommend(ASKED, k=20))
    assert ids(model.recommend(ASKED, k=3, deny=every[:4])) == every[4:]
    assert ids(model.recommend(ASKED, k=20, allow=[every[5]])) == [every[5]]
    model.remove_labels(every[:2])
    assert ids(model.recommend(ASKED, k=20)) == every[2:]
    model.add_labels(Item(every[0], ["zebra crossing"]))  # rows are numbered anew: votes must follow
    assert sorted(ids(model.recommend(ASKED, k=20))) == sorted([every[0], *every[2:]])
    votes = {hit.label: hit.memory for hit in model.recommend(ASKED, k=20)}
    assert votes[every[0]] == 0
    labels, points = model.labels.items.ids.to_pylist(), model.points
    had = [{labels[row] for row in points.labels[a:b]} for a, b in pairwise(points.offsets.tolist())]
    assert all(had)  # a point whose labels are all gone has no vote
    vectors = model.point_vectors()
    assert vectors is not None
    similarity = (vectors @ model.embed(ASKED).vector()[0]).tolist()
    settings = model.config.memory
    nearest = sorted(range(len(had)), key=lambda i: -similarity[i])[: settings.neighbours]
    shares = np.exp(np.array([similarity[i] for i in nearest]) / settings.temperature)
    for name in every[2:]:
        expected = sum(s for s, i in zip(shares / shares.sum(), nearest, strict=True) if name in had[i])
        assert votes[name] == pytest.approx(expected, abs=1e-5)
    save(model, tmp_path)
    assert load(tmp_path).recommend(ASKED, k=20) == model.recommend(ASKED, k=20)


def test_examples_vote_at_once(remembering: Path) -> None:
    model = load(remembering)
    asked = Item(texts=["a zebra on a crossing"])
    least = model.recommend(asked, k=7)[-1]
    for _ in range(5):
        model.add_examples(asked, [[least.label]])
    found = next(hit for hit in model.recommend(asked, k=7) if hit.label == least.label)
    assert found.memory > 0.8
    assert found.score > least.score
    with pytest.raises(UsageError, match="no label 'nobody'"):
        model.add_examples(asked, [["nobody"]])
    with pytest.raises(UsageError, match="1 items, but 2 lists of labels"):
        model.add_examples(asked, [["q-red"], ["q-red"]])
    with pytest.raises(UsageError, match="no text or readable image"):
        model.add_examples([asked, Item("e")], [["q-red"], ["q-red"]])


def test_a_label_that_one_example_has_many_times_counts_once(remembering: Path) -> None:
    once, often = load(remembering), load(remembering)
    asked = Item(texts=["a zebra on a crossing"])
    once.add_examples([asked, ASKED], [["q-red", "q-bar"], ["q-bar"]])
    often.add_examples([asked, ASKED], [["q-bar", "q-red"] * 10_000, ["q-bar"] * 3])
    assert often.recommend(asked, k=7) == once.recommend(asked, k=7)
    assert torch.equal(often.labels.frequency, once.labels.frequency)
    assert len(often.points.labels) == len(once.points.labels)


def test_votes_are_bounded_whatever_a_file_holds(remembering: Path) -> None:
    model = load(remembering)
    model.add_examples(ASKED, [["q-red"]])
    model.points = Lists(
        torch.cat([model.points.offsets[:-1], model.points.offsets[-1:] + 9_999]),
        torch.cat([model.points.labels, torch.zeros(9_999, dtype=torch.int64)]),
    )
    votes = [hit.memory for hit in model.recommend(ASKED, k=7)]
    assert 0 < max(votes) <= 1.0


def test_a_model_without_memory_takes_no_examples(model: Mufin) -> None:
    with pytest.raises(UsageError, match="no memory"):
        model.add_examples(ASKED, [["q-red"]])


def test_labels_that_only_the_memory_knows_have_scores_that_are_numbers(tiny_config: Config) -> None:
    """A label without content or centroid is not in the index, but a point may vote for it."""
    items = [Item(f"i{n}", [f"thing {n}"]) for n in range(12)] + [Item("nothing")]
    labels = [Item(f"l{n}", [f"label {n}"]) for n in range(4)] + [Item("ghost"), Item("plain")]
    train = {f"i{n}": [f"l{n % 4}"] for n in range(12)} | {"nothing": ["ghost"]}
    for beta in ("1", "0", "learnt"):
        changes = ["memory.neighbours=20", f"rank.beta={beta}", "run.validation=0.2"]
        model = fit(Catalogue.build(items, labels, train=train), tiny_config.override(changes), quiet=True)
        for hit in model.recommend(Item(texts=["thing"]), k=10):
            assert all(map(math.isfinite, (hit.score, hit.similarity, hit.classifier, hit.probability))), hit


def test_as_many_labels_as_there_are_with_memory(remembering: Path) -> None:
    """k far beyond the shortlist costs memory like k, not like its square."""
    model = load(remembering)
    model.add_labels([Item(f"new {n}", [f"label number {n}"]) for n in range(3000)])
    hits = model.recommend([ASKED] * 20, k=3007)
    assert [len(row) for row in hits] == [3007] * 20
