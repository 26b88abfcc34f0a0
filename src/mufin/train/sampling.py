"""Which datapoints share a batch, and which positives and negatives it sees."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mufin.data.relation import Relation
from mufin.retrieve.shortlist import Shortlist

LEAF = 32  # points that stay together


def shuffled(numbers: Tensor, batch: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    """Random batches that go through all numbers once."""
    order = torch.randperm(len(numbers), generator=generator, device=numbers.device)
    batches: tuple[Tensor, ...] = numbers[order].split(batch)
    return batches


def clustered(numbers: Tensor, vectors: Tensor, batch: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    """Batches of whole neighbourhoods (NGAME): a point's hard negatives are the labels of those beside it.

    vectors (n, D) of the numbers (n,) are halved along a random pair's direction until at most 32 are left.
    """
    seed = torch.randint(2**62, (), generator=generator, device=numbers.device)
    rng = np.random.default_rng(int(seed))
    leaves = _halved(torch.arange(len(numbers)), vectors.cpu(), rng)
    order = torch.cat([leaves[i] for i in rng.permutation(len(leaves))])
    batches: tuple[Tensor, ...] = numbers[order.to(numbers.device)].split(batch)
    return batches


def _halved(rows: Tensor, vectors: Tensor, rng: np.random.Generator) -> list[Tensor]:
    if len(rows) <= LEAF:
        return [rows]
    a, b = (vectors[rows[i]] for i in rng.choice(len(rows), 2, replace=False))
    order = rows[(vectors[rows] @ (a - b)).argsort()]
    middle = len(order) // 2
    return _halved(order[:middle], vectors, rng) + _halved(order[middle:], vectors, rng)


PAIRS = 1 << 18  # judged at a time
POINTS = 1 << 16  # whose shortlists are looked through at a time


def hard_pairs(by_label: Relation, z: Tensor, x: Tensor, at_most: float) -> Relation:
    """The pairs with ⟨ẑ_l, x̂_i⟩ ≤ at_most, by embeddings z (L, D) and x (N, D)."""
    pairs = zip(by_label.rows.split(PAIRS), by_label.columns.split(PAIRS), strict=True)
    return by_label.only(torch.cat([(z[label] * x[point]).sum(1) <= at_most for label, point in pairs]))


class ShortlistNegatives:
    """T_i: at most n random labels of R_i that are neither relevant to i nor excluded."""

    def __init__(
        self, shortlist: Shortlist, relevance: Relation, exclude: Relation, guard: float | None = None
    ) -> None:
        """`guard`: a label at least so similar is no negative; most likely it is an unlabelled positive."""
        self.labels = shortlist.labels.to(relevance.device, torch.int32, copy=True)  # (N, k), −1 for none
        for rows in torch.arange(len(self.labels), device=relevance.device).split(POINTS):
            labels = self.labels[rows]
            related = relevance.holds(rows, labels) | exclude.holds(rows, labels)
            self.labels[rows] = labels.masked_fill(related, -1)
        if guard is not None:
            self.labels[(shortlist.similarity >= guard).to(self.labels.device)] = -1

    def draw(self, points: Tensor, n: int, generator: torch.Generator) -> Tensor:
        """(B, n) labels, or (B, k) if there are no more; −1 where there are fewer."""
        labels = self.labels[points]
        luck = torch.rand(labels.shape, generator=generator, device=labels.device)
        luck.masked_fill_(labels < 0, 2.0)
        first = luck.topk(min(n, labels.shape[1]), dim=1, largest=False).indices
        return labels.gather(1, first).long()


def shared_labels(n_labels: int, wanted: Tensor, sampled: int, generator: torch.Generator) -> Tensor:
    """The wanted labels and `sampled` more at random, sorted and unique; all if that many are asked for."""
    if sampled >= n_labels:
        return torch.arange(n_labels, device=wanted.device)
    more = torch.randint(n_labels, (sampled,), generator=generator, device=wanted.device)
    labels: Tensor = torch.cat([wanted[wanted >= 0], more]).unique()
    return labels
