"""Asking: what is recommended over HTTP is what the model recommends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from made import picture
from mufin import Catalogue, Item, load
from serving import base64_of, encoded

if TYPE_CHECKING:
    from starlette.testclient import TestClient


def recommend(client: TestClient, **body: Any) -> dict[str, Any]:
    answer = client.post("/v1/recommend", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_hits_are_those_of_the_model(client: TestClient, served: tuple[Path, Path], red_circle: str) -> None:
    model = load(served[0])
    items = [Item(texts=["red circle"]), Item(texts=["bar"], images=[picture("red", "circle")])]
    expected = model.recommend(items, k=3)
    found = recommend(
        client, items=[{"texts": ["red circle"]}, {"texts": ["bar"], "images": [red_circle]}], k=3
    )
    for result, hits in zip(found["results"], expected, strict=True):
        assert [hit["label"] for hit in result["hits"]] == [hit.label for hit in hits]
        for shown, hit in zip(result["hits"], hits, strict=True):
            for name in ("score", "probability"):
                assert shown[name] == pytest.approx(getattr(hit, name), abs=1e-4)
            assert (shown["text"], shown["images"], shown["relevant"]) == (hit.text, 0, None)
    assert found["took_ms"] > 0
    assert found["model"]


def test_allow_deny_and_least_probability(client: TestClient) -> None:
    def labels(**how: Any) -> list[str]:
        result = recommend(client, items=[{"texts": ["red circle"]}], **how)["results"][0]
        return [hit["label"] for hit in result["hits"]]

    every = labels(k=50)
    assert len(every) == 7
    assert labels(k=50, allow=["q-red", "q-bar"]) == [label for label in every if label in ("q-red", "q-bar")]
    assert labels(k=50, deny=every[:3]) == every[3:]
    sure = recommend(client, items=[{"texts": ["red circle"]}], k=50)["results"][0]["hits"]
    least = sorted(hit["probability"] for hit in sure)[3]
    assert len(labels(k=50, min_probability=least)) == 4
    assert labels(min_probability=1.0) == []  # no good label is an answer too


def test_the_parts_of_a_score_sum_to_it(client: TestClient, red_circle: str) -> None:
    item = {"texts": ["red", " "], "images": [red_circle]}
    result = recommend(client, items=[item], explain=True)["results"][0]
    for hit in result["hits"]:
        assert set(hit["parts"]) == {"similarity", "classifier", "memory", "rarity"}
        assert sum(hit["parts"].values()) == pytest.approx(hit["score"], abs=1e-3)
    assert result["explain"]["descriptors"] == [{"kind": "text", "text": "red"}, {"kind": "image", "n": 0}]


def test_an_item_of_the_catalogue_with_its_truth(client: TestClient) -> None:
    hits = recommend(client, items=[{"id": "red-bar-4"}], k=7)["results"][0]["hits"]
    assert {hit["label"] for hit in hits if hit["relevant"]} == {"q-red", "q-bar"}
    assert {hit["relevant"] for hit in hits} == {True, False}


def test_a_form_with_files(client: TestClient) -> None:
    bytes_ = encoded(picture("red", "circle"))
    form = client.post(
        "/v1/recommend",
        data={"text": ["red", "round"], "k": "2", "explain": "true"},
        files=[("image", ("a.png", bytes_, "image/png")), ("image", ("b.png", bytes_, "image/png"))],
    )
    assert form.status_code == 200, form.text
    result = form.json()["results"][0]
    assert [d["kind"] for d in result["explain"]["descriptors"]] == ["text", "text", "image", "image"]
    image = base64_of(picture("red", "circle"))
    as_json = recommend(client, items=[{"texts": ["red", "round"], "images": [image, image]}], k=2)
    assert [hit["label"] for hit in result["hits"]] == [h["label"] for h in as_json["results"][0]["hits"]]


def test_many_callers_get_what_one_gets(client: TestClient) -> None:
    """Callers with different k and filters share batches; each answer is its own."""
    from concurrent.futures import ThreadPoolExecutor

    asks = [
        {"items": [{"texts": [f"{word} {n}"]}], "k": 1 + n % 7, "deny": ["q-bar"] if n % 3 == 0 else []}
        for n, word in enumerate(["red", "circle", "blue", "bar"] * 8)
    ]
    alone = [recommend(client, **ask)["results"] for ask in asks]
    with ThreadPoolExecutor(16) as pool:
        together = list(pool.map(lambda ask: recommend(client, **ask)["results"], asks))
    for one, other in zip(alone, together, strict=True):
        assert [hit["label"] for hit in one[0]["hits"]] == [hit["label"] for hit in other[0]["hits"]]
        for a, b in zip(one[0]["hits"], other[0]["hits"], strict=True):
            assert a["score"] == pytest.approx(b["score"], abs=1e-4)
    sizes = client.get("/metrics").text
    batches = float(next(line for line in sizes.splitlines() if "batch_items_count" in line).split()[1])
    items = float(next(line for line in sizes.splitlines() if "batch_items_sum" in line).split()[1])
    assert items > batches, "no two of them shared a forward pass"


def test_explain_shows_attention_and_neighbours(client: TestClient, red_circle: str) -> None:
    body = {"item": {"texts": ["red circle"], "images": [red_circle]}, "label": "q-red"}
    found = client.post("/v1/explain", json=body).json()
    assert [d["kind"] for d in found["query"]] == ["text", "image"]
    assert found["label"] == [{"kind": "text", "text": "red things"}]
    assert found["kind"] == "cross-attention"
    assert len(found["attention"]) == 2
    for row in found["attention"]:
        assert sum(row) == pytest.approx(1, abs=1e-5)
    assert len(found["nearest"]) == 6
    assert "q-red" not in [other["label"] for other in found["nearest"]]
    assert found["frequency"] == 12
    names = [example["id"] for example in found["examples"]]
    assert len(names) == 8
    assert all(name.startswith("red-") for name in names)
    values = [example["similarity"] for example in found["examples"]]
    assert values == sorted(values, reverse=True)


def test_examples_without_a_memory_are_embedded(served: tuple[Path, Path], shop: Catalogue) -> None:
    """The vectors that the memory has are those that the items get when they are embedded."""
    import asyncio

    import torch

    from mufin.serve.catalogue_view import CatalogueView, Examples

    class Direct:
        async def call(self, call: Any) -> Any:
            return call()

    model = load(served[0])
    remembered = Examples(model, CatalogueView(Catalogue.read(served[1])), Direct())  # type: ignore[arg-type]
    assert len(remembered.vectors) == len(model.points)
    x = model.embed(Item(texts=["red circle"])).vector()[0]
    expected = asyncio.run(remembered.nearest(x, "q-red"))
    remembered.vectors.clear()
    again = asyncio.run(remembered.nearest(x, "q-red"))
    assert [one["id"] for one in again] == [one["id"] for one in expected]
    assert torch.allclose(
        *(torch.tensor([o["similarity"] for o in some]) for some in (expected, again)), atol=1e-5
    )


def test_attention_is_similarity_where_there_is_none(served: tuple[Path, Path]) -> None:
    import torch

    from mufin.encode.bag import Bag
    from mufin.model.explain import attention
    from mufin.rank.ranker import Ranker

    model = load(served[0])
    model.ranker = Ranker(model.config.override(["rank.cross=none"]))
    rows = torch.eye(16)[:3]
    kind, weights = attention(
        model.ranker, Bag(2 * rows[None, :2], torch.ones(1, 2, dtype=torch.bool)),
        Bag(rows[None], torch.ones(1, 3, dtype=torch.bool)),
    )  # fmt: skip
    assert kind == "similarity"
    assert weights[0].tolist() == [[1, 0, 0], [0, 1, 0]]


def test_a_body_of_many_items(client: TestClient) -> None:
    items = [{"texts": [f"red {n}"]} for n in range(64)]
    assert len(recommend(client, items=items, k=2)["results"]) == 64
    assert client.post("/v1/recommend", json={"items": [*items, items[0]]}).status_code == 422


def test_a_long_call_is_answered_in_slices_as_each_item_alone(client: TestClient) -> None:
    items = [{"texts": [f"red {n}", "a circle of many words " * 8]} for n in range(24)]
    together = recommend(client, items=items, k=50)["results"]
    for number in (0, 11, 23):
        alone = recommend(client, items=[items[number]], k=50)["results"][0]["hits"]
        assert [hit["label"] for hit in together[number]["hits"]] == [hit["label"] for hit in alone]
        for one, other in zip(together[number]["hits"], alone, strict=True):
            assert one["score"] == pytest.approx(other["score"], abs=1e-3)
    many = recommend(client, items=[{"texts": ["red"]}] * 64, k=1000, explain=True)  # 448 hits
    assert len(many["results"]) == 64


def test_a_call_of_too_much_work_is_refused_before_it_is_done(client: TestClient) -> None:
    """64 items of 32 texts kept everybody waiting for ten seconds."""
    texts = ["a text of some length " * 14] * 32
    refused = client.post("/v1/recommend", json={"items": [{"texts": texts}] * 64})
    assert (refused.status_code, "fewer items" in refused.json()["detail"]) == (413, True), refused.text
    long = {"items": [{"texts": ["red"]}, {"texts": ["x " * 9000] * 32}]}
    refused = client.post("/v1/recommend", json=long)
    assert (refused.status_code, "items.1 costs" in refused.json()["detail"]) == (413, True), refused.text
    explained = client.post("/v1/explain", json={"item": long["items"][1], "label": "q-red"})
    assert (explained.status_code, explained.json()["detail"][:10]) == (413, "item costs")
    labels = {"labels": [{"id": f"l{n}", "texts": texts} for n in range(64)]}
    assert client.post("/v1/labels", json=labels).status_code == 413


def test_answers_are_json_that_every_parser_reads(client: TestClient) -> None:
    for ask in ({"items": [{"texts": ["red"]}]}, {"items": [{"texts": ["rot ÄÖ"]}] * 64, "k": 1000}):
        answer = client.post("/v1/recommend", json=ask)
        assert json.loads(answer.text)["model"]
    json.loads(answer.text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_vectors_are_those_of_the_model(
    client: TestClient, served: tuple[Path, Path], red_circle: str
) -> None:
    items = [Item(texts=["red circle"]), Item(texts=["bar", "7"], images=[picture("red", "circle")])]
    expected = load(served[0]).embed(items).vector()
    bodies = [{"texts": ["red circle"]}, {"texts": ["bar", "7"], "images": [red_circle]}]
    for repeats in (1, 32):  # in one batch, and in slices
        found = client.post("/v1/embed", json={"items": bodies * repeats}).json()
        assert len(found["vectors"]) == 2 * repeats
        for place, vector in enumerate(found["vectors"]):
            assert vector == pytest.approx(expected[place % 2].tolist(), abs=1e-5)
    by_id = client.post("/v1/embed", json={"items": [{"id": "red-bar-4"}]}).json()
    assert len(by_id["vectors"][0]) == expected.shape[1]
    bad = client.post("/v1/embed", json={"items": [*bodies * 20, {"id": "nothing"}]})
    assert (bad.status_code, "nothing" in bad.json()["detail"]) == (422, True)
    assert client.post("/v1/embed", json={"items": []}).status_code == 422
