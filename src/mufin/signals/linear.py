"""Linear: a sparse one-vs-rest classifier of each label over the words of an item."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from mufin.config import Config
from mufin.data.ragged import Ints
from mufin.encode.checkpoints import Layout
from mufin.encode.rows import SparseRows, products
from mufin.encode.words import WIDTH
from mufin.files.tensors import Tensors, sparse_tensors
from mufin.rank.one_vs_rest import Pairs, one_vs_rest
from mufin.retrieve.lists import Lists
from mufin.retrieve.postings import most_alike
from mufin.retrieve.shortlist import among, pair_keys
from mufin.settings import Memory as Settings
from mufin.signals.base import Candidates, Column, Known, Query, Signal, Training
from mufin.signals.memory import log_votes
from mufin.signals.words import Words

MIN_POINTS = 1000  # with texts; from fewer, it learns nothing
VOTERS = 10  # points with similar words, whose labels are a point's negatives
VOTED, RANDOM = 100, 10  # negatives per point, at most
UNTRAINED = -100.0  # bias of labels without training: σ is 0


@dataclass(frozen=True)
class Linear(Signal):
    """σ(⟨w_l, v⟩ + b_l), with v the TF-IDF vector of all texts; 0 for labels without training.

    Each label is a logistic regression over the remembered points that have it, those with similar words that
    do not, and random ones.
    """

    name = "linear"
    description = "score of the label's linear classifier of words"
    columns = (Column("log linear", pairs=True), Column("linear"))

    settings: Settings
    weights: SparseRows  # (L, 2¹⁸)
    bias: Tensor  # (L,)

    @classmethod
    def of(cls, config: Config, layout: Layout | None = None) -> Linear | None:
        if not (config.text.linear and config.text.words and config.memory.neighbours):
            return None
        return cls(config.memory, SparseRows.none(WIDTH), torch.zeros(0))

    def score(self, query: Query, candidates: Candidates) -> Tensor:
        rows = candidates.rows
        logit = products(query.reading(Words.name), self.weights, rows) + self.bias[rows.clamp(min=0)]
        probability = logit.sigmoid()
        return torch.stack([log_votes(probability), probability], dim=-1)

    def learn(self, training: Training) -> Linear:
        device, n_labels = training.points.bags.rows.device, len(training.labels)
        points = training.points.readings[Words.name].to(device)
        if int((points.offsets.diff() > 0).sum()) < MIN_POINTS:
            return self.to(device).with_labels(training.labels)
        lists = Lists.of(training.relevance).to(device)
        trained = torch.bincount(lists.labels, minlength=n_labels) > 0
        positive = pair_keys(training.relevance).to(device)
        negative = self._negatives(points, lists, n_labels)
        negative = negative[trained[negative % n_labels]]
        negative = negative[~among(pair_keys(training.exclude).to(device), negative)]
        weights, bias = one_vs_rest(points, Pairs.of(positive, negative, n_labels), n_labels)
        weights = replace(weights, values=weights.values.half().float())  # as stored
        return replace(self, weights=weights, bias=bias.masked_fill(~trained, UNTRAINED))

    def _negatives(self, points: SparseRows, lists: Lists, n_labels: int) -> Tensor:
        """Return keys point · L + label of the most voted labels and of random ones."""
        near, similarity = most_alike(points, points, VOTERS + 1)
        rows = torch.arange(len(near), device=near.device)[:, None]
        near = near.where(near != rows, -1)  # no point votes for its own labels
        similarity = similarity.masked_fill(near < 0, -torch.inf)
        labels, votes = lists.tally(near, similarity / self.settings.word_temperature)
        best = votes.topk(min(VOTED, votes.shape[1]), dim=1).indices
        voted = labels.gather(1, best)
        generator = torch.Generator().manual_seed(0)
        others = torch.randint(n_labels, (len(near), RANDOM), generator=generator).to(near.device)
        negative = torch.cat([voted, others], dim=1)
        return (rows * n_labels + negative)[negative >= 0]

    def with_labels(self, labels: Query) -> Linear:
        n = len(labels)
        none = SparseRows.none(WIDTH).spread(np.zeros(0, np.int64), n)
        bias = torch.cat([self.bias, self.bias.new_full((n,), UNTRAINED)])
        return replace(self, weights=self.weights.concat(none), bias=bias)

    def keep(self, labels: Ints, points: Ints) -> Linear:
        bias = self.bias[torch.from_numpy(labels).to(self.bias.device)]
        return replace(self, weights=self.weights.take(labels), bias=bias)

    def to(self, device: torch.device) -> Linear:
        return replace(self, weights=self.weights.to(device), bias=self.bias.to(device))

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in sparse_tensors("weights", self.weights.csr):
            yield name, tensor.half() if tensor.is_floating_point() else tensor
        yield "bias", self.bias

    def restored(self, tensors: Tensors, known: Known) -> Linear:
        shape = len(known.labels.alive), WIDTH
        weights = SparseRows.of(tensors.get_sparse("weights", shape))
        return replace(self, weights=weights, bias=tensors.get_floats("bias", shape[0]).float())
