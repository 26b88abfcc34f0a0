"""embed.bag = "raw" (CLIP + MUFIN): rows are X̂⁰, and A_S makes the vector alone, x̂¹ = N(1ᵀ A_S(X̂⁰))."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from made import made_shop, picture
from mufin import Catalogue, Config, Item, Mufin, fit, load, save
from mufin.data.items import Items
from mufin.encode.bag import Bag, PackedBags
from mufin.encode.features import Groups
from mufin.errors import ModelError
from mufin.evaluate.report import write_report
from mufin.evaluate.score import evaluate
from mufin.files.folder import file_hash, manifest_text
from mufin.model.store import save_labels

ASKED = [Item("q", ["red circle"], [picture("red", "circle")]), Item("r", ["bar 7"])]
NEW = Item("new", ["zebra", "crossing"], [picture("green", "bar")])
BETA = 0.7


@pytest.fixture(scope="module")
def rich() -> Catalogue:
    """The shop with labels of two texts each, so that attention has a choice."""
    shop = made_shop(3)
    labels = [Item(label.id, [*label.texts, "of every kind"]) for label in shop.labels]
    return Catalogue(shop.items, Items.of(labels), shop.parts.values())


@pytest.fixture(scope="module")
def folder(rich: Catalogue, tiny_config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("raw") / "run"
    fit(rich, tiny_config.override(["embed.bag=raw", "memory.neighbours=5"]), out=path, quiet=True)
    return path


@pytest.fixture
def model(folder: Path) -> Mufin:
    """A copy that may be changed."""
    return load(folder)


def unit(vector: np.ndarray) -> np.ndarray:
    return np.asarray(vector / np.linalg.norm(vector))


def bag_of(rows: torch.Tensor) -> Bag:
    return Bag(rows[None], torch.ones(1, len(rows), dtype=torch.bool))


@torch.no_grad()
def vector_of(model: Mufin, rows: torch.Tensor) -> np.ndarray:
    """N(1ᵀ A_S(X̂⁰)) of one bag X̂⁰ (m, D)."""
    return unit(model.embedder.self_attention(bag_of(rows)).values[0].sum(0).numpy())


@torch.no_grad()
def adapted(model: Mufin, x: torch.Tensor, z: torch.Tensor) -> np.ndarray:
    """N(1ᵀ A_C(X̂⁰, Ẑ⁰)) of two bags (m, D) and (n, D)."""
    attend = model.ranker.cross_attention
    assert attend is not None
    return unit(attend(bag_of(x), bag_of(z)).values[0].sum(0).numpy())


def rows_of(bags: PackedBags, i: int) -> torch.Tensor:
    return bags.rows[bags.offsets[i] : bags.offsets[i + 1]].float()  # labels' are kept in half precision


# -- what a bag is ------------------------------------------------------------------------------------------


def test_rows_are_raw_and_the_vector_went_through_self_attention(model: Mufin, rich: Catalogue) -> None:
    features = model.features(rich.items)
    batch = features.batch(Groups.singles(np.arange(len(rich.items))))
    with torch.no_grad():
        bag, raw = model.embedder(batch), model.embedder.raw_bag(batch)
    assert torch.equal(bag.values, raw.values)
    assert torch.equal(bag.mask, raw.mask)
    for i in range(len(bag)):
        rows = raw.values[i, raw.mask[i]]
        np.testing.assert_allclose(bag.vector()[i].numpy(), vector_of(model, rows), atol=1e-5)
        assert not np.allclose(bag.vector()[i].numpy(), unit(rows.sum(0).numpy()), atol=1e-2)


def test_labels_keep_raw_rows_and_their_vectors(model: Mufin) -> None:
    labels = model.labels
    for l in range(len(labels)):
        rows = rows_of(labels.bags, l)
        assert len(rows) == 2
        np.testing.assert_allclose(labels.bags.vectors()[l].numpy(), vector_of(model, rows), atol=1e-3)
    entries = labels.entries(["bag", "centroid"])
    own = torch.nn.functional.normalize(labels.bags.rows.float(), dim=1)
    assert torch.equal(entries.vectors[entries.labels == 3][:2], own[6:8])
    assert torch.allclose(labels.entries(["vector"]).vectors, labels.bags.vectors())


def test_packed_bags_carry_their_vectors() -> None:
    mask = torch.tensor([[True, True], [False, False], [True, False]])
    bag = Bag(torch.randn(3, 2, 4).masked_fill(~mask[..., None], 0.0), mask, torch.randn(3, 4))
    packed = PackedBags.pack([bag, bag], 4)
    assert torch.equal(packed.vectors(), torch.cat([bag.whole, bag.whole]))
    again = packed.take(torch.tensor([[2, -1], [0, 4]]))
    assert torch.equal(again.vector()[0, 0], bag.whole[2])
    assert not again.vector()[0, 1].any()
    assert torch.equal(again.vector()[1], bag.whole[:2])
    assert torch.equal(packed.select(torch.tensor([5, 0])).vectors(), bag.whole[[2, 0]])
    assert torch.equal(packed.concat(packed).vectors()[6:], packed.vectors())
    assert torch.equal(packed.to(torch.device("cpu")).vectors(), packed.vectors())
    assert torch.equal(bag.to("cpu").vector(), bag.whole)
    assert PackedBags.pack([Bag(bag.values, mask)], 4).whole is None


def test_a_point_with_nothing_has_the_zero_vector(model: Mufin) -> None:
    features = model.features(Items.of([Item("empty"), ASKED[0]]))
    bags = model.embedder.embed(features, Groups.singles(np.arange(2)))
    assert bags.vectors().norm(dim=1).tolist() == pytest.approx([0, 1])


# -- prediction ---------------------------------------------------------------------------------------------


def test_prediction_against_loops(model: Mufin) -> None:
    labels, bag = model.labels, model.embed(ASKED[0])
    x, rows = bag.vector()[0].numpy(), bag.values[0]
    hits = model.recommend(ASKED[0], k=7)
    assert len(hits) == 7
    for hit in hits:
        l = int(labels.items.rows([hit.label])[0])
        z = rows_of(labels.bags, l)
        own = [*(unit(row) for row in z.numpy()), labels.centroids[l].numpy()]
        assert hit.similarity == pytest.approx(max(x @ v for v in own), abs=1e-5)
        assert hit.classifier == pytest.approx(
            adapted(model, rows, z) @ labels.classifiers(torch.tensor(l)).numpy(), abs=1e-5
        )
        assert hit.score == pytest.approx(BETA * hit.classifier + (1 - BETA) * hit.similarity, abs=1e-5)


def test_candidates_without_training_against_loops(model: Mufin, rich: Catalogue) -> None:
    features = model.features(rich.items)
    asked = model.embedder.embed(features, Groups(np.array([0, 2]), np.array([0, 5])))
    candidates = model.embedder.embed(features, Groups.singles(np.array([7, 9])))
    x = asked.vectors()[0].numpy()
    for c, score in enumerate(model.score(asked, candidates)[0].tolist()):
        z = rows_of(candidates, c)
        classifier = adapted(model, asked.rows, z) @ vector_of(model, z)
        similarity = max(x @ unit(row) for row in z.numpy())
        assert score == pytest.approx(BETA * classifier + (1 - BETA) * similarity, abs=1e-5)


def test_similarity_of_any_label_is_that_of_its_entries(model: Mufin) -> None:
    x = model.embed(ASKED).vector()
    rows = torch.arange(7).expand(2, -1)
    for kinds in (["bag"], ["vector"], ["centroid"], ["bag", "vector", "centroid"]):
        entries = model.labels.entries(kinds)  # type: ignore[arg-type]
        scores = x @ entries.vectors.T
        expected = torch.stack([scores[:, entries.labels == l].amax(1) for l in range(7)], 1)
        torch.testing.assert_close(model.labels.similarity(x, rows, kinds), expected)  # type: ignore[arg-type]


# -- labels and points that come later ----------------------------------------------------------------------


def test_added_labels_and_examples(model: Mufin, tmp_path: Path) -> None:
    save(model, tmp_path)
    model.add_labels([NEW, Item("other", ["something else"])])
    row = int(model.labels.rows(["new"])[0])
    bag = model.embed(NEW)
    torch.testing.assert_close(rows_of(model.labels.bags, row), bag.values[0], atol=1e-6, rtol=1e-3)
    torch.testing.assert_close(model.labels.bags.vectors()[row], bag.vector()[0], atol=1e-6, rtol=0)
    expected = (model.labels.untrained * bag.vector()[0]).half()
    torch.testing.assert_close(model.labels.weights[row], expected, atol=1e-3, rtol=0)
    assert "new" in [hit.label for hit in model.recommend(NEW, k=9)]

    before = len(model.points)
    model.add_examples(NEW, [["new", "q-red"]])
    vectors = model.point_vectors()
    assert vectors is not None
    assert torch.equal(vectors[before], bag.vector()[0])
    model.remove_labels("q-bar")
    save_labels(model, tmp_path)
    again = load(tmp_path)
    assert len(again.labels.bags) == 8
    assert again.recommend([*ASKED, NEW], k=9) == model.recommend([*ASKED, NEW], k=9)


# -- the folder ---------------------------------------------------------------------------------------------


def tensors_file(folder: Path) -> Path:
    (path,) = folder.glob("labels-*.safetensors")
    return path


def test_vectors_are_stored_only_where_they_are_needed(
    folder: Path, tiny_model: Mufin, tmp_path: Path
) -> None:
    save(tiny_model, tmp_path)
    assert set(load_file(tensors_file(folder))) - set(load_file(tensors_file(tmp_path))) == {"whole"}
    assert tiny_model.labels.bags.whole is None


def test_a_folder_without_its_vectors_is_said_to_be(model: Mufin, tmp_path: Path) -> None:
    save(model, tmp_path)
    path = tensors_file(tmp_path)
    tensors = load_file(path)
    del tensors["whole"]
    save_file(tensors, path)
    manifest = json.loads((tmp_path / "mufin.json").read_text())
    part = {"file": path.name, "size": path.stat().st_size, "hash": file_hash(path)}
    manifest["parts"]["labels.safetensors"] |= part
    (tmp_path / "mufin.json").write_text(manifest_text(manifest))
    with pytest.raises(ModelError, match="has no whole: train again"):
        load(tmp_path)


# -- what is shown ------------------------------------------------------------------------------------------


def test_the_report(model: Mufin, rich: Catalogue, tmp_path: Path) -> None:
    found = write_report(model, rich, tmp_path / "report.html")
    assert found["P@1"] == evaluate(model, rich, "test")["P@1"]
    assert "Cross-attention: how much each descriptor" in (tmp_path / "report.html").read_text("utf-8")


def test_the_service_explains(folder: Path) -> None:
    from serving import client_of

    with client_of(folder) as client:
        found = client.post(
            "/v1/explain", json={"item": {"texts": ["red", "circle"]}, "label": "q-red"}
        ).json()
        body = {"items": [{"texts": ["red circle"]}], "k": 7}
        hits = client.post("/v1/recommend", json=body).json()["results"][0]["hits"]
    assert found["kind"] == "cross-attention"
    assert [sum(row) for row in found["attention"]] == pytest.approx([1, 1], abs=1e-5)
    assert len(found["nearest"]) == 6
    expected = load(folder).recommend(Item(texts=["red circle"]), k=7)
    assert [hit["label"] for hit in hits] == [hit.label for hit in expected]
