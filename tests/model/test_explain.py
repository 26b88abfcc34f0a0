"""`Mufin.explain`: the same numbers as in recommend, for any label."""

from __future__ import annotations

import json

import numpy as np
import pytest

from made import picture
from mufin import Catalogue, Config, Item, Mufin, fit
from mufin.errors import UsageError

ASKED = Item("q", ["red circle"], [picture("red", "circle")])


def test_an_explanation_has_the_numbers_of_recommend(tiny_model: Mufin) -> None:
    for rank, hit in enumerate(tiny_model.recommend(ASKED, k=7), 1):
        found = tiny_model.explain(ASKED, hit.label)
        assert found.rank == rank
        assert found.hit.score == pytest.approx(hit.score, abs=1e-5)
        assert found.hit.probability == pytest.approx(hit.probability, abs=1e-5)
        assert found.hit.parts == pytest.approx(hit.parts, abs=1e-5)


def test_what_an_explanation_says(tiny_model: Mufin) -> None:
    found = tiny_model.explain(ASKED, "q-red")
    assert (found.item, found.label) == (("red circle", "image 1"), ("red things",))
    assert found.kind == "cross-attention"
    assert found.attention.shape == (2, 1)
    assert found.attention.sum(axis=1) == pytest.approx(np.ones(2), abs=1e-5)
    assert (found.frequency, 0 <= found.alpha <= 1) == (12, True)
    assert {*(one.label for one in found.nearest), "q-red"} == {*tiny_model.labels.items.ids.to_pylist()}
    similarities = [one.similarity for one in found.nearest]
    assert similarities == sorted(similarities, reverse=True)
    assert json.loads(json.dumps(found.as_dict()))["hit"]["label"] == "q-red"
    first, second, third = repr(found).splitlines()
    assert first.startswith(f"rank {found.rank}: ")
    assert second.startswith("score ")
    assert third.startswith("in 12 training points; near q-")


def test_labels_beyond_the_shortlist(shop: Catalogue, tiny_config: Config) -> None:
    model = fit(shop, tiny_config.override(["retrieve.shortlist=2", "pretrain.epochs=1"]), quiet=True)
    hits = model.recommend("red", k=7)
    assert model.explain("red", hits[-1].label).hit.score == pytest.approx(hits[-1].score, abs=1e-5)


def test_what_cannot_be_explained(tiny_model: Mufin) -> None:
    with pytest.raises(UsageError, match="no label 'nobody'"):
        tiny_model.explain("red", "nobody")
    with pytest.raises(UsageError, match="no text or readable image"):
        tiny_model.explain(" ", "q-red")
    with pytest.raises(UsageError, match="2 items; explain one at a time"):
        tiny_model.explain([ASKED, ASKED], "q-red")  # type: ignore[arg-type]


def test_min_probability(tiny_model: Mufin) -> None:
    hits = tiny_model.recommend(ASKED, k=7)
    least = hits[2].probability
    likely = [hit for hit in hits if hit.probability >= least]
    assert tiny_model.recommend(ASKED, k=7, min_probability=least) == likely
    assert tiny_model.recommend([ASKED], k=2, min_probability=least) == [likely[:2]]
    assert tiny_model.recommend(ASKED, min_probability=1.0) == [h for h in hits if h.probability == 1]
    with pytest.raises(UsageError, match="min_probability is 50; expected a number from 0 to 1"):
        tiny_model.recommend(ASKED, min_probability=50)
