"""A new signal is one class and one line in the list; everything else finds it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import mufin.signals
from browsing import executable
from mufin import Catalogue, Config, Item, Mufin, fit, load
from mufin.data.items import Items
from mufin.data.ragged import Ints
from mufin.encode.features import Features
from mufin.encode.rows import DenseRows
from mufin.files.tensors import Tensors
from mufin.progress import Task
from mufin.serve.connections import Door
from mufin.signals.base import Candidates, Column, Known, Query, Signal, Training
from serving import client_of, listening


@dataclass(frozen=True)
class Initials(Signal):
    """Whether the first texts of item and label begin with the same letter; proposes such labels."""

    name = "initials"
    description = "whether item and label begin with the same letter"
    columns = (Column("initials"),)

    labels: Tensor  # (L, 128)

    @classmethod
    def of(cls, config: Config, layout: Path | None = None) -> Initials:
        return cls(torch.zeros(0, 128))

    def read(self, items: Items, features: Features, cached: bool, task: Task) -> DenseRows:
        letters = ["".join(texts or ())[:1].lower() for texts in items.texts.to_pylist()]
        rows = torch.zeros(len(letters), 128)
        for row, letter in enumerate(letters):
            rows[row, ord(letter) % 128 if letter else 0] = 1.0
        return DenseRows(rows)

    def propose(self, query: Query, k: int) -> list[Tensor]:
        same = query.readings[self.name].values @ self.labels.T  # (B, L)
        every = torch.arange(len(self.labels)).expand(len(query), -1)
        return [query.most_voted(every.where(same > 0, -1), same, k)]

    def score(self, query: Query, candidates: Candidates) -> Tensor:
        own = self.labels[candidates.rows.clamp(min=0)]  # (B, K, 128)
        return own @ query.readings[self.name].values[..., None]

    def learn(self, training: Training) -> Initials:
        return Initials(training.labels.readings[self.name].values)

    def with_labels(self, labels: Query) -> Initials:
        return Initials(torch.cat([self.labels, labels.readings[self.name].values]))

    def keep(self, labels: Ints, points: Ints) -> Initials:
        return Initials(self.labels[torch.from_numpy(labels)])

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield "labels", self.labels

    def restored(self, tensors: Tensors, known: Known) -> Initials:
        return Initials(tensors.get_floats("labels", len(known.labels.alive), 128))


@pytest.fixture
def model(shop: Catalogue, tiny_config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mufin:
    """Trained with the toy signal, saved and loaded."""
    monkeypatch.setattr(mufin.signals, "SIGNALS", [*mufin.signals.SIGNALS, Initials])
    settings = ["rank.beta=learnt", "run.validation=0.2"]
    fit(shop, tiny_config.override(settings), out=tmp_path / "model", quiet=True)
    return load(tmp_path / "model")


def test_it_is_in_hits_and_in_the_mixture(model: Mufin) -> None:
    hits = model.recommend(Item(texts=["red bar"]), k=7)
    assert all({"initials", "similarity"} <= set(hit.parts) and "initials" in hit.evidence for hit in hits)
    assert "initials" in model.mixture.stored()["weights"]
    assert all(sum(hit.parts.values()) == pytest.approx(hit.score, abs=1e-4) for hit in hits)


def test_the_example_of_the_design_page_is_complete(
    shop: Catalogue, tiny_config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "design.md").read_text("utf-8")
    scope: dict[str, Any] = {"__name__": "__main__"}
    exec(page.split("## A signal\n")[1].split("```python\n")[1].split("```")[0], scope)
    monkeypatch.setattr(mufin.signals, "SIGNALS", [*mufin.signals.SIGNALS, scope["Initial"]])
    fit(shop, tiny_config, out=tmp_path / "model", quiet=True)
    (hit,) = load(tmp_path / "model").recommend(Item(texts=["red bar"]), k=1)
    assert hit.evidence["initial"] in (0, 1)


def test_it_grows_and_shrinks_with_the_labels(model: Mufin, tmp_path: Path) -> None:
    model.add_labels([Item("new-r", ["rope"]), Item("new-x", ["xylophone"])])
    hits = {hit.label: hit for hit in model.recommend(Item(texts=["red bar"]), k=20)}
    assert hits["new-r"].evidence["initials"] == 1
    assert hits["new-x"].evidence["initials"] == 0
    model.remove_labels(["new-r"])
    model.compact()
    assert len(model.recommend(Item(texts=["red bar"]), k=20)) == len(model.labels)


def test_it_is_in_the_json_of_the_command_line_and_of_the_service(
    model: Mufin, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from mufin.cli import main

    assert main(["recommend", str(tmp_path / "model"), "red bar", "--json"]) == 0
    hit = json.loads(capsys.readouterr().out)["hits"][0]
    assert "initials" in hit["parts"]
    assert "initials" in hit["evidence"]
    with client_of(tmp_path / "model") as client:
        assert client.get("/v1/model").json()["signals"]["initials"] == Initials.description
        asked = {"items": [{"texts": ["red bar"]}]}
        (result,) = client.post("/v1/recommend", json=asked).json()["results"]
        assert all("initials" in hit["parts"] for hit in result["hits"])


def test_it_is_in_the_report(model: Mufin, shop: Catalogue, tmp_path: Path) -> None:
    from mufin.evaluate.report import write_report

    write_report(model, shop, tmp_path / "report.html", split="train")
    assert Initials.description in (tmp_path / "report.html").read_text("utf-8")


def test_it_is_on_the_page(model: Mufin, tmp_path: Path) -> None:
    """The legend and the panel name it, whatever the model."""
    from playwright.sync_api import sync_playwright

    with listening(tmp_path / "model", Door()) as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable())
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{server.port}/#/ask?text=red+bar")
        page.locator(".hit").first.click()
        page.locator(".panel .score tbody th", has_text="initials").first.wait_for()
        browser.close()
