"""Calibration: probabilities match frequencies, and queries unlike the training data get low ones."""

from __future__ import annotations

import json
from copy import copy

import numpy as np
import pytest
import torch

from mufin import Catalogue, Config, Item, Mufin, fit
from mufin.signals.calibration import Calibration

rng = np.random.default_rng(3)


def no_clues(n: int) -> torch.Tensor:
    return torch.zeros(n, 0)


def probabilities(score: torch.Tensor, relevant: torch.Tensor) -> torch.Tensor:
    """Calibrated on these scores, for the same scores."""
    fitted = Calibration.unfitted((), [0.0] * 4).with_hits(score, relevant, no_clues(len(score)))
    return fitted.probability(score, no_clues(len(score)))


def test_calibrated_probabilities_are_near_the_truth() -> None:
    score = torch.from_numpy(rng.normal(0, 2, (2000, 8)).astype(np.float32))
    chance = (score - score.logsumexp(1, keepdim=True) + 1).sigmoid()
    relevant = torch.rand(score.shape) < chance
    found = probabilities(score, relevant)
    for low in (0.0, 0.2, 0.4):
        chosen = (found >= low) & (found < low + 0.2)
        assert float(found[chosen].mean()) == pytest.approx(float(relevant[chosen].float().mean()), abs=0.03)


def test_the_first_of_many_is_not_believed_too_much() -> None:
    """Scores are the truth and noise: who comes first had luck, and the probability says so."""
    truth = torch.from_numpy(rng.normal(0, 1, (4000, 30)).astype(np.float32))
    score = truth + torch.from_numpy(rng.normal(0, 1.5, truth.shape).astype(np.float32))
    relevant = torch.rand(score.shape) < (2 * truth - 1).sigmoid()
    found = probabilities(score, relevant)
    order = score.argsort(dim=1, descending=True)
    claimed, true = found.gather(1, order), relevant.gather(1, order).float()
    for rank in range(10):
        assert float(claimed[:, rank].mean()) == pytest.approx(float(true[:, rank].mean()), abs=0.03)
    assert (claimed[:, 1:] <= claimed[:, :-1]).all()  # as ordered as the scores


@pytest.mark.parametrize("right", [True, False])
def test_one_query_makes_nothing_certain(right: bool) -> None:
    score = torch.tensor([[3.0, 1.0, 0.0]])
    relevant = torch.tensor([[right, False, False]])
    found = probabilities(score, relevant)
    assert 0.05 < float(found[0, 0]) < 0.95
    nothing = torch.full((2, 3), -torch.inf)
    assert not probabilities(nothing, torch.zeros(2, 3, dtype=torch.bool)).any()


def test_probabilities_of_hardly_any_candidates() -> None:
    found = Calibration.unfitted((), [1.0, -1.0, 0.0, 0.5])
    assert found.probability(torch.zeros(2, 0), no_clues(2)).shape == (2, 0)
    assert found.probability(torch.full((1, 2), -torch.inf), no_clues(1)).tolist() == [[0.0, 0.0]]


# -- is a query like the training data? ----------------------------------------------------------------------

CLUES = ("vector", "words")


def clues(n: int, *means: float) -> torch.Tensor:
    return torch.from_numpy(rng.normal(means, 0.1, (n, len(means))).astype(np.float32))


def seen_by(known: list[torch.Tensor], strange: list[torch.Tensor]) -> Calibration:
    return Calibration.unfitted(CLUES, [1.0, -1.0, 0.0, 0.0]).with_seen(known, strange)


def test_strange_queries_are_told_from_known_ones() -> None:
    fitted = seen_by([clues(50, 0.8, 0.6)], [clues(80, 0.4, 0.1)])
    assert float(fitted.seen(clues(200, 0.8, 0.6)).mean()) > 0.95
    assert float(fitted.seen(clues(200, 0.4, 0.1)).mean()) < 0.05


def test_a_clue_that_is_not_given_is_no_sign_of_strangeness() -> None:
    nan = torch.full((50,), torch.nan)
    image_only, strange_images = (torch.stack([clues(50, mean)[:, 0], nan], 1) for mean in (0.7, 0.4))
    fitted = seen_by([clues(50, 0.9, 0.6), image_only], [clues(50, 0.4, 0.1), strange_images])
    assert float(fitted.seen(image_only).mean()) > 0.8
    assert float(fitted.seen(strange_images).mean()) < 0.2


def test_more_familiar_is_never_less_probable() -> None:
    """Even where a small sample says so."""
    fitted = seen_by([clues(3, 0.8, 0.1)], [clues(80, 0.4, 0.6)])
    assert bool((fitted.slope >= 0).all())


