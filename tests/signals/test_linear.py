"""The linear classifier of words: what it learns, and how it follows labels and files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

from mufin import Catalogue, Config, Item, Mufin, fit, load
from mufin.config import ConfigError
from mufin.data.items import Items
from mufin.encode.bag import PackedBags
from mufin.encode.rows import SparseRows
from mufin.encode.words import inverse_frequency, tfidf
from mufin.signals import linear as module
from mufin.signals.base import Candidates, Known, Query, Training
from mufin.signals.linear import Linear
from mufin.signals.words import Words

COLOURS, THINGS = ("red", "blue", "green"), ("lamp", "desk", "chair", "shelf")
ITEMS = Items.of([Item(f"{c}-{t}", [f"{c} {t}"]) for c in COLOURS for t in THINGS])


@pytest.fixture(autouse=True)
def _learns_from_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MIN_POINTS", 0)


def asking(items: Items) -> Query:
    """Queries of these words, in a model that knows nothing else."""
    known = Known(None, None, (), None, None, None)  # type: ignore[arg-type]  # not looked at
    rows = torch.zeros(len(items), 2)
    words = SparseRows.of(tfidf(items, inverse_frequency(ITEMS)))
    return Query(known, PackedBags(rows, torch.arange(len(items) + 1), rows), {Words.name: words})


def taught(exclude: csr_matrix | None = None) -> Linear:
    """A signal that learnt the colour and the thing of each item; label 7 has no item."""
    labels = [[i // len(THINGS), len(COLOURS) + i % len(THINGS)] for i in range(len(ITEMS))]
    relevance = np.zeros((len(ITEMS), 8), bool)
    relevance[np.arange(len(ITEMS))[:, None], labels] = True
    none = csr_matrix(relevance.shape, dtype=bool)
    signal = Linear.of(Config.preset("fast"))
    assert signal is not None
    names = Items.of([Item(str(label), [str(label)]) for label in range(8)])
    excluded = none if exclude is None else exclude
    return signal.learn(Training(asking(ITEMS), asking(names), csr_matrix(relevance), excluded, False))


def scores(signal: Linear, text: str, n_labels: int = 8) -> list[float]:
    candidates = Candidates(torch.arange(n_labels)[None], None)  # type: ignore[arg-type]  # rows only
    found: list[float] = signal.score(asking(Items.of([Item("", [text])])), candidates)[0, :, 1].tolist()
    return found


def test_words_of_several_points_add_up() -> None:
    found = scores(taught(), "a green shelf")
    assert sorted(np.argsort(found)[-2:].tolist()) == [2, 6]
    assert min(found[2], found[6]) > 0.5 > max(found[0], found[1], found[3])


def test_labels_without_training_are_no_evidence() -> None:
    signal = taught()
    assert scores(signal, "red lamp")[7] == 0
    longer = signal.with_labels(asking(Items.of([Item("new", ["red lamp"])])))
    assert scores(longer, "red lamp", 9)[:8] == scores(signal, "red lamp")
    assert scores(longer, "red lamp", 9)[8] == 0
    kept = longer.keep(np.array([3, 0, 8]), np.arange(3))
    assert scores(kept, "red lamp", 3) == [scores(signal, "red lamp")[3], scores(signal, "red lamp")[0], 0]


def test_pairs_of_unknown_relevance_are_no_negatives() -> None:
    hidden = np.zeros((len(ITEMS), 8), bool)
    hidden[4:8, 0] = True  # whether the blue things are red is not known
    assert scores(taught(csr_matrix(hidden)), "blue")[0] > scores(taught(), "blue")[0]


def test_few_points_are_not_learnt_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MIN_POINTS", len(ITEMS) + 1)
    assert scores(taught(), "red lamp") == [0.0] * 8


def test_it_needs_words() -> None:
    assert Linear.of(Config()) is None
    with pytest.raises(ConfigError, match=r"text\.words"):
        Config.preset("fast").override(["text.words=false", "text.linear=true"])


def test_a_model_keeps_it(shop: Catalogue, tiny_config: Config, tmp_path: Path) -> None:
    settings = ["memory.neighbours=5", "rank.beta=learnt", "run.validation=0.2"]
    settings += ["text.words=true", "text.linear=true"]
    model: Mufin = fit(shop, tiny_config.override(settings), out=tmp_path / "m", quiet=True)
    again = load(tmp_path / "m", exact=True)
    item = next(item for item in shop.items if item.texts)
    hits = model.recommend(item, k=7)
    assert again.recommend(item, k=7) == hits
    assert any(hit.evidence["linear"] > 0.5 for hit in hits)
    assert all("linear" in hit.parts for hit in hits)
