"""Module I: E_T, E_V and A_S trained in Siamese fashion over mini-batches of labels."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from mufin.config import Pretrain
from mufin.encode.embedder import Embedder
from mufin.encode.features import Groups
from mufin.ragged import Ints
from mufin.train.batches import shuffled
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
from mufin.train.losses import Temperature, decoupled_softmax, hardest, margin_loss
from mufin.train.sampling import draw_per_row, is_hard, shared_labels


def pretrain(
    embedder: Embedder,
    data: TrainingData,
    settings: Pretrain,
    context: Context,
    validate: Callable[[], float] | None = None,
) -> None:
    """Bring x̂¹ and ẑ¹ of related pairs together and push unrelated ones apart."""
    each = context.epoch(len(data.used_labels), settings.batch)
    steps = settings.epochs * each
    if not steps or not any(weight.requires_grad for weight in embedder.parameters()):
        return  # nothing to train: frozen encoders without A_S or a learnt projection
    trained_from = first_trained(settings.epochs, settings.encoder_epochs)
    still = data.encoded(embedder) if trained_from else data
    trainer = _Siamese(embedder, still, settings, context, steps)
    validated = set(epochs_to_validate(settings.epochs))
    embedder.train()
    with context.progress.task("Module I  ", steps) as task:
        journal = Journal(task, "pretrain", context.logs)
        for epoch in range(settings.epochs):
            if epoch == trained_from:
                trainer.data = data
            trainer.refresh(epoch)
            for labels in islice(shuffled(data.used_labels, settings.batch, context.rng), each):
                journal.step(trainer.step(labels))
            if validate and epoch in validated:
                journal.validation(validate())
        journal.close()
    embedder.eval()


class _Siamese:
    """One step of Module I, and the embeddings that say which positives are hard."""

    def __init__(
        self, embedder: Embedder, data: TrainingData, settings: Pretrain, context: Context, steps: int
    ):
        self.embedder, self.data, self.settings, self.rng = embedder, data, settings, context.rng
        self.temperature = Temperature().to(embedder.device)
        groups = embedder_groups(embedder, settings.lr, settings.encoder_lr)
        if settings.loss == "softmax":
            groups.append({"params": list(self.temperature.parameters()), "weight_decay": 0.0})
        self.loop = Loop(settings, steps, groups)
        self.judged: tuple[Tensor, Tensor] | None = None

    def refresh(self, epoch: int) -> None:
        """Embed everything anew: hard positives are judged by these embeddings."""
        if self.settings.hard_positives and epoch % self.settings.refresh == 0:
            z = self.embedder.embed(self.data.labels, self.data.label_groups).vectors()
            x = self.embedder.embed(self.data.points, self.data.groups).vectors()
            self.judged = z, x

    def step(self, labels: Ints) -> Tensor:
        place, points = self._positives(labels)
        if not len(points):  # every positive is too easy: nothing to learn from these labels
            return torch.zeros(())
        with autocast(self.embedder.device):
            if self.settings.loss == "margin":
                loss = self._margin(labels[np.unique(place)], np.unique(points), labels[place], points)
            else:
                loss = self._softmax(labels, np.unique(points))
        self.loop.step(loss)
        return loss

    def _positives(self, labels: Ints) -> tuple[Ints, Ints]:
        """P_l: at most |P_l| datapoints of each label, among the hard ones if asked for."""
        keep = None
        if self.judged is not None:
            keep = is_hard(*self.judged, self.data.by_label, labels, self.settings.hard_similarity)
        return draw_per_row(self.data.by_label, labels, self.settings.positives, self.rng, keep)

    def _vectors(self, labels: Ints, points: Ints) -> tuple[Tensor, Tensor]:
        """ẑ (B, D) and x̂ (X, D) of the batch."""
        z = self.embedder(self.data.labels.batch(Groups.singles(labels))).vector()
        x = self.embedder(self.data.points.batch(self.data.groups.take(points))).vector()
        return z, x

    def _margin(self, labels: Ints, points: Ints, pair_label: Ints, pair_point: Ints) -> Tensor:
        """labels and points sorted and unique; the drawn pairs by number."""
        labels = np.sort(labels)
        z, x = self._vectors(labels, points)
        similarity = z.float() @ x.float().T  # (B, X)
        positive = torch.zeros(similarity.shape, dtype=torch.bool)
        positive[np.searchsorted(labels, pair_label), np.searchsorted(points, pair_point)] = True
        unrelated = ~(
            membership(self.data.relevance, points, labels) | membership(self.data.exclude, points, labels)
        ).T
        positive, unrelated = positive.to(z.device), unrelated.to(z.device)
        # "Random" negatives (an ablation) are the hardest by random numbers.
        by = similarity if self.settings.hard_negatives else torch.rand_like(similarity)
        if self.settings.guard is not None:
            unrelated &= similarity < self.settings.guard
        negative = hardest(by, unrelated, self.settings.negatives)
        if self.settings.margin != "dynamic":
            return margin_loss(similarity, positive, negative, self.settings.margin)
        earlier = similarity.detach()
        if self.judged is not None:
            earlier = self.judged[0][torch.from_numpy(labels)] @ self.judged[1][torch.from_numpy(points)].T
        return margin_loss(similarity, positive, negative, 0.0, earlier)

    def _softmax(self, labels: Ints, points: Ints) -> Tensor:
        """Datapoint → label over the batch's labels and some sampled ones."""
        labels = shared_labels(self.data.n_labels, labels, self.settings.sampled, self.rng)
        z, x = self._vectors(labels, points)
        positive = membership(self.data.relevance, points, labels).to(z.device)
        ignored = membership(self.data.exclude, points, labels).to(z.device)
        similarity = x.float() @ z.float().T
        if self.settings.guard is not None:
            ignored |= ~positive & (similarity >= self.settings.guard)
        return decoupled_softmax(self.temperature(similarity), positive, ignored)
