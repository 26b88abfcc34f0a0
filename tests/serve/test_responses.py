"""Answers, the OpenAPI schema, the documents and the page's client speak of the same fields."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from pydantic import BaseModel

from mufin.serve import responses
from mufin.serve.routes.labels import FULL

ROOT = Path(__file__).resolve().parents[2]
API = (ROOT / "src/mufin/serve/page/api.js").read_text("utf-8")


@pytest.mark.parametrize(
    ("model", "sample"),
    [
        (responses.Recommended, responses.RECOMMEND),
        (responses.Embedded, responses.EMBED),
        (responses.Explained, responses.EXPLAIN),
        (responses.Labels, responses.LABELS),
        (responses.FullLabel, FULL),
        (responses.Items, responses.ITEMS),
        (responses.AddedLabels, responses.ADDED),
        (responses.AddedExamples, responses.EXAMPLES),
        (responses.Removed, responses.REMOVED),
        (responses.Map, responses.MAP),
    ],
)
def test_examples_of_the_schema_are_answers(model: type[BaseModel], sample: object) -> None:
    model.model_validate(sample)


def test_the_example_of_the_document_is_an_answer() -> None:
    document = (ROOT / "docs/http.md").read_text("utf-8")
    for block in re.findall(r"```json\n(.*?)```", document, re.S):
        answer = responses.Recommended.model_validate(json.loads(block))
        for result in answer.results:
            for hit in result.hits:
                assert sum(hit.parts.values()) == pytest.approx(hit.score)


@pytest.mark.parametrize(
    ("name", "model"), [("Hit", responses.Hit), ("Item", responses.Item), ("Label", responses.FullLabel)]
)
def test_the_client_of_the_page_knows_the_same_fields(name: str, model: type[BaseModel]) -> None:
    typedef = next(
        found for found in re.findall(r"@typedef \{\{(.*?)\}\} (\w+)", API, re.S) if found[1] == name
    )
    flat = re.sub(r"\{[^{}]*\}|<[^<>]*>", "", typedef[0])
    assert set(re.findall(r"(\w+)\??:", flat)) == set(model.model_fields)


def test_the_document_has_every_operation(client: TestClient) -> None:
    document = (ROOT / "docs/http.md").read_text("utf-8")
    for path in client.get("/openapi.json").json()["paths"]:
        shown = path.replace("{id}", "ID").replace("{n}", "0")
        pattern = re.escape(shown).replace("ID", '[^/`"\\s]+') + "(?![\\w/])"
        assert re.search(pattern, document), path


def test_every_answer_has_a_schema(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    for path, methods in paths.items():
        for method, operation in methods.items():
            for status, answer in operation["responses"].items():
                content = answer.get("content", {}).get("application/json")
                if status.startswith("2") and content is not None:
                    assert "$ref" in json.dumps(content.get("schema", {})), f"{method} {path} {status}"


@pytest.mark.parametrize("items", [1, 64], ids=["short", "long"])
def test_answers_short_and_long_fit_the_schema(client: TestClient, items: int) -> None:
    asked = {"items": [{"texts": ["red circle"]}] * items, "k": 10, "explain": True}
    found = responses.Recommended.model_validate(client.post("/v1/recommend", json=asked).json())
    signals = client.get("/v1/model").json()["signals"]
    for hit in (hit for result in found.results for hit in result.hits):
        assert set(hit.parts) == set(signals)
        assert sum(hit.parts.values()) == pytest.approx(hit.score, abs=1e-3)
