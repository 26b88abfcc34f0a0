"""The mixture of scores, its calibration, and the memory it draws on."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix, random_array

from mufin import Catalogue, Config, Item, Mufin, fit, load, save
from mufin.candidates import eligible_votes, marked, merge
from mufin.errors import UsageError
from mufin.rank.fusion import NAMES, SCALE, START, Fusion, Parts, fit_calibration, fit_weights
from mufin.retrieve.lists import Lists
from mufin.retrieve.memory import Memory, bounded

rng = np.random.default_rng(3)


def parts(n: int = 40, k: int = 12) -> Parts:
    values = [torch.from_numpy(rng.uniform(-1, 1, (n, k)).astype(np.float32)) for _ in range(2)]
    memory = torch.from_numpy(rng.random((n, k)).astype(np.float32)) ** 4
    present = torch.ones(n, k, dtype=torch.bool)
    present[:, -2:] = False
    nothing = torch.zeros(n, k)
    return Parts(*values, memory, *[nothing] * 5, torch.full((n, k), 3.0), present)


def test_the_papers_mixture_is_one_of_them() -> None:
    known = parts()
    score = Fusion.of_beta(0.7).score(known)
    expected = 0.7 * known.classifier + 0.3 * known.similarity
    assert torch.allclose(score[known.present], expected[known.present], atol=1e-6)
    assert bool((score[~known.present] == -torch.inf).all())


def test_similarity_alone_at_beta_zero() -> None:
    known = parts()
    score = Fusion.of_beta(0.0).score(known)
    assert torch.allclose(score[known.present], known.similarity[known.present])


def test_a_learnt_mixture_finds_what_decides() -> None:
    """Relevance follows from memory alone: the learnt score ranks it better than the classifier."""
    known = parts(300)
    relevant = (known.memory > 0.4) & known.present
    score = Fusion(fit_weights(known, relevant), torch.zeros(4)).score(known)
    useful = relevant.any(1)
    first = relevant.gather(1, score.argmax(1, keepdim=True))[useful]
    assert float(first.float().mean()) > 0.9


def test_every_feature_has_a_name_a_start_and_a_scale() -> None:
    known = parts()
    assert known.features().shape[-1] == len(NAMES) == len(START) == len(SCALE)


@pytest.mark.parametrize("name", ["titles", "titles_by_words", "meaning"])
def test_what_came_later_can_decide_too(name: str) -> None:
    known = parts(300)
    deciding = torch.from_numpy(rng.random(known.memory.shape).astype(np.float32)) ** 4
    known = replace(known, **{name: deciding})
    relevant = (deciding > 0.4) & known.present
    score = Fusion(fit_weights(known, relevant), torch.zeros(4)).score(known)
    first = relevant.gather(1, score.argmax(1, keepdim=True))[relevant.any(1)]
    assert float(first.float().mean()) > 0.9


def test_calibrated_probabilities_are_near_the_truth() -> None:
    score = torch.from_numpy(rng.normal(0, 2, (2000, 8)).astype(np.float32))
    chance = (score - score.logsumexp(1, keepdim=True) + 1).sigmoid()
    relevant = torch.rand(score.shape) < chance
    fusion = Fusion(torch.zeros(len(NAMES)), fit_calibration(score, relevant))
    found = fusion.probability(score)
    for low in (0.0, 0.2, 0.4):
        chosen = (found >= low) & (found < low + 0.2)
        assert float(found[chosen].mean()) == pytest.approx(float(relevant[chosen].float().mean()), abs=0.03)


def test_the_first_of_many_is_not_believed_too_much() -> None:
    """Scores are the truth and noise: who comes first had luck, and the probability says so."""
    truth = torch.from_numpy(rng.normal(0, 1, (4000, 30)).astype(np.float32))
    score = truth + torch.from_numpy(rng.normal(0, 1.5, truth.shape).astype(np.float32))
    relevant = torch.rand(score.shape) < (2 * truth - 1).sigmoid()
    found = Fusion(torch.zeros(len(NAMES)), fit_calibration(score, relevant)).probability(score)
    order = score.argsort(dim=1, descending=True)
    claimed, true = found.gather(1, order), relevant.gather(1, order).float()
    for rank in range(10):
        assert float(claimed[:, rank].mean()) == pytest.approx(float(true[:, rank].mean()), abs=0.03)
    assert (claimed[:, 1:] <= claimed[:, :-1]).all()  # as ordered as the scores


@pytest.mark.parametrize("right", [True, False])
def test_one_query_makes_nothing_certain(right: bool) -> None:
    score = torch.tensor([[3.0, 1.0, 0.0]])
    relevant = torch.tensor([[right, False, False]])
    found = Fusion(torch.zeros(len(NAMES)), fit_calibration(score, relevant)).probability(score)
    assert 0.05 < float(found[0, 0]) < 0.95
    nothing = torch.full((2, 3), -torch.inf)
    assert fit_calibration(nothing, torch.zeros(2, 3, dtype=torch.bool)).isfinite().all()


def test_probabilities_of_hardly_any_candidates() -> None:
    fusion = Fusion(torch.zeros(len(NAMES)), torch.tensor([1.0, -1.0, 0.0, 0.5]))
    assert fusion.probability(torch.zeros(2, 0)).shape == (2, 0)
    assert fusion.probability(torch.full((1, 2), -torch.inf)).tolist() == [[0.0, 0.0]]


def test_votes_against_loops() -> None:
    keys = torch.nn.functional.normalize(torch.randn(30, 6), dim=1)
    relevance = csr_matrix(random_array((30, 9), density=0.3, rng=4) > 0)
    memory = Memory.of(keys, relevance, 10**6)
    queries = torch.nn.functional.normalize(torch.randn(5, 6), dim=1)
    labels, votes = memory.votes(queries, neighbours=7, temperature=0.1)
    used = np.flatnonzero(np.diff(relevance.indptr))
    for q in range(5):
        similarity = {i: float(queries[q] @ keys[i]) for i in used}
        nearest = sorted(used, key=lambda i: -similarity[i])[:7]
        total = sum(np.exp(similarity[i] / 0.1) for i in nearest)
        expected = np.zeros(9)
        for i in nearest:
            expected[relevance[[i]].indices] += np.exp(similarity[i] / 0.1) / total
        found = {int(l): float(v) for l, v in zip(labels[q], votes[q], strict=True) if l >= 0}
        assert found == pytest.approx({l: expected[l] for l in np.flatnonzero(expected)}, abs=1e-5)
        shown = labels[q][labels[q] >= 0]
        assert bool((shown[1:] > shown[:-1]).all())


def test_what_titles_say_is_counted_apart() -> None:
    keys = torch.nn.functional.normalize(torch.randn(18, 6), dim=1)
    listed, said = (csr_matrix(np.eye(18, 9, shift) + np.eye(18, 9, shift - 9) > 0) for shift in (0, 1))
    memory = Memory.of(keys, listed, 10**6, said=said)
    assert len(memory) == 18  # each lists a label
    settings = Config().memory.model_copy(update={"neighbours": 6})
    near, like, titles, by_words = memory.ballots(keys[:4], None, settings)
    for found, relation in ((near, listed), (titles, said)):
        alone = Memory(keys, *vars(Lists.of(relation)).values()).votes(keys[:4], 6, settings.temperature)
        assert torch.equal(found[0], alone[0])
        assert torch.equal(found[1], alone[1])
    assert like[0].shape == by_words[0].shape == (4, 0)


def test_points_come_and_labels_go_with_what_titles_say() -> None:
    keys = torch.eye(3)
    listed = csr_matrix(np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1]], bool))
    said = csr_matrix(np.array([[0, 0, 1], [0, 0, 0], [1, 0, 0]], bool))
    memory = Memory.of(keys, listed, 10, said=said)
    more = memory.with_points(torch.eye(3)[:1], torch.tensor([0, 1]), torch.tensor([1]))
    assert more.said is not None
    assert more.said.offsets.tolist() == [0, 1, 1, 2, 2]
    fewer = more.renumbered(torch.tensor([0, -1, 1]))  # the second label goes, and points that had no other
    assert fewer.said is not None
    assert fewer.labels.tolist() == [0, 1]
    assert (fewer.said.offsets.tolist(), fewer.said.labels.tolist()) == ([0, 1, 2], [1, 0])
    fewer = memory.renumbered(torch.tensor([-1, 0, -1]))
    assert (fewer.labels.tolist(), len(fewer)) == ([0], 1)
    only_said = memory.renumbered(torch.tensor([-1, -1, 0]))  # the first point has nothing but its title
    assert (only_said.offsets.tolist(), only_said.labels.tolist()) == ([0, 0, 1], [0])


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


def test_candidates_are_unique_and_eligible() -> None:
    voted, votes = torch.tensor([[2, 3, 5, 7, -1]]), torch.tensor([[0.3, 0.1, 0.2, 0.5, 0.0]])
    assert eligible_votes(voted, votes, 3, None, None)[0].tolist() == [[7, 2, 5]]  # the most first
    allowed = torch.ones(9, dtype=torch.bool)
    allowed[[3, 5]] = False
    hidden = csr_matrix(([True], ([0], [2])), shape=(1, 9))
    shown, weights = eligible_votes(voted, votes, 3, hidden, allowed)
    assert shown.tolist() == [[7, -1, -1]]
    further = torch.tensor([[8, 7, -1]]), torch.tensor([[0.5, 0.25, 0.0]])
    labels, (memory, words) = merge(torch.tensor([[4, 7]]), (shown, weights), further)
    assert labels.tolist() == [[4, 7, 8]]
    assert memory.tolist() == [[0.0, 0.5, 0.0]]
    assert words.tolist() == [[0.0, 0.25, 0.5]]
    assert marked(torch.tensor([[2, 3, -1]]), hidden).tolist() == [[True, False, False]]


def test_candidates_do_not_depend_on_who_is_asked_together(
    remembering: Mufin, shop: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    bags = remembering._bags(shop.items)
    labels, parts = remembering.candidates(bags)
    monkeypatch.setattr("mufin.model.CHUNK", 1)
    alone, alone_parts = remembering.candidates(bags)
    for row in range(len(bags)):
        together = labels[row][labels[row] >= 0].tolist()
        assert sorted(together) == sorted(alone[row][alone[row] >= 0].tolist())
    score, score_alone = (remembering.fusion.score(p).topk(3, dim=1).values for p in (parts, alone_parts))
    assert torch.allclose(score, score_alone, atol=1e-5)


@pytest.fixture(scope="module")
def remembering(shop: Catalogue, tiny_config: Config) -> Mufin:
    settings = ["memory.neighbours=5", "rank.beta=learnt", "run.validation=0.2", "text.words=true"]
    return fit(shop, tiny_config.override(settings), quiet=True)


def test_a_model_with_memory_saves_it(remembering: Mufin, shop: Catalogue, tmp_path) -> None:
    save(remembering, tmp_path / "m")
    again = load(tmp_path / "m")
    assert "by_word" in vars(again.memory)  # read, not made again
    for item in (shop.items[0], shop.items[30]):
        hits = remembering.recommend(item, k=7)
        assert again.recommend(item, k=7) == hits
        assert all(0 <= hit.probability <= 1 and 0 <= hit.memory <= 1 + 1e-6 for hit in hits)
        assert any(hit.memory > 0 for hit in hits)
        assert any(hit.words > 0 for hit in hits)
        assert any(hit.overlap > 0 for hit in hits)


def test_a_hits_score_is_the_mixture_of_its_parts(remembering: Mufin, shop: Catalogue) -> None:
    theta = remembering.fusion.weights.tolist()
    for hit in remembering.recommend(shop.items[7], k=7):
        row = int(remembering.labels.rows([hit.label])[0])
        rarity = 1 / (1 + math.log1p(max(1.0, float(remembering.labels.frequency[row]))))
        c, m, n = hit.classifier, math.log1p(hit.memory / 0.01), math.log1p(hit.words / 0.01)
        plain = [c, hit.similarity, m, hit.memory, n, hit.words, hit.overlap, float(hit.overlap > 0.9)]
        meant = [hit.meaning, hit.meaning * rarity]
        features = [*plain, *(value * rarity for value in plain), rarity, c * m, c * n, m * n, *meant]
        features += [0.0] * 4  # no title says a label here
        expected = sum(weight * value for weight, value in zip(theta, features, strict=True))
        assert hit.score == pytest.approx(expected, abs=1e-4)


def test_examples_vote_at_once(remembering: Mufin, tmp_path) -> None:
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
    assert model.labels.items.ids[int(model.memory.labels.max())].as_py() != "q-red"
    assert all(hit.label != "q-red" for hit in model.recommend(odd, k=7))


def test_examples_need_a_memory_and_known_labels(tiny_model: Mufin, remembering: Mufin) -> None:
    with pytest.raises(UsageError, match="no memory"):
        tiny_model.add_examples(Item("a", ["a"]), [["q-red"]])
    with pytest.raises(UsageError, match="no label 'q-pink'"):
        remembering.add_examples(Item("a", ["a"]), [["q-pink"]])
    with pytest.raises(UsageError, match="one list an item"):
        remembering.add_examples(Item("a", ["a"]), [["q-red"], ["q-red"]])
