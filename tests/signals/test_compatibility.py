"""Compatibility: the formula, a world where what goes together differs, how it is learnt and kept."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

from mufin import Catalogue, Config, Item, Mufin, fit, load, save
from mufin.data.split import Questions
from mufin.encode.features import Groups
from mufin.errors import UsageError
from mufin.evaluate.score import answer
from mufin.model.untrained import parts, scores
from mufin.signals.compatibility import (
    KERNEL_WIDTH,
    RATIO_FLOOR,
    START_WEIGHTS,
    Compatibility,
    Pairs,
    Side,
    View,
)

rng = np.random.default_rng(5)


def gaussian(*shape: int) -> torch.Tensor:
    return torch.from_numpy(rng.normal(size=shape).astype(np.float32))


def fitted(evidence: torch.Tensor, pairs: list[tuple[int, int]], widths: list[int]) -> View:
    """Points and labels are the same items."""
    side = Side.principal(
        evidence, [slice(sum(widths[:i]), sum(widths[: i + 1])) for i in range(len(widths))]
    )
    x = side(evidence)
    rows, columns = zip(*pairs, strict=True)
    relevance = csr_matrix((np.ones(len(pairs), bool), (rows, columns)), shape=(len(x), len(x)))
    return View.fit(side, side, x, x, relevance)


def plain(correlation: torch.Tensor) -> View:
    """Evidence as coordinates, one remembered pair: whatever is near it is as near to chance."""
    k = len(correlation)
    side, pair = Side(torch.zeros(k), torch.eye(k), torch.zeros(k)), torch.zeros(1, k)
    return View(side, side, correlation, Pairs(pair, pair, torch.ones(1)))


def test_the_formula_against_densities() -> None:
    """f = log p(x, z) − log p(x) − log p(z), coordinate by coordinate."""
    r = torch.tensor([0.9, 0.5, 0.0])
    x, z = gaussian(4, 3), gaussian(5, 3)
    found = plain(r).score(x, z) - math.log(1 + RATIO_FLOOR)
    normal = torch.distributions.MultivariateNormal
    for i in range(4):
        for j in range(5):
            expected = 0.0
            for k in range(3):
                both = torch.tensor([[1.0, float(r[k])], [float(r[k]), 1.0]])
                pair = torch.stack([x[i, k], z[j, k]])
                expected += float(normal(torch.zeros(2), both).log_prob(pair))
                expected += float((pair.square() / 2).sum()) + math.log(2 * math.pi)
            assert float(found[i, j]) == pytest.approx(expected, abs=1e-4)


def test_remembered_pairs_against_a_loop() -> None:
    x, z = gaussian(3, 2), gaussian(4, 2)
    points, labels, weight = gaussian(6, 2), gaussian(6, 2), torch.rand(6) + 0.1
    weights = csr_matrix((weight.numpy(), (np.arange(6), np.arange(6))), shape=(6, 6))
    found = Pairs.of(points, labels, weights).score(x, z)
    share = weight / weight.sum()
    for i in range(3):
        for j in range(4):
            of_x = [math.exp(-float((x[i] - p).square().sum()) / KERNEL_WIDTH) for p in points]
            of_z = [math.exp(-float((z[j] - p).square().sum()) / KERNEL_WIDTH) for p in labels]
            both = sum(float(w) * a * b for w, a, b in zip(share, of_x, of_z, strict=True))
            apart = sum(float(w) * a for w, a in zip(share, of_x, strict=True))
            apart *= sum(float(w) * b for w, b in zip(share, of_z, strict=True))
            assert float(found[i, j]) == pytest.approx(math.log(both / apart + RATIO_FLOOR), abs=1e-3)


def complements(n: int) -> tuple[torch.Tensor, np.ndarray, np.ndarray]:
    """Things of one of 4 kinds and a colour: what goes together has the colour and another kind."""
    kind, colour = rng.integers(4, size=n), rng.normal(size=(n, 3))
    seen = np.concatenate([np.eye(4)[kind], colour], axis=1) @ rng.normal(size=(7, 12))
    return torch.from_numpy(seen.astype(np.float32)), kind, colour


def test_what_goes_together_need_not_be_alike() -> None:
    evidence, kind, colour = complements(600)
    distance = np.square(colour[:, None] - colour[None]).sum(-1)
    distance[kind[:, None] == kind[None]] = np.inf
    partner = distance.argsort(1)[:, :5]
    known = np.arange(300)
    pairs = [(i, j) for i in known for j in partner[i] if j < 300]
    compatibility = fitted(evidence, pairs, [8, 4])
    unseen = np.arange(300, 600)
    score = compatibility.score(evidence[unseen], evidence[unseen]).numpy()
    best = distance[np.ix_(unseen, unseen)].argmin(1)
    # the right thing among 300 that no pair named: as a rule in the best tenth
    rank = (score > score[np.arange(300), best][:, None]).sum(1)
    assert np.median(rank) < 30
    alike = torch.nn.functional.normalize(evidence[unseen] - evidence.mean(0), dim=-1)
    alone = (alike @ alike.T).fill_diagonal_(-1).numpy()
    assert np.median((alone > alone[np.arange(300), best][:, None]).sum(1)) > np.median(rank)


def test_nothing_known_is_nothing_said() -> None:
    """A missing kind of descriptor counts as its mean; a label of which nothing is known scores as that."""
    evidence, _, _ = complements(200)
    some = evidence.clone()
    some[:50, 8:] = torch.nan
    compatibility = fitted(some, [(i, (i + 1) % 200) for i in range(200)], [8, 4])
    assert bool(torch.isfinite(compatibility.score(some, some)).all())
    filled = some.clone()
    filled[:50, 8:] = some[50:, 8:].mean(0)
    torch.testing.assert_close(
        compatibility.score(some, some), compatibility.score(filled, filled), atol=1e-4, rtol=1e-4
    )
    nothing = torch.full((200, 4), torch.nan)
    texts = fitted(torch.cat([evidence[:, :8], nothing], 1), [(i, 0) for i in range(200)], [8, 4])
    assert bool(torch.isfinite(texts.score(evidence, evidence)).all())


def test_a_scale_or_a_shift_of_the_evidence_changes_little() -> None:
    evidence, _, _ = complements(200)
    pairs = [(i, (i + 1) % 200) for i in range(200)]
    one = fitted(evidence, pairs, [12]).score(evidence, evidence)
    other = evidence * 100 + 7
    torch.testing.assert_close(fitted(other, pairs, [12]).score(other, other), one, atol=1e-2, rtol=1e-2)


def test_few_pairs_say_little() -> None:
    """Correlations of chance: with a dozen pairs they must not look like knowledge."""
    evidence = gaussian(400, 60)
    few = fitted(evidence, [(i, i + 20) for i in range(12)], [60])
    assert float(few.score(evidence, evidence).std()) < 2.0


def test_the_mixture_follows_what_decides_and_stays_where_nothing_does() -> None:
    compatibility = Compatibility((plain(torch.zeros(1)),), (), torch.tensor(START_WEIGHTS))
    known = gaussian(300, 10, 3) * torch.tensor([0.1, 0.1, 1.0])
    relevant = known[..., 0] == known[..., 0].amax(1, keepdim=True)  # the classifier knows it all
    learnt = compatibility.learnt(known, relevant, ~relevant).mixture
    best = (known @ learnt).argmax(1, keepdim=True)
    assert float(relevant.gather(1, best).float().mean()) > 0.9
    none = torch.zeros_like(relevant)
    assert compatibility.learnt(known, none, ~none).mixture.tolist() == list(START_WEIGHTS)


def test_sets_and_their_members_count_alike() -> None:
    """f is the mean of all views; a member's is averaged over its set."""
    one, other = plain(torch.tensor([0.9, 0.3])), plain(torch.tensor([0.5, 0.1]))
    points, items, labels = gaussian(2, 2), gaussian(4, 2), gaussian(5, 2)
    groups = np.array([3, 0, 1, 2, 3]), np.array([0, 2, 5])
    found = Compatibility((one,), (other,), torch.tensor(START_WEIGHTS)).score(points, items, *groups, labels)
    single, whole = other.score(items, labels), one.score(points, labels)
    for i, members in enumerate(([3, 0], [1, 2, 3])):
        torch.testing.assert_close(found[i], (whole[i] + single[members].mean(0)) / 2)
    alone = Compatibility((one,), (), torch.tensor(START_WEIGHTS)).score(points, items, *groups, labels)
    torch.testing.assert_close(alone, whole)


