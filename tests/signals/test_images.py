"""Images: how like the images of training a query's images look."""

from __future__ import annotations

from copy import copy
from pathlib import Path

import numpy as np
import pytest
import torch

from made import picture
from mufin import Catalogue, Config, Item, Mufin, fit, load
from mufin.data.convert import as_items
from mufin.model.store import save
from mufin.signals.images import Images

NOISE = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def remembering(shop: Catalogue, tiny_config: Config) -> Mufin:
    settings = ["memory.neighbours=5", "rank.beta=learnt", "run.validation=0.2"]
    return fit(shop, tiny_config.override(settings), quiet=True)


def clue(model: Mufin, *items: Item) -> torch.Tensor:
    (images,) = (signal for signal in model.signals if isinstance(signal, Images))
    return images.familiar(model.query(model.features(as_items(list(items))[0])))[:, 0]


def test_a_training_image_is_familiar_and_noise_is_less_so(remembering: Mufin) -> None:
    known, strange = clue(remembering, Item(images=[picture("red", "circle")]), Item(images=[NOISE]))
    assert float(known) == pytest.approx(1, abs=2e-3)
    assert float(strange) < float(known)


def test_an_item_without_images_gives_no_clue(remembering: Mufin) -> None:
    text, both = clue(remembering, Item(texts=["red"]), Item(texts=["red"], images=[NOISE]))
    assert text.isnan()
    assert not both.isnan()


def test_added_images_are_familiar_also_after_saving(remembering: Mufin, tmp_path: Path) -> None:
    model = copy(remembering)
    model.add_examples([Item("noise", images=[NOISE]), Item("text", ["red"])], [["q-red"], ["q-red"]])

    save(model, tmp_path / "run")
    for each in (model, load(tmp_path / "run", exact=True)):
        assert float(clue(each, Item(images=[NOISE]))[0]) == pytest.approx(1, abs=2e-3)


def test_it_has_no_part_in_the_score(remembering: Mufin) -> None:
    (hit,) = remembering.recommend("red circle", k=1)
    assert "images" not in hit.parts
    assert "images" not in remembering.part_descriptions
    assert "nearest image" in remembering.mixture.stored()["seen"]
