"""Every formula of the method against an oracle written with loops in NumPy."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

from mufin import Config, Item
from mufin.data.relation import Relation
from mufin.encode.attention import Attention, CrossAttention, SelfAttention
from mufin.encode.bag import Bag, PackedBags
from mufin.encode.embedder import Embedder
from mufin.encode.features import Groups
from mufin.rank.ranker import Classifiers, Ranker
from mufin.retrieve.entries import Entries, centroids
from mufin.retrieve.exact import ExactIndex
from mufin.train.loop import one_cycle
from mufin.train.losses import cosine_loss, decoupled_softmax, hardest, margin_loss
from mufin.train.row_adam import RowAdam
from mufin.train.sampling import hard_pairs

rng = np.random.default_rng(7)
BETA = 0.7  # of the tiny model's settings, as in the paper


def unit(v: np.ndarray) -> np.ndarray:
    return v / np.linalg.norm(v)


def random_bag(lengths: list[int], dim: int, width: int | None = None) -> Bag:
    """Bags of these lengths; padding is filled with noise, so that a leak shows."""
    width = width or max(lengths)
    values = torch.randn(len(lengths), width, dim)
    mask = torch.arange(width) < torch.tensor(lengths)[:, None]
    return Bag(values, mask)


# -- architecture --------------------------------------------------------------------------------------------


def attention_oracle(block: Attention, x: np.ndarray, z: np.ndarray) -> np.ndarray:
    """LayerNorm(x + O softmax(Q x (K z)ᵀ / √d) V z) by loops over heads and rows; x (m, D), z (n, D)."""
    layers = {"q": block.query, "k": block.key, "v": block.value, "o": block.output}
    get = {name: [p.detach().numpy() for p in layer.parameters()] for name, layer in layers.items()}
    dim, width = x.shape[1], x.shape[1] // block.heads
    out = np.zeros_like(x)
    for i in range(len(x)):
        mixed = np.zeros(dim)
        for head in range(block.heads):
            part = slice(head * width, (head + 1) * width)
            query = (get["q"][0] @ x[i] + get["q"][1])[part]
            logits = [query @ (get["k"][0] @ row + get["k"][1])[part] / math.sqrt(width) for row in z]
            weights = np.exp(np.array(logits) - max(logits))
            weights /= weights.sum()
            for weight, row in zip(weights, z, strict=True):
                mixed[part] += weight * (get["v"][0] @ row + get["v"][1])[part]
        total = x[i] + get["o"][0] @ mixed + get["o"][1]
        normed = (total - total.mean()) / math.sqrt(total.var() + block.norm.eps)
        out[i] = normed * block.norm.weight.detach().numpy() + block.norm.bias.detach().numpy()
    return out


@pytest.mark.parametrize("heads", [1, 2])
def test_attention_block(heads: int) -> None:
    block = Attention(8, heads).eval()
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter)
    x, z = random_bag([3, 1], 8), random_bag([2, 4], 8)
    result = block(x, z)
    for i, (m, n) in enumerate([(3, 2), (1, 4)]):
        expected = attention_oracle(block, x.values[i, :m].numpy(), z.values[i, :n].numpy())
        np.testing.assert_allclose(result.values[i, :m].detach().numpy(), expected, atol=1e-5)


def test_attention_starts_as_identity() -> None:
    block = Attention(6)
    for layer in (block.query, block.key, block.value, block.output):
        assert torch.equal(layer.weight, torch.eye(6))
        assert not layer.bias.any()


@pytest.mark.parametrize("make", [SelfAttention, CrossAttention])
def test_padding_never_matters(make: type) -> None:
    block = make(8, blocks=2).eval()
    x = random_bag([3], 8)
    wide = Bag(torch.cat([x.values, torch.full((1, 4, 8), 1e3)], 1), torch.tensor([[True] * 3 + [False] * 4]))
    arguments = ((x,), (wide,)) if make is SelfAttention else ((x, x), (wide, wide))
    narrow, padded = (block(*args) for args in arguments)
    assert torch.allclose(narrow.values, padded.values[:, :3], atol=1e-6)
    assert torch.allclose(narrow.vector(), padded.vector(), atol=1e-6)


def test_attention_to_an_empty_bag_is_finite() -> None:
    block = Attention(4).eval()
    x = random_bag([2], 4)
    x.values.requires_grad_()
    nothing = Bag(torch.zeros(1, 1, 4), torch.zeros(1, 1, dtype=torch.bool))
    out = block(x, nothing).values
    out.sum().backward()
    assert torch.isfinite(out).all()
    assert torch.isfinite(x.values.grad).all()


def test_self_and_cross_attention_share_no_parameters(tiny_config: Config) -> None:
    embedder, ranker = Embedder(tiny_config), Ranker(tiny_config)
    assert {id(p) for p in embedder.parameters()}.isdisjoint(id(p) for p in ranker.parameters())


def test_vector_is_the_normalised_sum() -> None:
    bag = random_bag([3, 1], 5)
    for i, m in enumerate([3, 1]):
        total = np.zeros(5)
        for row in bag.values[i, :m].numpy():
            total += row
        np.testing.assert_allclose(bag.vector()[i].numpy(), unit(total), atol=1e-6)


def test_projection_is_adaptive_max_pooling(tiny_config: Config) -> None:
    embedder = Embedder(tiny_config.override(["embed.projection=maxpool", "embed.dim=7"]))
    row = torch.randn(1, 24)
    expected = [max(row[0, math.floor(i * 24 / 7) : math.ceil((i + 1) * 24 / 7)].tolist()) for i in range(7)]
    np.testing.assert_allclose(embedder.text_projection(row)[0].numpy(), expected, atol=1e-6)


def test_text_pooling_is_the_mean_over_tokens(tiny_config: Config) -> None:
    encoder = Embedder(tiny_config).text.eval()
    hidden, lengths = torch.randn(2, 4, 24), torch.tensor([4, 2])
    for i, n in enumerate([4, 2]):
        expected = sum(hidden[i, t] for t in range(n)) / n
        assert torch.allclose(encoder._pool(hidden, lengths)[i], expected, atol=1e-6)


def test_classifier_weights() -> None:
    classifiers = Classifiers(3, 4)
    assert torch.allclose(classifiers.alpha(3), torch.full((3,), 0.5))
    torch.nn.init.normal_(classifiers.logit)
    z = torch.nn.functional.normalize(torch.randn(3, 4), dim=1)
    w = classifiers.weight(torch.arange(3), z).detach().numpy()
    for l in range(3):
        alpha = 1 / (1 + math.exp(-classifiers.logit[l].item()))
        free = unit(classifiers.free[l].detach().numpy())
        np.testing.assert_allclose(w[l], unit(alpha * z[l].numpy() + (1 - alpha) * free), atol=1e-6)


def test_weight_is_the_label_vector_when_alpha_is_one() -> None:
    z = torch.nn.functional.normalize(torch.randn(3, 4), dim=1)
    assert torch.equal(Classifiers(3, 4, learnt=False).weight(torch.arange(3), z), z)
    learnt = Classifiers(3, 4)
    torch.nn.init.constant_(learnt.logit, 40.0)
    assert torch.allclose(learnt.weight(torch.arange(3), z), z, atol=1e-6)


def test_adapted_vector_and_classifier_score(tiny_config: Config) -> None:
    ranker = Ranker(tiny_config).eval()
    for parameter in ranker.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    dim = tiny_config.embed.dim
    x, z = random_bag([2, 3], dim), random_bag([1, 2, 3, 1], dim)
    labels = Bag(z.values.view(2, 2, 3, dim), z.mask.view(2, 2, 3))
    w = torch.randn(2, 2, dim)
    score = ranker(x, labels, w).detach().numpy()
    block = ranker.cross_attention.blocks[0]
    for i, m in enumerate([2, 3]):
        for j in range(2):
            n = [1, 2, 3, 1][2 * i + j]
            adapted = attention_oracle(block, x.values[i, :m].numpy(), labels.values[i, j, :n].numpy())
            expected = unit(adapted.sum(0)) @ w[i, j].numpy()
            assert score[i, j] == pytest.approx(expected, abs=1e-5)


def test_without_cross_attention_nothing_is_adapted(tiny_config: Config) -> None:
    ranker = Ranker(tiny_config.override(["rank.cross=none"]))
    x, w = random_bag([2], 16), torch.randn(1, 3, 16)
    empty = Bag(torch.zeros(1, 3, 1, 1), torch.zeros(1, 3, 1, dtype=torch.bool))
    assert torch.allclose(ranker(x, empty, w)[0], w[0] @ x.vector()[0], atol=1e-6)


# -- Module I ------------------------------------------------------------------------------------------------


def test_margin_loss() -> None:
    s = rng.uniform(-1, 1, (4, 6)).astype(np.float32)
    positive = rng.random((4, 6)) < 0.3
    negative = (rng.random((4, 6)) < 0.5) & ~positive
    total, triples = 0.0, 0
    for l in range(4):
        for i in np.flatnonzero(positive[l]):
            for j in np.flatnonzero(negative[l]):
                total += max(0.0, s[l, j] - s[l, i] + 0.2)
                triples += 1
    loss = margin_loss(torch.tensor(s), torch.tensor(positive), torch.tensor(negative), 0.2)
    assert float(loss) == pytest.approx(total / triples, abs=1e-6)


def test_hard_negatives_are_the_most_similar_unrelated() -> None:
    s, unrelated = rng.uniform(-1, 1, (5, 9)).astype(np.float32), rng.random((5, 9)) < 0.5
    chosen = hardest(torch.tensor(s), torch.tensor(unrelated), 3).numpy()
    for l in range(5):
        expected = sorted(np.flatnonzero(unrelated[l]), key=lambda j: -s[l, j])[:3]
        assert set(np.flatnonzero(chosen[l])) == set(expected)


def test_hard_positives_are_relevant_and_not_too_similar() -> None:
    relation = csr_matrix(rng.random((6, 20)) < 0.4)
    z = torch.nn.functional.normalize(torch.randn(6, 3), dim=1)
    x = torch.nn.functional.normalize(torch.randn(20, 3), dim=1)
    labels = torch.tensor([4, 1, 3])
    hard = hard_pairs(Relation.of(relation), z, x, 0.5)
    qualifying = {
        l: {i for i in range(20) if relation[labels[l], i] and float(z[labels[l]] @ x[i]) <= 0.5}
        for l in range(3)
    }
    seen: dict[int, set[int]] = {l: set() for l in range(3)}
    for _ in range(60):
        points = hard.draw_per_row(labels, 2, torch.Generator().manual_seed(_))
        for l in range(3):
            drawn = [point for point in points[l].tolist() if point >= 0]
            assert len(drawn) == len(set(drawn)) == min(2, len(qualifying[l]))
            seen[l] |= set(drawn)
    assert seen == qualifying  # all of them have a chance, nothing else has


# -- Module II -----------------------------------------------------------------------------------------------


def test_augmented_retrieval() -> None:
    """R_i and a = max ⟨x̂, v⟩ over Ẑ_l ∪ {μ_l}, all unit vectors."""
    sizes = [2, 1, 0, 3]
    rows = rng.normal(size=(6, 4)).astype(np.float32)
    points = np.stack([unit(v) for v in rng.normal(size=(7, 4))]).astype(np.float32)
    relevance = csr_matrix(np.array([[1, 0, 1, 0]] * 3 + [[0, 1, 0, 0]] * 4, bool))
    means, has = centroids(torch.tensor(points), relevance)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    index = ExactIndex(
        Entries.build(torch.tensor(rows), torch.tensor(offsets), means, has, ["bag", "centroid"])
    )
    queries = np.stack([unit(v) for v in rng.normal(size=(5, 4))]).astype(np.float32)
    found = index.search(torch.tensor(queries), 4)
    for q in range(5):
        expected = {}
        for l in range(4):
            own = [unit(rows[r]) for r in range(offsets[l], offsets[l + 1])]
            mine = [points[i] for i in range(7) if relevance[i, l]]
            if mine:
                own.append(unit(sum(mine) / len(mine)))
            expected[l] = max(queries[q] @ v for v in own)
        order = sorted(expected, key=lambda l: -expected[l])
        assert found.labels[q].tolist() == order
        np.testing.assert_allclose(found.similarity[q].numpy(), [expected[l] for l in order], atol=1e-5)


# -- Module IV -----------------------------------------------------------------------------------------------


def test_cosine_loss() -> None:
    c = rng.uniform(-1, 1, (3, 5)).astype(np.float32)
    positive = np.zeros((3, 5), bool)
    positive[:, :2] = True
    negative = ~positive
    negative[1, 4] = False  # a point with fewer negatives
    total = 0.0
    for i in range(3):
        for k in range(5):
            if positive[i, k]:
                total += 1 - c[i, k]
            elif negative[i, k]:
                total += max(0.0, c[i, k] - 0.5)
    loss = cosine_loss(torch.tensor(c), torch.tensor(positive), torch.tensor(negative), 0.5)
    assert float(loss) == pytest.approx(total / 3, abs=1e-6)


def test_decoupled_softmax() -> None:
    s = rng.normal(size=(4, 6)).astype(np.float32)
    positive = rng.random((4, 6)) < 0.4
    positive[0] = False  # a row without positives counts for nothing
    ignored = (rng.random((4, 6)) < 0.2) & ~positive
    rows = []
    for i in range(4):
        against = [math.exp(s[i, n]) for n in range(6) if not positive[i, n] and not ignored[i, n]]
        losses = [
            -math.log(math.exp(s[i, p]) / (math.exp(s[i, p]) + sum(against)))
            for p in np.flatnonzero(positive[i])
        ]
        if losses:
            rows.append(sum(losses) / len(losses))
    loss = decoupled_softmax(torch.tensor(s), torch.tensor(positive), torch.tensor(ignored))
    assert float(loss) == pytest.approx(sum(rows) / len(rows), abs=1e-5)


def test_softmax_without_negatives_has_no_gradient() -> None:
    s = torch.zeros(2, 3, requires_grad=True)
    decoupled_softmax(s, torch.tensor([[True] * 3, [True, False, False]])).backward()
    assert torch.isfinite(s.grad).all()
    assert not s.grad[0].any()


def test_rows_not_in_the_batch_neither_move_nor_decay() -> None:
    classifiers = Classifiers(5, 4)
    optimizer = RowAdam(classifiers.sparse_parameters(), lr=0.1)
    z = torch.nn.functional.normalize(torch.randn(5, 4), dim=1)
    for labels in ([0, 1], [1, 2]):
        before = classifiers.free.detach().clone(), classifiers.logit.detach().clone()
        optimizer.zero_grad()
        chosen = torch.tensor(labels)
        (classifiers.weight(chosen, z[chosen]) @ torch.randn(4)).sum().backward()
        optimizer.step()
        for old, new in zip(before, (classifiers.free, classifiers.logit), strict=True):
            moved = (old != new).any(dim=1).nonzero()[:, 0].tolist()
            assert moved == labels


def test_rows_are_updated_as_by_sparse_adam() -> None:
    ours, theirs = (torch.nn.Parameter(torch.ones(9, 3)) for _ in range(2))
    optimizers = RowAdam([ours], lr=0.1), torch.optim.SparseAdam([theirs], lr=0.1)
    for _ in range(20):
        rows, target = torch.randperm(9)[:4].sort().values, torch.randn(4, 3)
        for weight, optimizer in zip((ours, theirs), optimizers, strict=True):
            optimizer.zero_grad()
            (torch.nn.functional.embedding(rows, weight, sparse=True) - target).square().sum().backward()
            optimizer.step()
        torch.testing.assert_close(ours, theirs)


def test_one_cycle_cosine_with_warm_up() -> None:
    def curve(steps: int, warmup: int) -> list[float]:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
        schedule, seen = one_cycle(optimizer, steps, warmup), []
        for _ in range(steps + 1):
            seen.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
        return seen

    factor = curve(steps=100, warmup=10)
    assert all(a < b for a, b in pairwise(factor[:11]))
    assert factor[10] == 1
    for t, value in enumerate(factor[10:]):
        assert value == pytest.approx(0.5 * (1 + math.cos(math.pi * t / 90)), abs=1e-12)
    assert curve(10, 1000)[2] == 1  # a warm-up never takes more than a fifth
    assert curve(10, 0)[0] == 1


# -- prediction ----------------------------------------------------------------------------------------------


def test_score_is_the_mixture_of_classifier_and_similarity(tiny_model, shop) -> None:
    hits = tiny_model.recommend(shop.items[0], k=7)
    for hit in hits:
        assert hit.score == pytest.approx(BETA * hit.classifier + (1 - BETA) * hit.similarity)
    assert [h.score for h in hits] == sorted((h.score for h in hits), reverse=True)


def test_prediction_against_loops(tiny_model, shop) -> None:
    """Similarity, classifier and score of every label, from the model's stored bags and weights."""
    item, labels = shop.items[3], tiny_model.labels
    bag = tiny_model.embed(item)
    x = bag.vector()[0].numpy()
    block = tiny_model.ranker.cross_attention.blocks[0]
    for hit in tiny_model.recommend(item, k=7):
        l = int(labels.items.rows([hit.label])[0])
        rows = labels.bags.rows[labels.bags.offsets[l] : labels.bags.offsets[l + 1]].numpy()
        own = [unit(row) for row in rows] + [labels.centroids[l].numpy()]
        assert hit.similarity == pytest.approx(max(x @ v for v in own), abs=1e-5)
        adapted = attention_oracle(block, bag.values[0, bag.mask[0]].numpy(), rows)
        assert hit.classifier == pytest.approx(unit(adapted.sum(0)) @ labels.weights[l].numpy(), abs=1e-5)


