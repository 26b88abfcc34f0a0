"""Which positives and negatives a batch sees."""

from __future__ import annotations

import torch
from torch import Tensor

from mufin.relation import Relation
from mufin.retrieve.shortlist import Shortlist

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
