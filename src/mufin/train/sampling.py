"""Sample batches of datapoints, and their positive and negative labels."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mufin.data.relation import Relation
from mufin.retrieve.shortlist import Shortlist

LEAF_SIZE = 32  # points that stay in one batch
PAIRS_PER_CHUNK = 1 << 18
POINTS_PER_CHUNK = 1 << 16


def shuffled(numbers: Tensor, batch: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    """Split all numbers into random batches."""
    order = torch.randperm(len(numbers), generator=generator, device=numbers.device)
    batches: tuple[Tensor, ...] = numbers[order].split(batch)
    return batches


def clustered(numbers: Tensor, vectors: Tensor, batch: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    """Split numbers into batches of neighbours (NGAME), whose labels are hard negatives for each other.

    The vectors (n, D) of the numbers (n,) are bisected along the direction of a random pair, down to at most
    32 per leaf.
    """
    seed = torch.randint(2**62, (), generator=generator, device=numbers.device)
    rng = np.random.default_rng(int(seed))
    leaves = _bisect(torch.arange(len(numbers)), vectors.cpu(), rng)
    order = torch.cat([leaves[i] for i in rng.permutation(len(leaves))])
    batches: tuple[Tensor, ...] = numbers[order.to(numbers.device)].split(batch)
    return batches


def _bisect(rows: Tensor, vectors: Tensor, rng: np.random.Generator) -> list[Tensor]:
    """Split rows recursively into leaves of similar vectors."""
    if len(rows) <= LEAF_SIZE:
        return [rows]
    a, b = (vectors[rows[i]] for i in rng.choice(len(rows), 2, replace=False))
    order = rows[(vectors[rows] @ (a - b)).argsort()]
    middle = len(order) // 2
    return _bisect(order[:middle], vectors, rng) + _bisect(order[middle:], vectors, rng)


def hard_pairs(by_label: Relation, z: Tensor, x: Tensor, at_most: float) -> Relation:
    """Select the pairs with ⟨ẑ_l, x̂_i⟩ ≤ at_most, given embeddings z (L, D) and x (N, D)."""
    pairs = zip(by_label.rows.split(PAIRS_PER_CHUNK), by_label.columns.split(PAIRS_PER_CHUNK), strict=True)
    return by_label.only(torch.cat([(z[label] * x[point]).sum(1) <= at_most for label, point in pairs]))


class ShortlistNegatives:
    """T_i: at most n random labels of R_i that are neither relevant to i nor excluded."""

    def __init__(
        self, shortlist: Shortlist, relevance: Relation, exclude: Relation, guard: float | None = None
    ) -> None:
        """Labels at least `guard` similar are not used: they are likely unlabelled positives."""
        self.labels = shortlist.labels.to(relevance.device, torch.int32, copy=True)  # (N, k), −1 for unusable
        for rows in torch.arange(len(self.labels), device=relevance.device).split(POINTS_PER_CHUNK):
            labels = self.labels[rows]
            related = relevance.holds(rows, labels) | exclude.holds(rows, labels)
            self.labels[rows] = labels.masked_fill(related, -1)
        if guard is not None:
            self.labels[(shortlist.similarity >= guard).to(self.labels.device)] = -1

    def draw(self, points: Tensor, n: int, generator: torch.Generator) -> Tensor:
        """Draw labels (B, min(n, k)), padded with −1."""
        labels = self.labels[points]
        priority = torch.rand(labels.shape, generator=generator, device=labels.device)
        priority.masked_fill_(labels < 0, 2.0)
        first = priority.topk(min(n, labels.shape[1]), dim=1, largest=False).indices
        return labels.gather(1, first).long()


def shared_labels(n_labels: int, wanted: Tensor, sampled: int, generator: torch.Generator) -> Tensor:
    """Return the wanted labels and `sampled` random ones, sorted and unique; all if `sampled` ≥ n_labels."""
    if sampled >= n_labels:
        return torch.arange(n_labels, device=wanted.device)
    random = torch.randint(n_labels, (sampled,), generator=generator, device=wanted.device)
    labels: Tensor = torch.cat([wanted[wanted >= 0], random]).unique()
    return labels
