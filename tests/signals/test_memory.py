"""The memory: votes of training points, and how it grows and shrinks with the model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix, random_array

from mufin import Catalogue, Config, Item, Mufin, fit, load, save
from mufin.encode.bag import PackedBags
from mufin.errors import UsageError
from mufin.model.labels import Labels
from mufin.retrieve.lists import Lists, bounded
from mufin.signals.base import Candidates, Known, Query
from mufin.signals.evidence import unique
from mufin.signals.memory import Memory, votes_for
from mufin.signals.words import Words


def unit_rows(n: int, dim: int = 6) -> torch.Tensor:
    return torch.nn.functional.normalize(torch.randn(n, dim), dim=1)


def asking(queries: torch.Tensor, points: Lists, **filters: object) -> Query:
    """Queries of these vectors in a model that knows only the labels of its points."""
    known = Known(None, None, (), None, None, points)  # type: ignore[arg-type]  # votes need nothing else
    bags = PackedBags(queries, torch.arange(len(queries) + 1), queries)
    return Query(known, bags, {}, **filters)  # type: ignore[arg-type]  # exclude and allowed


def test_votes_against_loops() -> None:
    keys, queries = unit_rows(30), unit_rows(5)
    relevance = csr_matrix(random_array((30, 9), density=0.3, rng=4) > 0)
    settings = Config().memory.model_copy(update={"neighbours": 7, "temperature": 0.1})
    labels, votes = Memory(settings, keys).votes(asking(queries, Lists.of(relevance)))
    for q in range(5):
        similarity = (keys @ queries[q]).numpy()
        nearest = np.argsort(-similarity)[:7]
        weight = np.exp(similarity[nearest] / 0.1) / np.exp(similarity[nearest] / 0.1).sum()
        expected = np.zeros(9)
        for i, share in zip(nearest, weight, strict=True):
            expected[relevance[[i]].indices] += share
        found = {int(l): float(v) for l, v in zip(labels[q], votes[q], strict=True) if l >= 0}
        assert found == pytest.approx({l: expected[l] for l in np.flatnonzero(expected)}, abs=1e-5)
        shown = labels[q][labels[q] >= 0]
        assert bool((shown[1:] > shown[:-1]).all())


def test_candidates_get_the_votes_cast_for_them() -> None:
    voted, votes = torch.tensor([[1, 4, -1], [0, 2, 9]]), torch.tensor([[0.7, 0.3, 0.0], [0.2, 0.3, 0.5]])
    rows = torch.tensor([[4, -1, 1, 0], [9, 9, 3, 0]])
    labels: Labels = None  # type: ignore[assignment]  # not looked at
    found = votes_for(Candidates(rows, labels), voted, votes)
    assert found.tolist() == [pytest.approx([0.3, 0, 0.7, 0]), pytest.approx([0.5, 0.5, 0, 0.2])]
    assert not votes_for(Candidates(rows, labels), voted[:, :0], votes[:, :0]).any()


def test_proposals_are_eligible_and_candidates_unique() -> None:
    voted, votes = torch.tensor([[2, 3, 5, 7, -1]]), torch.tensor([[0.3, 0.1, 0.2, 0.5, 0.0]])
    queries, points = unit_rows(1), Lists.none(0, torch.device("cpu"))
    assert asking(queries, points).most_voted(voted, votes, 3).tolist() == [[7, 2, 5]]  # the most first
    allowed = torch.ones(9, dtype=torch.bool)
    allowed[[3, 5]] = False
    hidden = csr_matrix(([True], ([0], [2])), shape=(1, 9))
    asked = asking(queries, points, exclude=hidden, allowed=allowed)
    assert asked.most_voted(voted, votes, 3).tolist() == [[7, -1, -1]]
    assert asked.eligible(torch.tensor([[2, 3, 7, -1]])).tolist() == [[False, False, True, False]]
    proposals = [torch.tensor([[4, 7]]), torch.tensor([[7, -1, -1]]), torch.tensor([[8, 7, -1]])]
    assert unique(proposals).tolist() == [[4, 7, 8]]
    assert unique(proposals[:1]).tolist() == [[4, 7]]


def test_memory_is_bounded_and_keeps_rare_labels() -> None:
    relevance = csr_matrix(np.concatenate([np.ones((200, 1)), np.eye(200, 3)], axis=1) > 0)
    kept = bounded(relevance, per_label=5)
    assert len(kept) < 12
    counts = np.asarray(relevance[kept].sum(0)).ravel()
    assert counts[0] >= 5
    assert (counts[1:] == 1).all()


def test_a_bounded_memory_remembers_from_all_over() -> None:
    everyone = csr_matrix(np.ones((1000, 1), bool))
    kept = bounded(everyone, per_label=10)
    assert kept.tolist() == list(range(0, 1000, 100))  # and not the first ten
    assert len(bounded(everyone, per_label=1000)) == len(bounded(everyone, per_label=5000)) == 1000


def test_lists_of_kept_labels_and_points() -> None:
    lists = Lists.of(csr_matrix(np.array([[1, 0, 1], [0, 1, 0], [1, 1, 0], [0, 0, 0]], bool)))
    fewer = lists.kept(np.array([0, 2]), 3, np.array([0, 2, 3]))
    assert (fewer.offsets.tolist(), fewer.labels.tolist()) == ([0, 2, 3, 3], [0, 1, 0])


@pytest.fixture(scope="module")
def remembering(shop: Catalogue, tiny_config: Config) -> Mufin:
    settings = ["memory.neighbours=5", "rank.beta=learnt", "run.validation=0.2", "text.words=true"]
    return fit(shop, tiny_config.override(settings), quiet=True)


def test_candidates_do_not_depend_on_who_is_asked_together(
    remembering: Mufin, shop: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = remembering.query(remembering.features(shop.items))
    labels, evidence = remembering.candidates(query)
    monkeypatch.setattr("mufin.model.mufin.QUERIES_PER_CHUNK", 1)
    alone, alone_evidence = remembering.candidates(query)
    for row in range(len(query)):
        together = labels[row][labels[row] >= 0].tolist()
        assert sorted(together) == sorted(alone[row][alone[row] >= 0].tolist())
    found, found_alone = (remembering.mixture.score(e).topk(3, 1).values for e in (evidence, alone_evidence))
    assert torch.allclose(found, found_alone, atol=1e-5)


def test_evidence_of_any_label_is_that_of_candidates(remembering: Mufin, shop: Catalogue) -> None:
    query = remembering.query(remembering.features(shop.items.take(np.arange(9))))
    labels, evidence = remembering.candidates(query)
    fresh = remembering.query(remembering.features(shop.items.take(np.arange(9))))
    again = remembering.evidence(fresh, labels.flip(1))  # in another order, nothing proposed before
    assert torch.equal(again.present.flip(1), evidence.present)
    assert torch.allclose(again.columns.flip(1), evidence.columns, atol=1e-5)


def test_a_model_with_memory_saves_it(remembering: Mufin, shop: Catalogue, tmp_path: Path) -> None:
    save(remembering, tmp_path / "m")
    again = load(tmp_path / "m", exact=True)
    words = next(signal for signal in again.signals if isinstance(signal, Words))
    assert "T" in vars(words.points)  # read, not made again
    for item in (shop.items[0], shop.items[30]):
        hits = remembering.recommend(item, k=7)
        assert again.recommend(item, k=7) == hits
        assert all(0 <= hit.probability <= 1 and 0 <= hit.memory <= 1 + 1e-6 for hit in hits)
        for name in ("memory", "words", "overlap"):
            assert any(hit.evidence[name] > 0 for hit in hits)
        assert all(sum(hit.parts.values()) == pytest.approx(hit.score, abs=1e-4) for hit in hits)


def test_examples_vote_at_once(remembering: Mufin, tmp_path: Path) -> None:
    save(remembering, tmp_path / "m")
    model = load(tmp_path / "m")
    odd = Item("odd", ["zzz qqq 77"])
    before = {hit.label: hit.memory for hit in model.recommend(odd, k=7)}
    model.add_examples([odd] * 4, [["q-bar"]] * 4)
    after = {hit.label: hit.memory for hit in model.recommend(odd, k=7)}
    assert after["q-bar"] > before.get("q-bar", 0.0)
    assert after["q-bar"] > 0.5
    save(model, tmp_path / "m")
    assert {hit.label: hit.memory for hit in load(tmp_path / "m").recommend(odd, k=7)} == after
    model.remove_labels("q-red")
    model.compact()
    assert int(model.points.labels.max()) < len(model.labels)
    assert bool((model.points.offsets.diff() > 0).all())  # who had no other label is forgotten
    vectors = model.point_vectors()
    assert vectors is not None
    assert len(vectors) == len(model.points)
    assert all(hit.label != "q-red" for hit in model.recommend(odd, k=7))


def test_examples_need_a_memory_and_known_labels(tiny_model: Mufin, remembering: Mufin) -> None:
    with pytest.raises(UsageError, match="no memory"):
        tiny_model.add_examples(Item("a", ["a"]), [["q-red"]])
    with pytest.raises(UsageError, match="no label 'q-pink'"):
        remembering.add_examples(Item("a", ["a"]), [["q-pink"]])
    with pytest.raises(UsageError, match="one list per item"):
        remembering.add_examples(Item("a", ["a"]), [["q-red"], ["q-red"]])


def test_nobody_and_points_without_labels_cast_no_votes() -> None:
    lists = Lists(torch.tensor([0, 2, 2]), torch.tensor([5, 1]))
    logits = torch.tensor([[0.0, 0.0], [0.0, -torch.inf]])
    labels, votes = lists.tally(torch.tensor([[1, 0], [1, -1]]), logits)
    assert labels.tolist() == [[1, 5], [-1, -1]]
    assert votes.tolist() == [[0.5, 0.5], [0, 0]]
    assert lists.tally(torch.tensor([[1, -1]]), logits[1:])[0].shape == (1, 0)
    assert lists.tally(torch.full((2, 2), -1), torch.full((2, 2), -torch.inf))[0].shape == (2, 0)
