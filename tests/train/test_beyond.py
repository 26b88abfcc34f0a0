"""What training can do beyond the paper: votes, gradient caching, clusters, guards, early fusion."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from mufin import Catalogue, Config, Item, fit
from mufin.data.relation import Relation
from mufin.encode.bag import Bag
from mufin.train.finetune import finetune
from mufin.train.loop import CachedBags, seeded
from mufin.train.losses import margin_loss
from mufin.train.pretrain import pretrain
from mufin.train.sampling import ShortlistNegatives, clustered, shuffled
from mufin.train.votes import VOTE_FLOOR, Votes


def state(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in module.named_parameters()}


def changed(before: dict[str, torch.Tensor], module: torch.nn.Module) -> bool:
    return any(not torch.equal(before[name], p) for name, p in module.named_parameters())


# -- votes --------------------------------------------------------------------------------------------------


def votes_of(it: Any) -> Votes:
    relevance, exclude = Relation.of(it.data.relevance), Relation.of(it.data.exclude)
    return Votes(relevance, exclude, it.config.memory, seeded(0))


def test_the_loss_of_votes_is_what_prediction_would_count(stage: Any) -> None:
    it = stage("memory.loss=1.0")
    votes = votes_of(it)
    votes.refresh(it.embedder, it.data)
    x = it.embedder.embed(it.data.points, it.data.groups).vectors()
    points = torch.tensor([3, 10, 11])
    found = float(votes.loss(points, x[points]))

    y, hidden = it.data.relevance.toarray() > 0, it.data.exclude.toarray() > 0
    wanted = []
    for i in points.tolist():
        may = [j for j in range(len(x)) if j != i and not (hidden[i] & y[j]).any()]
        weight = torch.softmax(x[may] @ x[i] / it.config.memory.temperature, 0).numpy()
        shares = [sum(w for w, j in zip(weight, may, strict=True) if y[j, l]) for l in np.flatnonzero(y[i])]
        wanted.append(np.mean([-np.log(share + VOTE_FLOOR) for share in shares]))
    assert found == pytest.approx(np.mean(wanted), rel=1e-4)


def test_who_hears_no_votes_spoils_nothing(tiny_config: Config) -> None:
    """Of one set each point must not see the labels of all others, and nobody votes for himself."""
    things = [Item(name, [name]) for name in ("coat", "scarf", "boots", "hat")]
    catalogue = Catalogue.build(things, sets={"outfits": [["coat", "scarf", "boots"]]}).from_sets("outfits")
    settings = ["memory.loss=0.5", "memory.neighbours=5", "finetune.epochs=2", "run.validation=0"]
    model = fit(catalogue, tiny_config.override(settings), quiet=True)
    assert all(torch.isfinite(weight).all() for weight in model.embedder.state_dict().values())


def test_training_the_votes_brings_like_points_together(stage: Any) -> None:
    it = stage("memory.loss=1.0", "finetune.epochs=15", "rank.cross=none", "finetune.loss=softmax")
    votes = votes_of(it)

    def now() -> float:
        votes.refresh(it.embedder, it.data)
        points = torch.arange(len(it.data.groups))
        return float(votes.loss(points, it.embedder.embed(it.data.points, it.data.groups).vectors()))

    before = now()
    finetune(it.networks, it.data, it.shortlist, it.config, it.context)
    assert now() < before


# -- which epochs train the encoders ------------------------------------------------------------------------


def test_encoders_wait_for_their_epochs(stage: Any) -> None:
    it = stage("text.train_layers=all", "finetune.epochs=4", "finetune.encoder_epochs=2", "finetune.warmup=0")
    before, seen = state(it.embedder.text), list[bool]()

    def look() -> float:
        seen.append(changed(before, it.embedder.text))
        return 0.0

    finetune(it.networks, it.data, it.shortlist, it.config, it.context, look)
    assert seen == [False, False, True, True]


def test_encoded_features_give_the_same_bags(stage: Any) -> None:
    for layers in ("all", "1", "0"):
        it = stage(f"text.train_layers={layers}", f"vision.train_layers={layers}")
        plain = it.embedder.embed(it.data.points, it.data.groups)
        ready = it.data.encoded(it.embedder)
        again = it.embedder.embed(ready.points, ready.groups)
        assert torch.equal(plain.offsets, again.offsets)
        torch.testing.assert_close(plain.rows, again.rows, rtol=1e-3, atol=1e-4)


def test_labels_may_leave_the_encoders_to_datapoints(stage: Any, losses: list[float]) -> None:
    it = stage("text.train_layers=all", "finetune.label_encoders=false", "finetune.loss=softmax")
    before = state(it.embedder.text)
    finetune(it.networks, it.data, it.shortlist, it.config, it.context)
    assert changed(before, it.embedder.text)
    assert losses[-1] < losses[0]


# -- gradient caching ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("bag", ["attended", "raw"])
@pytest.mark.parametrize("cross", ["attention", "none"])
def test_gradient_caching_changes_nothing(cross: str, bag: str, stage: Any) -> None:
    after = []
    for chunk in (0, 5):
        it = stage(
            f"finetune.chunk={chunk}", f"rank.cross={cross}", "finetune.loss=softmax", "finetune.epochs=2",
            "text.train_layers=all", "embed.dropout=0", "embed.input_dropout=0", f"embed.bag={bag}",
        )  # fmt: skip
        for module in it.embedder.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        finetune(it.networks, it.data, it.shortlist, it.config, it.context)
        after.append(it.networks)
    for one, other in zip(after[0].embedder.parameters(), after[1].embedder.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=2e-4)


def test_dropout_is_the_same_when_a_chunk_is_computed_again() -> None:
    layer, drop = torch.nn.Linear(4, 4), torch.nn.Dropout(0.5)
    rows = torch.randn(10, 4)
    seen: list[torch.Tensor] = []

    def embed(which: torch.Tensor) -> Bag:
        values = drop(layer(rows[which]))
        seen.append(values.detach().clone())
        return Bag(values[:, None], torch.ones(len(which), 1, dtype=torch.bool))

    cached = CachedBags(embed, torch.arange(10), chunk=4)
    cached.bag.values.square().sum().backward()
    cached.backward()
    assert len(seen) == 6
    for first, second in zip(seen[:3], seen[3:], strict=True):
        assert torch.equal(first, second)
    assert layer.weight.grad is not None
    assert layer.weight.grad.abs().sum() > 0


# -- batches, shortlists, negatives -------------------------------------------------------------------------


def test_clustered_batches_hold_each_point_once_and_neighbours_together() -> None:
    generator, numbers = seeded(0), torch.arange(7, 519)
    centres = torch.nn.functional.normalize(torch.randn(8, 16), dim=1)
    group = np.arange(512) % 8
    vectors = torch.nn.functional.normalize(centres[group] + 0.05 * torch.randn(512, 16), dim=1)
    batches = clustered(numbers, vectors, 64, generator)
    assert sorted(torch.cat(batches).tolist()) == list(range(7, 519))
    together = np.mean([len(set(group[batch - 7])) for batch in batches])
    apart = np.mean([len(set(group[batch - 7])) for batch in shuffled(numbers, 64, generator)])
    assert together < 0.6 * apart


def test_clusters_and_fresh_shortlists_train_too(stage: Any, losses: list[float]) -> None:
    it = stage(
        "finetune.batches=clustered", "finetune.refresh=2", "finetune.epochs=8", "finetune.loss=softmax"
    )
    finetune(it.networks, it.data, it.shortlist, it.config, it.context)
    assert np.mean(losses[-4:]) < np.mean(losses[:4])


def test_a_guard_takes_near_negatives_out(stage: Any) -> None:
    it = stage()
    found = it.shortlist
    relations = Relation.of(it.data.relevance), Relation.of(it.data.exclude)
    limit = float(found.similarity.median())
    free = ShortlistNegatives(found, *relations).labels >= 0
    guarded = ShortlistNegatives(found, *relations, guard=limit).labels >= 0
    near = found.similarity >= limit
    assert (free & near).any()
    assert torch.equal(guarded, free & ~near)


@pytest.mark.parametrize("loss", ["margin", "softmax"])
def test_a_guard_in_module_one(loss: str, stage: Any, losses: list[float]) -> None:
    it = stage(f"pretrain.loss={loss}", "pretrain.guard=-2.0")  # everything is too near to be a negative
    pretrain(it.embedder, it.data, it.config.pretrain, it.context)
    assert losses == pytest.approx([0.0] * len(losses), abs=1e-6)


def test_a_dynamic_margin_follows_earlier_similarities() -> None:
    now = torch.tensor([[0.5, 0.45, 0.45, 0.45]])
    before = torch.tensor([[0.9, 0.85, 0.7, 0.1]])  # apart by 0.05, 0.2, 0.8: margins 0.1, 0.2, 0.3
    positive, negative = (
        torch.tensor([[True, False, False, False]]),
        torch.tensor([[False, True, True, True]]),
    )
    loss = margin_loss(now, positive, negative, 0.0, before)
    assert float(loss) == pytest.approx((0.05 + 0.15 + 0.25) / 3, rel=1e-4)


def test_module_one_trains_with_a_dynamic_margin(stage: Any, losses: list[float]) -> None:
    it = stage("pretrain.margin=dynamic", "pretrain.loss=margin", "pretrain.epochs=30")
    pretrain(it.embedder, it.data, it.config.pretrain, it.context)
    assert np.mean(losses[-5:]) < np.mean(losses[:5])


# -- other shapes of the network ----------------------------------------------------------------------------


def test_early_fusion_lets_pictures_into_the_text_encoder(stage: Any, losses: list[float]) -> None:
    it = stage("embed.fusion=early", "text.train_layers=all", "finetune.loss=softmax", "embed.attention=none")
    projection = it.embedder.joint.tokens
    before = projection.weight.detach().clone()
    finetune(it.networks, it.data, it.shortlist, it.config, it.context)
    assert not torch.equal(before, projection.weight)
    assert losses[-1] < losses[0]
    batch = it.data.points.batch(it.data.groups.take(np.arange(6)))
    with torch.no_grad():
        with_pictures = it.embedder(batch).values
        projection.weight.zero_(), projection.bias.zero_()
        assert not torch.allclose(with_pictures, it.embedder(batch).values)


def test_module_one_ends_at_once_where_it_has_nothing_to_train(stage: Any, losses: list[float]) -> None:
    it = stage("embed.projection=maxpool", "embed.attention=none")
    pretrain(it.embedder, it.data, it.config.pretrain, it.context)
    assert not losses


def test_a_sum_makes_an_item_one_row(stage: Any) -> None:
    it = stage("embed.attention=sum")
    bags = it.embedder.embed(it.data.points, it.data.groups)
    assert len(bags.rows) == len(bags)


def test_classifiers_may_start_at_centroids(stage: Any) -> None:
    it = stage("rank.start=centroid")
    x = it.embedder.embed(it.data.points, it.data.groups).vectors()
    mean = torch.nn.functional.normalize(x[it.data.relevance.toarray()[:, 2] > 0].mean(0), dim=0)
    torch.testing.assert_close(it.networks.classifiers.free[2].detach(), mean, rtol=1e-4, atol=1e-5)
