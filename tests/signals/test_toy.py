"""A new signal is one class and one line in the list; everything else finds it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

import mufin.signals
from mufin import Catalogue, Config, Item, Mufin, fit, load
from mufin.data.items import Items
from mufin.encode.features import Advance, Features
from mufin.ragged import Ints
from mufin.rows import DenseRows
from mufin.signals.base import Candidates, Column, Known, Query, Signal, Training
from mufin.tensors import Tensors


@dataclass(frozen=True)
class Initials(Signal):
    """Whether the first texts of item and label begin with the same letter; proposes such labels."""

    name = "initials"
    says = "whether item and label begin with the same letter"
    columns = (Column("initials"),)

    labels: Tensor  # (L, 128)

    @classmethod
    def of(cls, config: Config, layout: Path | None = None) -> Initials:
        return cls(torch.zeros(0, 128))

    def read(self, items: Items, features: Features, cached: bool, progress: Advance) -> DenseRows:
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


def test_it_grows_and_shrinks_with_the_labels(model: Mufin, tmp_path: Path) -> None:
    model.add_labels([Item("new-r", ["rope"]), Item("new-x", ["xylophone"])])
    hits = {hit.label: hit for hit in model.recommend(Item(texts=["red bar"]), k=20)}
    assert hits["new-r"].evidence["initials"] == 1
    assert hits["new-x"].evidence["initials"] == 0
    model.remove_labels(["new-r"])
    model.compact()
    assert len(model.recommend(Item(texts=["red bar"]), k=20)) == len(model.labels)
