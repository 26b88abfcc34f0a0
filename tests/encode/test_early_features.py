"""Early image features: style beside content."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from made import made_shop, picture
from mufin import Catalogue, Config, Item, fit, load
from mufin.encode.network import Lite0, correlations
from mufin.encode.vision import EarlyFeatures

EARLY_FEATURES = ["vision.model=offline", "vision.size=32", "vision.stages=true", "embed.stages=true"]


def test_early_features_are_scaled_like_the_last_map() -> None:
    torch.manual_seed(0)
    rows = torch.cat([torch.randn(500, 4), torch.randn(500, 3) * torch.tensor([0.01, 1, 50.0]) + 7], dim=1)
    early = EarlyFeatures(4, 7)
    assert torch.equal(early(rows), rows)  # nothing learnt yet
    early.learn(rows[:1])  # one image is not enough
    assert torch.equal(early(rows), rows)
    early.learn(rows)
    found = early(rows)
    assert torch.equal(found[:, :4], rows[:, :4])
    assert torch.allclose(found[:, 4:].mean(0), torch.zeros(3), atol=1e-4)
    assert torch.allclose(found[:, 4:].std(0), rows[:, :4].std(0).mean().expand(3), rtol=1e-3)
    flat = torch.cat([rows[:, :4], torch.full((500, 3), 7.0)], dim=1)  # columns that never change
    early.learn(flat)
    assert not early(flat)[:, 4:].any()


def test_correlations_of_channels() -> None:
    maps = torch.randn(2, 5, 6, 7)
    maps[1, 3] = 4.0  # a constant channel has no correlation
    found = correlations(maps)
    for one, pairs in zip(maps.flatten(2).numpy(), found.numpy(), strict=True):
        with np.errstate(invalid="ignore"):
            wanted = np.nan_to_num(np.corrcoef(one)[np.triu_indices(5, 1)])
        np.testing.assert_allclose(pairs, wanted, atol=1e-2)


def test_features_of_every_layer_begin_with_those_of_stage_ends() -> None:
    pytest.importorskip("efficientnet_lite_pytorch")
    network = Lite0(pretrained=False).eval()
    with torch.no_grad():
        pixels = torch.randn(3, 3, 32, 32)
        every = network.with_early_features(pixels, every=True)
        assert every.shape == (3, Lite0.width + Lite0.all_layers_width)
        assert torch.equal(every[:, : Lite0.width + Lite0.stage_width], network.with_early_features(pixels))
    assert torch.isfinite(every).all()


def test_early_features_are_scaled_if_only_labels_have_images(tiny_config: Config) -> None:
    pytest.importorskip("efficientnet_lite_pytorch")
    colours = ("red", "blue", "green")
    labels = [Item(colour, images=[picture(colour, "bar")]) for colour in colours]
    points = [Item(f"{colour}-{i}", [f"{colour} {i}"]) for colour in colours for i in range(3)]
    catalogue = Catalogue.build(points, labels, train={point.id: [point.id[:-2]] for point in points})
    early = fit(catalogue, tiny_config.override(EARLY_FEATURES), quiet=True).embedder.stages
    assert early is not None
    assert (early.scale != 1).all()


@pytest.mark.parametrize(("stages_kept", "columns"), [("true", 928), ("every", 4792)])
def test_a_model_with_early_features_answers_the_same_wherever_it_runs(
    tiny_config: Config, tmp_path: Path, stages_kept: str, columns: int
) -> None:
    pytest.importorskip("efficientnet_lite_pytorch")
    config = tiny_config.override([*EARLY_FEATURES, f"vision.stages={stages_kept}"])
    model = fit(made_shop(2), config, out=tmp_path, quiet=True)
    early = model.embedder.stages
    assert early is not None
    changed = early.scale != 1
    assert changed.any() if stages_kept == "every" else changed.all()  # some columns hardly vary
    weights = model.embedder.image_projection.weight
    assert weights.shape == (16, 1280 + columns)
    assert [block.stop - block.start for block in model.embedder.blocks][1] == 928  # what compatibility reads
    assert weights[:, 1280:].any()
    asked = [
        Item(texts=["red bar"], images=[picture("red", "bar")]),
        Item(images=[picture("blue", "circle")]),
    ]
    for other in (load(tmp_path), load(tmp_path, exact=True)):
        for found, again in zip(model.recommend(asked, k=5), other.recommend(asked, k=5), strict=True):
            assert [hit.label for hit in again] == [hit.label for hit in found]
            assert [hit.score for hit in again] == pytest.approx([hit.score for hit in found], abs=2e-2)