@pytest.mark.parametrize("known", [1, 2])
def test_one_known_query_is_enough(known: int) -> None:
    fitted = seen_by([clues(known, 0.8, 0.6)], [clues(80, 0.4, 0.1)])
    assert float(fitted.seen(clues(100, 0.4, 0.1)).mean()) < 0.1
    assert float(fitted.seen(clues(100, 0.8, 0.6)).mean()) > 0.9


def test_without_clues_or_strange_queries_everything_is_seen() -> None:
    assert float(seen_by([clues(5, 0.8, 0.6)], []).seen(clues(1, 0.0, 0.0))) == 1.0
    plain = Calibration.unfitted((), [1.0, -1.0, 0.0, 0.0]).with_seen([no_clues(5)], [no_clues(5)])
    assert plain.seen(no_clues(3)).tolist() == [1.0] * 3


def test_the_ranking_does_not_change() -> None:
    fitted = seen_by([clues(50, 0.8, 0.6)], [clues(80, 0.4, 0.1)])
    score = torch.from_numpy(rng.normal(0, 2, (30, 12)).astype(np.float32))
    found = fitted.probability(score, clues(30, 0.6, 0.3)).gather(1, score.argsort(dim=1, descending=True))
    assert (found[:, 1:] <= found[:, :-1]).all()


def test_a_calibration_is_stored_by_name() -> None:
    fitted = seen_by([clues(50, 0.8, 0.6)], [clues(80, 0.4, 0.1)])
    again = Calibration.of(CLUES, json.loads(json.dumps(fitted.stored())))
    some = clues(20, 0.6, 0.3)
    assert torch.allclose(again.seen(some), fitted.seen(some))
    turned = Calibration.of(CLUES[::-1], fitted.stored())
    assert torch.allclose(turned.seen(some.flip(1)), fitted.seen(some))


# -- a small shop --------------------------------------------------------------------------------------------

COLOURS, MATERIALS = ("red", "green", "blue", "black"), ("oak", "steel", "wool", "glass")
THINGS = ("desk lamp", "floor lamp", "chair", "stool", "shelf", "basket", "mug", "teapot", "rug", "blanket")
NONSENSE = ["qwertzuiop asdf", "xkcd vbnm", "blorf", "QWRTZ PLMN", "ghjkl zxcv uiop"]
ELSEWHERE = ["carburettor gasket", "quarterly tax return", "photosynthesis", "violin concerto", "malaria"]


@pytest.fixture(scope="module")
def small() -> tuple[Mufin, Catalogue]:
    """A shop of 160 products, titles only, whose labels are easy; trained for a few seconds."""
    names = [f"{c} {m} {t}" for c in COLOURS for m in MATERIALS for t in THINGS]
    items = [Item(f"p{i}", [name]) for i, name in enumerate(names)]
    labels = [Item(f"l-{word}", [word]) for word in (*COLOURS, *THINGS)]
    listed = {f"p{i}": [f"l-{n.split()[0]}", f"l-{n.split(None, 2)[2]}"] for i, n in enumerate(names)}
    order = rng.permutation(len(names)).tolist()
    train, test = ({f"p{i}": listed[f"p{i}"] for i in some} for some in (order[:130], order[130:]))
    catalogue = Catalogue.build(items, labels, train=train, test=test)
    settings = ["modalities=text", "pretrain.epochs=1", "finetune.epochs=6", "run.validation=0.1"]
    return fit(catalogue, Config.preset("fast").override(settings), quiet=True), catalogue


def first(model: Mufin, texts: list[str]) -> float:
    """The mean probability of the first hit."""
    return float(np.mean([hits[0].probability for hits in model.recommend([Item(texts=[t]) for t in texts])]))


def test_nonsense_gets_a_low_probability(small: tuple[Mufin, Catalogue]) -> None:
    model, catalogue = small
    assert first(model, NONSENSE) <= 0.15
    assert first(model, ELSEWHERE) <= 0.15
    assert model.recommend(NONSENSE[0], min_probability=0.5) == []
    test = catalogue.split("test")
    assert first(model, [catalogue.items[int(row)].texts[0] for row in test.members]) > 0.7


def test_added_labels_and_examples_are_known_at_once(small: tuple[Mufin, Catalogue]) -> None:
    model = copy(small[0])
    before = first(model, ["submarine periscope"])
    model.add_labels(Item("new", ["submarine periscope"]))
    model.add_examples([Item("one", ["submarine periscope 7"])], [["new"]])
    assert first(model, ["submarine periscope"]) > max(0.5, 3 * before)
