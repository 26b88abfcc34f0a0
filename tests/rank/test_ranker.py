"""The ranker's variants against loops, and that padding and company change nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mufin import Config
from mufin.encode.bag import Bag
from mufin.rank.ranker import Classifiers, Concat, Ranker, combine

DIM = 16


def bags(*lengths: int, width: int = 4) -> Bag:
    mask = torch.arange(width) < torch.tensor(lengths)[:, None]
    return Bag(torch.randn(len(lengths), width, DIM), mask)


def ranker(tiny_config: Config, cross: str, blocks: int = 1) -> Ranker:
    torch.manual_seed(0)
    made = Ranker(tiny_config.override([f"rank.cross={cross}", f"rank.blocks={blocks}"])).eval()
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return made


@torch.no_grad()
def test_concat_against_loops() -> None:
    concat = Concat(DIM)
    x, z = torch.randn(2, 1, DIM), torch.randn(2, 3, DIM)
    result = concat(x, z).numpy()
    first, _, second = concat.layers
    for i in range(2):
        for j in range(3):
            row = np.concatenate([x[i, 0].numpy(), z[i, j].numpy()])
            inner = np.maximum(first.weight.numpy() @ row + first.bias.numpy(), 0)
            row = second.weight.numpy() @ inner + second.bias.numpy()
            np.testing.assert_allclose(result[i, j], row / np.linalg.norm(row), atol=1e-5)


@pytest.mark.parametrize(
    ("cross", "blocks"), [("attention", 1), ("attention", 2), ("concat", 1), ("none", 1)]
)
@torch.no_grad()
def test_padding_and_company_do_not_matter(cross: str, blocks: int, tiny_config: Config) -> None:
    rank = ranker(tiny_config, cross, blocks)
    x, labels = bags(3, 1), bags(2, 4, 1, 3, 3, 1)
    z = Bag(labels.values.view(2, 3, 4, DIM), labels.mask.view(2, 3, 4))
    w = torch.nn.functional.normalize(torch.randn(2, 3, DIM), dim=-1)
    together = rank(x, z, w)
    assert together.shape == (2, 3)
    assert (together.abs() <= 1.0001).all()
    for i in range(2):
        for j in range(3):
            m, n = int(x.mask[i].sum()), int(z.mask[i, j].sum())
            one = Bag(x.values[i : i + 1, :m], x.mask[i : i + 1, :m])
            other = Bag(z.values[i : i + 1, j : j + 1, :n], z.mask[i : i + 1, j : j + 1, :n])
            torch.testing.assert_close(
                rank(one, other, w[i : i + 1, j : j + 1])[0, 0], together[i, j], atol=1e-5, rtol=0
            )


@pytest.mark.parametrize("cross", ["attention", "concat", "none"])
def test_labels_and_points_with_nothing_are_finite(cross: str, tiny_config: Config) -> None:
    rank = ranker(tiny_config, cross).train()
    x, labels = bags(0, 2), bags(0, 1, 0, 0)
    x.values.requires_grad_()
    z = Bag(labels.values.view(2, 2, 4, DIM), labels.mask.view(2, 2, 4))
    score = rank(x, z, torch.randn(2, 2, DIM))
    score.sum().backward()
    assert torch.isfinite(score).all()
    # the bias of K moves all scores of a row alike: softmax does not see it, and no gradient reaches it
    seen = [p for name, p in rank.named_parameters() if not name.endswith("key.bias")]
    gradients = [x.values.grad, *(p.grad for p in seen)]
    assert all(torch.isfinite(g).all() for g in gradients)


def test_only_the_rows_that_were_read_get_gradients() -> None:
    classifiers = Classifiers(1000, DIM)
    chosen = torch.tensor([3, 998, 3])
    classifiers.weight(chosen, torch.randn(3, DIM)).sum().backward()
    for parameter in classifiers.sparse_parameters():
        assert parameter.grad.is_sparse
        assert parameter.grad.coalesce().indices().tolist() == [[3, 998]]


def test_a_label_without_a_bag_is_its_free_vector() -> None:
    free = torch.randn(1, DIM)
    w = combine(torch.tensor([[0.5]]), torch.zeros(1, DIM), free)
    torch.testing.assert_close(w, torch.nn.functional.normalize(free, dim=1))
    assert not combine(torch.ones(1, 1), torch.zeros(1, DIM), free).any()


def test_no_free_vectors_when_alpha_is_one() -> None:
    classifiers = Classifiers(10_000_000, DIM, learnt=False)
    assert sum(p.numel() for p in classifiers.parameters()) == 0
    assert classifiers.sparse_parameters() == []
    assert classifiers.alpha(3).tolist() == [1, 1, 1]