def test_columns_in_no_block_are_not_read() -> None:
    evidence = gaussian(50, 6)
    side = Side.principal(evidence, [slice(0, 2), slice(4, 6)])
    other = evidence.clone()
    other[:, 2:4] = 7
    torch.testing.assert_close(side(other), side(evidence))
    assert side.columns(slice(4, 6)).tolist() == [False, False, True, True]


def test_a_compatibility_is_read_as_it_was_kept() -> None:
    view = plain(torch.tensor([0.9, 0.3]))
    many = Compatibility((view, view), (view,), torch.tensor(START_WEIGHTS))
    again = Compatibility.of(dict(many.tensors()))
    assert (len(again.sets), len(again.members)) == (2, 1)
    x = gaussian(3, 2)
    torch.testing.assert_close(again.sets[0].score(x, x), view.score(x, x))
    with pytest.raises(UsageError):
        Compatibility.of({"mixture": torch.tensor(START_WEIGHTS)})


# -- in a model ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def outfits() -> Catalogue:
    colours, things = "abcdefghijkl", ("desk1", "lamp2", "sofa3", "bed4")
    items = [Item(f"{c}-{t}", [f"{c}{c}{c}", t]) for c in colours for t in things]
    sets = [[f"{c}-{t}" for t in things] for c in colours]
    return Catalogue.build(items, sets={"outfits": sets}).from_sets("outfits")


