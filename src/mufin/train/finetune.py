"""Module IV: embedder, cross-attention and classifiers trained over mini-batches of datapoints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mufin.bag import Bag
from mufin.config import Finetune
from mufin.encode.embedder import Embedder
from mufin.encode.features import Groups
from mufin.encode.ragged import Ints
from mufin.rank.classifiers import Classifiers
from mufin.rank.ranker import Ranker
from mufin.retrieve.shortlist import Shortlist
from mufin.train.data import TrainingData, membership
from mufin.train.loop import Context, Journal, Loop, autocast, embedder_groups, epochs_to_validate, shuffled
from mufin.train.losses import Temperature, cosine_loss, decoupled_softmax
from mufin.train.sampling import ShortlistNegatives, draw_per_row, shared_labels


def finetune(
    embedder: Embedder,
    ranker: Ranker,
    classifiers: Classifiers,
    data: TrainingData,
    shortlist: Shortlist,
    settings: Finetune,
    context: Context,
    validate: Callable[[], float] | None = None,
) -> None:
    """Train everything on the task itself: which labels a datapoint has."""
    points = np.flatnonzero(np.diff(data.relevance.indptr)).astype(np.int64)
    steps = settings.epochs * -(-len(points) // settings.batch)
    if not steps:
        return
    negatives = ShortlistNegatives(shortlist, data.relevance, data.exclude)
    trainer = _Tuner(embedder, ranker, classifiers, data, negatives, settings, context, steps)
    validated = set(epochs_to_validate(settings.epochs))
    embedder.train(not settings.freeze_encoders)
    ranker.train()
    with context.progress.task("Module IV ", steps) as task:
        journal = Journal(task, "finetune", context.logs)
        for epoch in range(settings.epochs):
            for batch in shuffled(points, settings.batch, context.rng):
                journal.step(trainer.step(batch))
            if validate and epoch in validated:
                journal.validation(validate())
        journal.close()
    embedder.eval()
    ranker.eval()


class _Tuner:
    """One step of Module IV."""

    def __init__(
        self,
        embedder: Embedder,
        ranker: Ranker,
        classifiers: Classifiers,
        data: TrainingData,
        negatives: ShortlistNegatives,
        settings: Finetune,
        context: Context,
        steps: int,
    ) -> None:
        self.embedder, self.ranker, self.classifiers = embedder, ranker, classifiers
        self.data, self.negatives, self.settings, self.rng = data, negatives, settings, context.rng
        self.device = embedder.device
        self.temperature = Temperature().to(self.device)
        groups: list[dict[str, Any]] = [{"params": list(ranker.parameters())}]
        if not settings.freeze_encoders:
            groups += embedder_groups(embedder, settings.lr, settings.encoder_lr)
        if settings.loss == "softmax":
            groups.append({"params": list(self.temperature.parameters()), "weight_decay": 0.0})
        rows = {"params": classifiers.sparse_parameters(), "lr": settings.classifier_lr or settings.lr}
        self.loop = Loop(settings, steps, groups, [rows])

    def step(self, points: Ints) -> Tensor:
        positives = self._positives(points)  # (B, |S|)
        negatives = self.negatives.draw(points, self.settings.negatives, self.rng)  # (B, |T|)
        own = np.concatenate([positives, negatives], axis=1)  # (B, k), −1 where there are fewer
        labels = shared_labels(self.data.n_labels, own.ravel(), self.settings.sampled, self.rng)  # (U,)
        with autocast(self.device), torch.set_grad_enabled(True):
            x, z = self._bags(points, labels)
            w = self.classifiers.weight(torch.from_numpy(labels).to(self.device), z.vector())  # (U, D)
            loss = self._loss(points, labels, own, x, z, w)
        self.loop.step(loss)
        return loss

    def _positives(self, points: Ints) -> Ints:
        """S_i: at most |S_i| random positives, (B, |S|), −1 where there are fewer."""
        place, labels = draw_per_row(self.data.relevance, points, self.settings.positives, self.rng)
        drawn = np.full((len(points), self.settings.positives), -1, np.int64)
        drawn[place, np.arange(len(place)) - np.searchsorted(place, place)] = labels
        return drawn

    def _bags(self, points: Ints, labels: Ints) -> tuple[Bag, Bag]:
        with torch.set_grad_enabled(not self.settings.freeze_encoders):
            x = self.embedder(self.data.points.batch(self.data.groups.take(points)))
            z = self.embedder(self.data.labels.batch(Groups.singles(labels)))
        return x, z

    def _loss(self, points: Ints, labels: Ints, own: Ints, x: Bag, z: Bag, w: Tensor) -> Tensor:
        if self.settings.loss == "cosine":
            return self._own_loss(labels, own, x, z, w)
        loss = self._shared_loss(points, labels, x, w)
        return loss + self._own_loss(labels, own, x, z, w) if self.ranker.adapts else loss

    def _own_loss(self, labels: Ints, own: Ints, x: Bag, z: Bag, w: Tensor) -> Tensor:
        """Each datapoint adapted to its own S_i ∪ T_i: the paper's loss, or a softmax over them."""
        at = torch.from_numpy(np.searchsorted(labels, np.maximum(own, labels[0]))).to(self.device)  # (B, k)
        score = self.ranker(x, Bag(z.values[at], z.mask[at]), w[at]).float()
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
