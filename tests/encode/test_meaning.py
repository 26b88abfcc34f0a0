"""What titles mean to the text encoder before it is trained: the same whatever training does to it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from mufin import Catalogue, Config, Item, fit, load
from mufin.candidates import meant
from mufin.data.items import Items
from mufin.encode.embedder import Embedder
from mufin.encode.features import Groups
from mufin.encode.lean import lean

ITEMS = Items.of(
    [Item("a", ["oak desk", "heavy"]), Item("b"), Item("c", ["oak desk"]), Item("d", ["", "red chair"])]
)


@pytest.fixture(params=[0, 1, "all"])
def config(request: pytest.FixtureRequest, tiny_config: Config) -> Config:
    return tiny_config.override([f"text.train_layers={request.param}", "text.meaning=true"])


def test_it_is_the_first_text_at_unit_length(config: Config) -> None:
    embedder = Embedder(config)
    found = embedder.features(ITEMS, cached=False).meaning
    assert found is not None
    assert found.shape == (4, embedder.text.width)
    assert np.linalg.norm(found.astype(np.float32), axis=1) == pytest.approx([1, 0, 1, 1], abs=1e-3)
    assert np.array_equal(found[0], found[2])  # the other texts do not matter
    assert np.array_equal(found, embedder.features(ITEMS, cached=True).meaning)
    plain = config.override(["text.train_layers=0"])
    frozen = Embedder(plain).features(ITEMS, cached=False).meaning
    assert frozen is not None
    assert np.allclose(found, frozen, atol=1e-3)  # as it came, in all three


def test_groups_mean_what_their_items_mean_together(config: Config) -> None:
    embedder = Embedder(config)
    features = embedder.features(ITEMS, cached=False)
    assert features.meaning is not None
    bags = embedder.embed(features, Groups(np.array([0, 2, 3, 3]), np.array([0, 3, 1])))
    assert bags.meaning is not None
    both = features.meaning[[0, 3]].astype(np.float32).sum(0)
    assert torch.allclose(bags.meaning[0], torch.from_numpy(both / np.linalg.norm(both)), atol=1e-3)
    assert not bags.meaning[1:].any()  # no text, no item


def test_candidates_are_compared_by_it(config: Config) -> None:
    embedder = Embedder(config)
    bags = embedder.embed(embedder.features(ITEMS, cached=False), Groups.singles(np.arange(4)))
    assert bags.meaning is not None
    candidates = torch.tensor([[2, 1, -1]] * 4)
    alike = meant(bags.meaning, bags.halved(), candidates)
    assert alike[0].tolist() == pytest.approx([1, 0, 0], abs=1e-3)
    assert not meant(None, bags, candidates).any()


def test_training_saving_and_adding_labels_keep_it(config: Config, shop: Catalogue, tmp_path: Path) -> None:
    settings = ["rank.beta=learnt", "memory.neighbours=5", "run.validation=0.2", "finetune.epochs=1"]
    model = fit(shop, config.override(settings), out=tmp_path, quiet=True)
    title = shop.labels[1].texts[0]
    asked = Item("new", [title])
    hits = {hit.label: hit for hit in model.recommend(asked, k=len(model.labels))}
    assert hits[shop.labels.ids[1].as_py()].meaning == pytest.approx(1, abs=1e-2)
    again = load(tmp_path)
    assert again.recommend(asked) == model.recommend(asked)
    again.add_labels(Item("another", [title]))
    again.add_labels(Item("seen", images=[shop.items.pictures.flat()[0]]))
    hits = {hit.label: hit for hit in again.recommend(asked, k=len(again.labels))}
    assert hits["another"].meaning == pytest.approx(1, abs=1e-2)
    assert hits["seen"].meaning == 0


def test_a_lean_copy_has_it_too(config: Config) -> None:
    embedder = Embedder(config)
    groups = Groups.singles(np.arange(4))
    whole, copy = (
        each.embed(each.features(ITEMS, cached=False), groups) for each in (embedder, lean(embedder))
    )
    assert whole.meaning is not None
    assert copy.meaning is not None
    assert torch.allclose(whole.meaning, copy.meaning, atol=1e-3)