@pytest.fixture(scope="module")
def model(outfits: Catalogue, tiny_config: Config) -> Mufin:
    settings = ["rank.compatibility=true", "run.validation=0.3", "modalities=text", "pretrain.epochs=1"]
    return fit(outfits, tiny_config.override(settings), quiet=True)


def asked(model: Mufin, catalogue: Catalogue) -> torch.Tensor:
    features = model.features(catalogue.items)
    queries = Groups(np.array([0, 2, 5]), np.array([0, 1, 4, 5, 6]))
    return scores(model, features, queries, features, Groups.singles(np.arange(8)))


def test_fitted_with_the_model_and_kept_in_its_folder(
    model: Mufin, outfits: Catalogue, tmp_path: Path
) -> None:
    assert model.compatibility is not None
    assert model.compatibility.mixture.tolist() != list(START_WEIGHTS)  # some labels were held out
    found = asked(model, outfits)
    assert found.shape == (2, 8)
    save(model, tmp_path / "run")
    again = load(tmp_path / "run", device="cpu")
    torch.testing.assert_close(asked(again, outfits), found)
    again.compatibility = None
    save(again, tmp_path / "run")
    assert not list((tmp_path / "run").glob("compatibility*"))
    assert load(tmp_path / "run", device="cpu").compatibility is None


def test_scores_are_the_mixture_of_the_parts(model: Mufin, outfits: Catalogue) -> None:
    assert model.compatibility is not None
    features = model.features(outfits.items)
    queries, candidates = Groups.singles(np.arange(3)), Groups.singles(np.arange(4, 9))
    known = parts(model, features, queries, features, candidates)
    both = (model.embedder.embed(features, groups) for groups in (queries, candidates))
    c, a = model.ranker.untrained(*both)
    torch.testing.assert_close(known[..., 0], c)
    torch.testing.assert_close(known[..., 1], a)
    found = scores(model, features, queries, features, candidates)
    torch.testing.assert_close(found, (known * model.compatibility.mixture).sum(-1))
    for i in range(3):  # batch is single
        one = scores(model, features, queries.take(np.array([i])), features, candidates)
        torch.testing.assert_close(one[0], found[i], atol=1e-4, rtol=1e-4)


def test_without_it_the_papers_score_answers(tiny_model: Mufin, shop: Catalogue) -> None:
    assert tiny_model.compatibility is None
    questions = Questions([np.array([0, 1])], np.array([[2, 3, 4]]), np.array([0]))
    features = tiny_model.features(shop.items)
    embed = tiny_model.embedder.embed
    union = Groups(np.array([0, 2]), np.array([0, 1]))
    paper = tiny_model.score(embed(features, union), embed(features, Groups.singles(np.array([2, 3, 4]))))
    assert answer(tiny_model, shop, questions).tolist() == [int(paper[0].argmax())]


def test_evidence_is_the_mean_of_what_the_encoders_say(tiny_model: Mufin, shop: Catalogue) -> None:
    embedder, features = tiny_model.embedder, tiny_model.features(shop.items)
    pair = Groups(np.array([0, 2]), np.array([0, 1]))
    batch = features.batch(pair)
    found = embedder.content(features, pair)[0]
    assert found.shape == (sum(embedder.widths),)
    if batch.text is not None:
        rows = embedder.text(batch.text.values, batch.text.lengths)
        torch.testing.assert_close(found[: embedder.widths[0]], rows.mean(0))
    bare = np.flatnonzero(np.diff(features.image.offsets) == 0)[:1].astype(np.int64)
    assert bool(embedder.content(features, Groups.singles(bare))[0, embedder.widths[0] :].isnan().all())
