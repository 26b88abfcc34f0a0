from __future__ import annotations

import numpy as np
import pytest
import torch

from mufin import Catalogue, Mufin
from mufin.config import Config
from mufin.encode.embedder import Embedder
from mufin.encode.features import Groups
from mufin.encode.lean import lean


@pytest.mark.parametrize("layers", [0, 1, "all"])
def test_the_lean_copy_gives_the_same_bags(shop: Catalogue, tiny_config: Config, layers: int | str) -> None:
    config = tiny_config.override([f"text.train_layers={layers}", f"vision.train_layers={layers}"])
    torch.manual_seed(0)
    embedder = Embedder(config).eval()
    items, everyone = shop.items.take(np.arange(20)), Groups.singles(np.arange(20))
    copy = lean(embedder)
    with torch.no_grad():
        own = embedder(embedder.features(items, cached=False).batch(everyone))
        other = copy(copy.features(items, cached=False).batch(everyone))
    assert torch.equal(own.mask, other.mask)
    torch.testing.assert_close(own.values, other.values, atol=5e-3, rtol=0)  # the cut rounds to f16
    assert embedder.text.depth == layers


def test_the_original_can_still_be_trained(tiny_model: Mufin) -> None:
    before = [p.requires_grad for p in tiny_model.embedder.parameters()]
    lean(tiny_model.embedder)
    assert before == [p.requires_grad for p in tiny_model.embedder.parameters()]