def test_fill_in_the_blank_scores_candidates_without_training(tiny_model, shop) -> None:
    """The query is the union of its items' descriptors; each candidate is scored with w = ẑ."""
    features = tiny_model.features(shop.items)
    query = tiny_model.embedder.embed(features, Groups(np.array([0, 2]), np.array([0, 5])))
    candidates = tiny_model.embedder.embed(features, Groups.singles(np.array([7, 9])))
    union = Item(
        "u", [*shop.items[0].texts, *shop.items[5].texts], [*shop.items[0].images, *shop.items[5].images]
    )
    x = tiny_model.embed(union)
    assert torch.allclose(query.rows, x.values[0, x.mask[0]], atol=1e-5)
    scores = tiny_model.score(query, candidates)[0]
    block = tiny_model.ranker.cross_attention.blocks[0]
    for c in range(2):
        rows = candidates.rows[candidates.offsets[c] : candidates.offsets[c + 1]].numpy()
        similarity = max(x.vector()[0].numpy() @ unit(row) for row in rows)
        adapted = attention_oracle(block, x.values[0, x.mask[0]].numpy(), rows)
        classifier = unit(adapted.sum(0)) @ unit(rows.sum(0))
        expected = BETA * classifier + (1 - BETA) * similarity
        assert float(scores[c]) == pytest.approx(expected, abs=1e-5)


def test_packed_bags_are_the_padded_ones() -> None:
    bag = random_bag([2, 0, 3], 4)
    packed = PackedBags.pack([bag], 4)
    again = packed.take(torch.tensor([0, 1, 2, -1]))
    assert again.mask.sum(1).tolist() == [2, 0, 3, 0]
    assert torch.equal(again.values[:3][bag.mask], bag.values[bag.mask])
    assert torch.allclose(packed.vectors(), bag.vector())
    picked = packed.select(torch.tensor([2, 0]))
    assert torch.equal(picked.rows, torch.cat([bag.values[2, :3], bag.values[0, :2]]))
