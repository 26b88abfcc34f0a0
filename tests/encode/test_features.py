"""Batches of features against loops: groups of several items, items of one modality, items of none."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from made import picture
from mufin import Config, Item
from mufin.data import ragged
from mufin.data.items import Items
from mufin.encode.embedder import Embedder
from mufin.encode.features import Groups, Loader

RED, BLUE = picture("red", "circle"), picture("blue", "bar")
ITEMS = [
    Item("both", ["red circle", "round"], [RED]),
    Item("text", ["oak desk", " ", "a long title of a wooden desk"]),
    Item("image", [], [BLUE, RED]),
    Item("nothing"),
    Item("blank", [" ", ""]),
    Item("broken", ["lamp"], [b"broken", BLUE]),
]
DESCRIPTORS = [
    (["red circle", "round"], [RED]),
    (["oak desk", "a long title of a wooden desk"], []),
    ([], [BLUE, RED]),
    ([], []),
    ([], []),
    (["lamp"], [BLUE]),
]
POINTS = [[0], [3], [1, 2], [2, 1], [5, 0, 3], [4], [0, 0], [2]]


def rows_of(embedder: Embedder, points: list[int]) -> Tensor:
    """X̂⁰ of a point by hand: texts of all members first, then pictures, each encoded alone."""
    rows = []
    for member in points:
        for text in DESCRIPTORS[member][0]:
            values = embedder.text.prepare([text]).take(np.array([0]))
            rows.append(embedder.text_projection(embedder.text(*values)))
    for member in points:
        for image in DESCRIPTORS[member][1]:
            values = embedder.vision.prepare([image]).take(np.array([0]))
            rows.append(embedder.image_projection(embedder.vision(*values)))
    return torch.cat(rows) if rows else torch.zeros(0, embedder.dim)


def groups(points: list[list[int]]) -> Groups:
    flat = np.array([member for point in points for member in point], np.int64)
    return Groups(np.cumsum([0, *map(len, points)]), flat)


@pytest.mark.parametrize("depth", [0, 1, "all"])
@pytest.mark.parametrize("cached", [True, False])
@torch.no_grad()
def test_batches_against_loops(tiny_config: Config, depth: object, cached: bool) -> None:
    changed = [f"text.train_layers={depth}", f"vision.train_layers={depth}"]
    embedder = Embedder(tiny_config.override(changed)).eval()
    features = embedder.features(Items.of(ITEMS), cached)
    assert features.sizes.tolist() == [3, 2, 2, 0, 0, 2]
    batch = features.batch(groups(POINTS))
    bag = embedder.raw_bag(batch)
    expected = [rows_of(embedder, point) for point in POINTS]
    assert bag.mask.sum(1).tolist() == [len(rows) for rows in expected]
    assert batch.width == max(map(len, expected))
    for values, mask, rows in zip(bag.values, bag.mask, expected, strict=True):
        assert mask.tolist() == sorted(mask.tolist(), reverse=True)
        torch.testing.assert_close(values[mask], rows, atol=2e-5, rtol=1e-4)
        assert not values[~mask].any()


@torch.no_grad()
def test_packed_bags_do_not_depend_on_the_batch(tiny_config: Config) -> None:
    embedder = Embedder(tiny_config).eval()
    features = embedder.features(Items.of(ITEMS))
    whole = embedder.embed(features, groups(POINTS), batch=100)
    for size in (1, 3):
        parts = embedder.embed(features, groups(POINTS), batch=size)
        assert torch.equal(parts.offsets, whole.offsets)
        torch.testing.assert_close(parts.rows, whole.rows, atol=1e-5, rtol=1e-4)


def test_spread_numbers_items_anew(tiny_config: Config) -> None:
    embedder = Embedder(tiny_config).eval()
    every = embedder.features(Items.of(ITEMS))
    rows = np.array([0, 2, 5])
    some = embedder.features(Items.of([ITEMS[i] for i in rows])).spread(rows, len(ITEMS))
    assert some.sizes.tolist() == [3, 0, 2, 0, 0, 2]
    for point in ([0], [5, 2]):
        one, other = (embedder.embed(f, groups([point])).rows for f in (every, some))
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_nothing_at_all(tiny_config: Config) -> None:
    embedder = Embedder(tiny_config).eval()
    features = embedder.features(Items.of([]))
    assert len(features) == 0
    assert len(embedder.embed(features, groups([]))) == 0
    empty = embedder.features(Items.of([Item("a"), Item("b")]))
    assert embedder.embed(empty, groups([[0], [1, 0]])).vectors().tolist() == [[0.0] * 16] * 2


def test_groups_take() -> None:
    chosen = groups(POINTS).take(np.array([4, 2, 4]))
    parts = [chosen.members[a:b].tolist() for a, b in zip(chosen.offsets, chosen.offsets[1:], strict=False)]
    assert parts == [[5, 0, 3], [1, 2], [5, 0, 3]]


@pytest.mark.parametrize("depth", [0, 1, "all"])
@pytest.mark.parametrize("resident", [True, False])
@torch.no_grad()
def test_a_loader_gives_the_bags_of_any_points(
    tiny_config: Config, depth: object, resident: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the features fit on the device or are read from the host for each batch."""
    monkeypatch.setattr(ragged, "fits", lambda size, device: resident)
    changed = [f"text.train_layers={depth}", f"vision.train_layers={depth}"]
    embedder = Embedder(tiny_config.override(changed)).eval()
    features = embedder.features(Items.of(ITEMS))
    loader = Loader(features, groups(POINTS), embedder.device)
    assert all(rows.resident == resident for rows in loader.rows)
    for chosen in ([4, 2, 4], [1], [5, 1], [7, 0], []):
        bag = embedder.raw_bag(loader.batch(torch.tensor(chosen, dtype=torch.int64)))
        expected = [rows_of(embedder, POINTS[point]) for point in chosen]
        assert bag.mask.shape == (len(chosen), max([1, *map(len, expected)]))
        for values, mask, rows in zip(bag.values, bag.mask, expected, strict=True):
            torch.testing.assert_close(values[mask], rows, atol=2e-5, rtol=1e-4)


def test_features_are_copied_to_a_device_once(tiny_config: Config) -> None:
    features = Embedder(tiny_config).features(Items.of(ITEMS))
    one, other = (Loader(features, groups(points), torch.device("cpu")) for points in (POINTS, POINTS[:2]))
    assert all(a is b for a, b in zip(one.rows, other.rows, strict=True))


def test_text_only_models_have_no_image_encoder(tiny_config: Config) -> None:
    embedder = Embedder(tiny_config.override(["modalities=text"])).eval()
    assert embedder.vision is None
    features = embedder.features(Items.of(ITEMS))
    assert features.sizes.tolist() == [2, 2, 0, 0, 0, 1]


def test_features_leave_the_mode_as_it_was(tiny_config: Config) -> None:
    embedder = Embedder(tiny_config.override(["text.train_layers=1"]))
    assert embedder.train().training
    embedder.features(Items.of(ITEMS))
    assert embedder.training
    assert embedder.text.network.training
    assert not embedder.vision.network.training  # batch statistics and dropout stay as they were
