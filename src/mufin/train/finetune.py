"""Module IV: embedder, cross-attention and classifiers trained over mini-batches of datapoints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mufin.bag import Bag
from mufin.config import Config
from mufin.encode.features import Groups
from mufin.progress import Progress
from mufin.ragged import Ints
from mufin.retrieve.shortlist import Shortlist
from mufin.train.batches import clustered, shuffled
from mufin.train.caching import CachedBags
from mufin.train.data import TrainingData, membership
from mufin.train.loop import (
    Context,
    Journal,
    Loop,
    autocast,
    embedder_groups,
    epochs_to_validate,
    first_trained,
)  # fmt: skip
from mufin.train.losses import Temperature, cosine_loss, decoupled_softmax
from mufin.train.networks import Networks
from mufin.train.retrieve import retrieve
from mufin.train.sampling import ShortlistNegatives, draw_per_row, shared_labels
from mufin.train.votes import Votes


def finetune(
    networks: Networks,
    data: TrainingData,
    shortlist: Shortlist,
    config: Config,
    context: Context,
    validate: Callable[[], float] | None = None,
) -> None:
    """Train everything on the task itself: which labels a datapoint has."""
    settings = config.finetune
    points = np.flatnonzero(np.diff(data.relevance.indptr)).astype(np.int64)
    each = context.epoch(len(points), settings.batch)
    steps = settings.epochs * each
    if not steps:
        return
    validated = set(epochs_to_validate(settings.epochs))
    networks.train()
    with context.progress.task("Module IV ", steps) as task:
        trainer = _Tuner(networks, data, shortlist, config, context.rng, steps)
        journal = Journal(task, "finetune", context.logs)
        for epoch in range(settings.epochs):
            trainer.refresh(epoch)
            for batch in islice(trainer.batches(points), each):
                journal.step(trainer.step(batch))
            if validate and epoch in validated:
                journal.validation(validate())
        journal.close()
    networks.eval()


class _Tuner:
    """One step of Module IV."""

    def __init__(
        self,
        networks: Networks,
        data: TrainingData,
        shortlist: Shortlist,
        config: Config,
        rng: np.random.Generator,
        steps: int,
    ) -> None:
        settings = config.finetune
        self.embedder, self.ranker = networks.embedder, networks.ranker
        self.classifiers, self.device = networks.classifiers, networks.device
        self.data = self.whole = data  # what the present epoch reads, and what it is made of
        self.config, self.settings, self.rng = config, settings, rng
        self.trained_from = first_trained(settings.epochs, settings.encoder_epochs)
        self.negatives = ShortlistNegatives(shortlist, data.relevance, data.exclude, settings.guard)
        self.votes = Votes(data, config.memory, rng) if config.memory.loss else None
        self.temperature = Temperature().to(self.device)
        groups: list[dict[str, Any]] = [{"params": list(self.ranker.parameters())}]
        groups += embedder_groups(self.embedder, settings.lr, settings.encoder_lr)
        if settings.loss == "softmax":
            groups.append({"params": list(self.temperature.parameters()), "weight_decay": 0.0})
        rows = {"params": self.classifiers.sparse_parameters(), "lr": settings.classifier_lr or settings.lr}
        self.loop = Loop(settings, steps, groups, [rows])

    def refresh(self, epoch: int) -> None:
        """What is renewed at the beginning of an epoch: outputs of frozen encoders, R_i, the voters."""
        with self.embedder.hurried():
            self._refresh(epoch)

    def _refresh(self, epoch: int) -> None:
        if epoch < self.trained_from:
            self.data = self.whole.encoded(self.embedder) if epoch == 0 else self.data
        elif self.settings.label_encoders:
            self.data = self.whole
        else:
            self.data = replace(self.whole, labels=self.embedder.encoded(self.whole.labels))
        if self.settings.refresh and epoch and epoch % self.settings.refresh == 0:
            found = retrieve(self.embedder, self.data, self.config.retrieve, Progress(quiet=True))
            self.negatives = ShortlistNegatives(
                found, self.data.relevance, self.data.exclude, self.settings.guard
            )
        if self.votes is not None:
            self.votes.refresh(self.embedder, self.data)

    def batches(self, points: Ints) -> list[Ints]:
        """All datapoints once."""
        if self.settings.batches == "random":
            return shuffled(points, self.settings.batch, self.rng)
        x = self.embedder.embed(self.data.points, self.data.groups.take(points)).vectors()
        return clustered(points, x, self.settings.batch, self.rng)

    def step(self, points: Ints) -> Tensor:
        positives = self._positives(points)  # (B, |S|)
        negatives = self.negatives.draw(points, self.settings.negatives, self.rng)  # (B, |T|)
        own = np.concatenate([positives, negatives], axis=1)  # (B, k), −1 where there are fewer
        labels = shared_labels(self.data.n_labels, own.ravel(), self.settings.sampled, self.rng)  # (U,)
        embeds = ((self._points, points), (self._labels, labels))
        cached: list[CachedBags] = []
        with autocast(self.device):
            if self.settings.chunk:
                cached = [CachedBags(embed, rows, self.settings.chunk) for embed, rows in embeds]
                x, z = (bags.bag for bags in cached)
            else:
                x, z = self._points(points), self._labels(labels)
            w = self.classifiers.weight(torch.from_numpy(labels).to(self.device), z.vector())  # (U, D)
            loss = self._loss(points, labels, own, x, z, w)
            if self.votes is not None:
                loss = loss + self.config.memory.loss * self.votes.loss(points, x.vector())
        self.loop.step(loss, cached)
        return loss

    def _points(self, points: Ints) -> Bag:
        bag: Bag = self.embedder(self.data.points.batch(self.data.groups.take(points)))
        return bag

    def _labels(self, labels: Ints) -> Bag:
        bag: Bag = self.embedder(self.data.labels.batch(Groups.singles(labels)))
        return bag

    def _positives(self, points: Ints) -> Ints:
        """S_i: at most |S_i| random positives, (B, |S|), −1 where there are fewer."""
        place, labels = draw_per_row(self.data.relevance, points, self.settings.positives, self.rng)
        drawn = np.full((len(points), self.settings.positives), -1, np.int64)
        drawn[place, np.arange(len(place)) - np.searchsorted(place, place)] = labels
        return drawn

    def _loss(self, points: Ints, labels: Ints, own: Ints, x: Bag, z: Bag, w: Tensor) -> Tensor:
        if self.settings.loss == "cosine":
            return self._own_loss(labels, own, x, z, w)
        loss = self._shared_loss(points, labels, x, w)
        return loss + self._own_loss(labels, own, x, z, w) if self.ranker.adapts else loss

    def _own_loss(self, labels: Ints, own: Ints, x: Bag, z: Bag, w: Tensor) -> Tensor:
        """Each datapoint adapted to its own S_i ∪ T_i: the paper's loss, or a softmax over them."""
        at = torch.from_numpy(np.searchsorted(labels, np.maximum(own, labels[0]))).to(self.device)  # (B, k)
        score = self.ranker(x, z.map(lambda tensor: tensor[at]), w[at]).float()
        present = torch.from_numpy(own >= 0).to(self.device)
        positive = present.clone()
        positive[:, self.settings.positives :] = False
        if self.settings.loss == "cosine":
            return cosine_loss(score, positive, present & ~positive, self.settings.margin)
        return decoupled_softmax(self.temperature(score), positive, ~present)

    def _shared_loss(self, points: Ints, labels: Ints, x: Bag, w: Tensor) -> Tensor:
        """Softmax of ⟨x̂¹, w_l⟩ over the labels of the whole batch and the sampled ones."""
        positive = membership(self.data.relevance, points, labels).to(self.device)
        ignored = membership(self.data.exclude, points, labels).to(self.device)
        return decoupled_softmax(self.temperature(x.vector().float() @ w.float().T), positive, ignored)
