"""Titles by the text encoder before it is trained: the same whatever training does to it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from mufin import Catalogue, Config, Item, fit, load
from mufin.data.items import Items
from mufin.encode.embedder import Embedder
from mufin.encode.rows import DenseRows
from mufin.signals.evidence import read
from mufin.signals.pretrained import Pretrained

ITEMS = Items.of(
    [Item("a", ["oak desk", "heavy"]), Item("b"), Item("c", ["oak desk"]), Item("d", ["", "red chair"])]
)


@pytest.fixture(params=[0, 1, "all"])
def config(request: pytest.FixtureRequest, tiny_config: Config) -> Config:
    return tiny_config.override([f"text.train_layers={request.param}", "text.pretrained_similarity=true"])


def reading(config: Config, cached: bool = False) -> DenseRows:
    signal = Pretrained.of(config)
    assert signal is not None
    rows = read(Embedder(config), [signal], ITEMS, cached).readings["pretrained"]
    assert isinstance(rows, DenseRows)
    return rows


def test_it_is_the_first_text_at_unit_length(config: Config) -> None:
    found = reading(config).values.float()
    assert found.norm(dim=1).tolist() == pytest.approx([1, 0, 1, 1], abs=1e-3)
    assert torch.equal(found[0], found[2])  # the other texts do not matter
    assert torch.equal(found, reading(config, cached=True).values.float())
    frozen = reading(config.override(["text.train_layers=0"])).values.float()
    assert torch.allclose(found, frozen, atol=1e-3)  # the encoder as it came, in all three


def test_a_group_is_read_as_its_items_together(config: Config) -> None:
    rows = reading(config)
    groups = rows.grouped(np.array([0, 2, 3, 3]), np.array([0, 3, 1])).values
    both = rows.values[[0, 3]].float().sum(0)
    assert torch.allclose(groups[0], both / both.norm(), atol=1e-3)
    assert not groups[1:].any()  # no text, no item


def test_items_without_any_text_are_read_as_zero(config: Config) -> None:
    signal = Pretrained.of(config)
    assert signal is not None
    embedder = Embedder(config)
    rows = read(embedder, [signal], Items.of([Item("a"), Item("b")]), False).readings["pretrained"]
    assert isinstance(rows, DenseRows)
    assert rows.values.shape == (2, embedder.text.width)
    assert not rows.values.any()


def test_training_saving_and_adding_labels_keep_it(config: Config, shop: Catalogue, tmp_path: Path) -> None:
    settings = ["rank.beta=learnt", "memory.neighbours=5", "run.validation=0.2", "finetune.epochs=1"]
    model = fit(shop, config.override(settings), out=tmp_path, quiet=True)
    title = shop.labels[1].texts[0]
    asked = Item("new", [title])
    hits = {hit.label: hit for hit in model.recommend(asked, k=len(model.labels))}
    assert hits[shop.labels.ids[1].as_py()].evidence["pretrained similarity"] == pytest.approx(1, abs=1e-2)
    again = load(tmp_path, exact=True)
    assert again.recommend(asked) == model.recommend(asked)
    again.add_labels(Item("another", [title]))
    again.add_labels(Item("seen", images=[shop.items.pictures.flat()[0]]))
    hits = {hit.label: hit for hit in again.recommend(asked, k=len(again.labels))}
    assert hits["another"].evidence["pretrained similarity"] == pytest.approx(1, abs=1e-2)
    assert hits["seen"].evidence["pretrained similarity"] == 0
