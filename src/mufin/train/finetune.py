"""Module IV: embedder, cross-attention and classifiers trained over mini-batches of datapoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mufin.bag import Bag
from mufin.config import Finetune
from mufin.encode.features import Groups
from mufin.encode.ragged import Ints
from mufin.retrieve.shortlist import Shortlist
from mufin.train.data import TrainingData, membership
from mufin.train.loop import Context, Journal, Loop, autocast, embedder_groups, epochs_to_validate, shuffled
from mufin.train.losses import Temperature, cosine_loss, decoupled_softmax
from mufin.train.networks import Networks
from mufin.train.sampling import ShortlistNegatives, draw_per_row, shared_labels


def finetune(
    networks: Networks,
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
    validated = set(epochs_to_validate(settings.epochs))
    networks.train(settings.freeze_encoders)
    with (
        context.progress.task("Module IV ", steps) as task,
        _frozen(networks.embedder.encoder_parameters() if settings.freeze_encoders else []),
    ):
        trainer = _Tuner(networks, data, negatives, settings, context.rng, steps)
        journal = Journal(task, "finetune", context.logs)
        for epoch in range(settings.epochs):
            for batch in shuffled(points, settings.batch, context.rng):
                journal.step(trainer.step(batch))
            if validate and epoch in validated:
                journal.validation(validate())
        journal.close()
    networks.eval()


@contextmanager
def _frozen(parameters: list[nn.Parameter]) -> Iterator[None]:
    """While inside, these weights get no gradients."""
    for parameter in parameters:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)


class _Tuner:
    """One step of Module IV."""

    def __init__(
        self,
        networks: Networks,
        data: TrainingData,
        negatives: ShortlistNegatives,
        settings: Finetune,
        rng: np.random.Generator,
        steps: int,
    ) -> None:
        self.embedder, self.ranker = networks.embedder, networks.ranker
        self.classifiers, self.device = networks.classifiers, networks.device
        self.data, self.negatives, self.settings, self.rng = data, negatives, settings, rng
        self.temperature = Temperature().to(self.device)
        groups: list[dict[str, Any]] = [{"params": list(self.ranker.parameters())}]
        groups += embedder_groups(self.embedder, settings.lr, settings.encoder_lr)
        if settings.loss == "softmax":
            groups.append({"params": list(self.temperature.parameters()), "weight_decay": 0.0})
        rows = {"params": self.classifiers.sparse_parameters(), "lr": settings.classifier_lr or settings.lr}
        self.loop = Loop(settings, steps, groups, [rows])

    def step(self, points: Ints) -> Tensor:
        positives = self._positives(points)  # (B, |S|)
        negatives = self.negatives.draw(points, self.settings.negatives, self.rng)  # (B, |T|)
        own = np.concatenate([positives, negatives], axis=1)  # (B, k), −1 where there are fewer
        labels = shared_labels(self.data.n_labels, own.ravel(), self.settings.sampled, self.rng)  # (U,)
        with autocast(self.device):
            x = self.embedder(self.data.points.batch(self.data.groups.take(points)))
            z = self.embedder(self.data.labels.batch(Groups.singles(labels)))
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
